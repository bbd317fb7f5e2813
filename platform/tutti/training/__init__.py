"""Fine-tunes one shared encoder on several tasks. Independent of Ray: callers pass callbacks for reporting."""

from __future__ import annotations

from tutti.training.fine_tune import fine_tune
from tutti.training.options import check_training
from tutti.training.report import EpochReport, FineTuned

__all__ = ["EpochReport", "FineTuned", "check_training", "fine_tune"]
