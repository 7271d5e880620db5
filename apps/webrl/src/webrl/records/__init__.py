"""What a run leaves behind: metrics, live view, episode log, samples, and the run's folder."""
