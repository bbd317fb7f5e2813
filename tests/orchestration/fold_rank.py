"""One rank of a process group, for test_folds.py: a trial with folds, killed after its first, goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist

from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.orchestration.build import fine_tune_once
from tutti.orchestration.folds import FoldReport


def main(job_file: str) -> None:
    job = json.loads(Path(job_file).read_text(encoding="utf8"))
    dist.init_process_group("gloo")
    outcome: dict[str, object] = {}
    for name in ("first", "second"):
        told: list[str] = []

        def on_fold(report: FoldReport, told: list[str] = told, name: str = name) -> None:
            told.append(f"fold {report.fold}")
            if name == "first":
                raise InterruptedError

        try:
            record = fine_tune_once(
                StudyConfig.model_validate_json(job["study"]),
                StudyFolder(Path(job["folder"])),
                key="t0000",
                number=0,
                parameters=job["parameters"],
                on_epoch=lambda report: None,
                on_fold_epoch=lambda fold, report, told=told: told.append(f"{fold}/{report.epoch}"),
                on_fold=on_fold,
                main=dist.get_rank() == 0,
            )
            outcome |= {"score": record.score, "task_scores": dict(record.task_scores)}
        except InterruptedError:
            pass
        outcome[name] = told
    Path(f"{job_file}.{dist.get_rank()}").write_text(json.dumps(outcome), encoding="utf8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
