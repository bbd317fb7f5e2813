"""Trains trials in the processes of a Ray Train run."""
