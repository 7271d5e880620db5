"""The running system: cluster, roles, rollout workers, trainer loop, test rollout and recovery."""
