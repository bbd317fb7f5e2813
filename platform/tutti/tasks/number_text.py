"""Numbers as labels have them."""

from __future__ import annotations

import re

import numpy as np

NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""A number as labels may have it. ``float`` would also accept ``1_000`` and digits of other scripts."""


def shortest(value: np.floating) -> float:
    """The number with as few digits as it needs to be read back exactly."""
    return float(str(value))


def parse_number(text: str) -> np.float32:
    """A label such as ``3``, ``-0.5`` or ``1e-3``; NaN or infinity where it is no float32."""
    with np.errstate(over="ignore"):
        return np.float32(text if NUMBER.fullmatch(text.strip()) else "nan")
