"""The step loop, the trainer's rank, rows from trajectories, and how weights reach servers."""
