"""Kills processes of a real run and looks whether anything was lost: `make chaos`."""
