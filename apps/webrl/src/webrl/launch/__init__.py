"""From configuration to running roles: component configurations, start and end of all roles."""
