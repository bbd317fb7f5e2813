"""The hooks of a trial's training."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tutti.orchestration.worker.folds import FoldReport
    from tutti.training import EpochReport


class TrialListener:
    """Is called while a trial trains, on every rank. All hooks do nothing unless overridden."""

    def on_epoch(self, report: EpochReport) -> None:
        """After each evaluation of a trial without folds."""

    def on_fold_epoch(self, fold: int, report: EpochReport) -> None:
        """After each evaluation of a trial with folds, with the zero-based fold."""

    def on_fold(self, report: FoldReport) -> None:
        """Once a fold is complete; see ``fine_tune_folds``."""

    def on_notice(self, text: str) -> None:
        """With a sentence for the user."""

    def on_step(self) -> None:
        """After each optimizer step."""
