"""The online half of PoolPipe and the pure core that both halves share."""
