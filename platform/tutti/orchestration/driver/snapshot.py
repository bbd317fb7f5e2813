"""Keeps objects out of Ray Tune's experiment snapshots."""

from __future__ import annotations

from typing import Any


class NotSnapshotted:
    """Pickles as an empty object. Put it first among the bases, ahead of Ray's own ``__getstate__``.

    Ray Tune pickles its callbacks, stopper and searcher into every snapshot. No run reads them back: the study's store
    is the only state that a resumed study starts from.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {}
