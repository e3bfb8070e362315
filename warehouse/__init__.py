"""The memory of PoolPipe: one DuckDB file behind numbered migrations and typed functions."""
