-- What a block takes while it runs, apart from its weights; so far both stood in block_memory_bytes.

ALTER TABLE models ADD COLUMN block_workspace_bytes BIGINT[] DEFAULT [];  -- empty where not known
