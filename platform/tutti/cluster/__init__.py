"""Connects to Ray, here or elsewhere, and submits jobs to it."""
