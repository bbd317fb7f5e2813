"""Ordered classes: each row has one of k labels that have an order, such as grades."""

from __future__ import annotations

from typing import ClassVar

from tutti.tasks.kinds.classes import Classes


class Ordered(Classes):
    """As ``Classes``, with classes in their order: index 0 is the lowest."""

    name: ClassVar[str] = "ordered"
