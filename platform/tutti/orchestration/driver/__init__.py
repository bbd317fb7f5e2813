"""Runs a study: Ray Tune's trials, their scheduler and searcher, and what becomes of each."""
