"""Pretraining of backbones on texts alone: one small file for each objective, and the loop that trains it."""
