"""Optuna: search spaces, samplers, and the records of trials."""
