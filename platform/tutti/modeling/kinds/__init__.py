"""Heads and losses, one small file per kind of task."""
