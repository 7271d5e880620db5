"""Everlasting rollout pool, interruptible generation and the rollout controller."""
