"""Tutti tunes many fine-tuned text encoders and decoders on a Ray cluster and lets the best of them vote."""

import logging

# transformers imports it where it is installed, and it warns of faster kernels and of every layer's casts.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

__version__ = "0.1.0"
