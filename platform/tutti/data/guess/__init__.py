"""Guesses what a competition's files are, so that a study file can be written for them."""
