"""Fine-tunes one shared encoder on several tasks. Independent of Ray: callers pass callbacks for reporting."""

from __future__ import annotations

from tutti.training.keys.options import check_training
from tutti.training.loop.fine_tune import fine_tune
from tutti.training.loop.report import EpochReport, FineTuned

__all__ = ["EpochReport", "FineTuned", "check_training", "fine_tune"]
