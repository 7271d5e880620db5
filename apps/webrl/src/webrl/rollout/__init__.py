"""Episodes: the worker and its workflow, trajectories, the task stream, and batches of groups."""
