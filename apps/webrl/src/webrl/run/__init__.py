"""A run from its first step to its last: recovery, checkpoints, supervision, comparison."""
