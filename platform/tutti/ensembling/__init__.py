"""Combines, selects, decides and calibrates: arrays in, arrays out, never a model."""
