"""The memory: DuckDB behind migrations and typed functions."""
