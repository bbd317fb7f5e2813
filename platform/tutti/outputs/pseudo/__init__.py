"""Pseudo-labels, and rounds of training on them."""
