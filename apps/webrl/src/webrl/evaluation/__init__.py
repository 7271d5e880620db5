"""The role `test-rollout` of a run, `webrl eval`, and the one evaluation that both run."""
