"""The test rollout beside a run, evaluation by itself, and the statistics of both."""
