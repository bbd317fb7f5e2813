"""One rank of a process group, for test_folds.py: a trial with folds, killed after its first, goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist

from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.orchestration.worker.build import fine_tune_once
from tutti.orchestration.worker.folds import FoldReport
from tutti.orchestration.worker.trial_listener import TrialListener
from tutti.training import EpochReport


class Recorder(TrialListener):
    """Records epochs and folds; if ``interrupted``, it ends the trial after its first fold."""

    def __init__(self, *, interrupted: bool) -> None:
        self.interrupted = interrupted
        self.events: list[str] = []

    def on_fold_epoch(self, fold: int, report: EpochReport) -> None:
        self.events.append(f"{fold}/{report.epoch}")

    def on_fold(self, report: FoldReport) -> None:
        self.events.append(f"fold {report.fold}")
        if self.interrupted:
            raise InterruptedError


def main(job_file: str) -> None:
    job = json.loads(Path(job_file).read_text(encoding="utf8"))
    dist.init_process_group("gloo")
    outcome: dict[str, object] = {}
    for name in ("first", "second"):
        recorder = Recorder(interrupted=name == "first")
        try:
            record = fine_tune_once(
                StudyConfig.model_validate_json(job["study"]),
                StudyFolder(Path(job["folder"])),
                key="t0000",
                number=0,
                parameters=job["parameters"],
                listener=recorder,
                main=dist.get_rank() == 0,
                smaller_batches=False,
            )
            outcome |= {"score": record.score, "task_scores": dict(record.task_scores)}
        except InterruptedError:
            pass
        outcome[name] = recorder.events
    Path(f"{job_file}.{dist.get_rank()}").write_text(json.dumps(outcome), encoding="utf8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
