"""Decoupled PPO and its relatives as functions of tensors."""
