"""What a run leaves behind: metrics, live view, episodes, batches, and the run's folder."""
