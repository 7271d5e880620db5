"""The machines of a run: Ray cluster, placement of roles, calls to workers, addresses and logs."""
