"""Tutti tunes many fine-tuned text encoders on a Ray cluster and lets the best of them vote."""

__version__ = "0.1.0"
