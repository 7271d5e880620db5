"""The step loop, rows from trajectories, the trainer's ranks, and how weights reach servers."""
