"""Decides when one more rollout episode may start and whether it may be trained on."""
