"""From configuration to running roles: component configurations, policy source, start and end."""
