"""One rank of a process group, for test_ranks.py: runs fine_tune on the rows in a file and writes the outcome."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path

import datasets
import numpy as np
import torch.distributed as dist

from tutti.data.encode import EncodedPart
from tutti.errors import TuttiError
from tutti.tasks.task import Task
from tutti.training import EpochReport, fine_tune


def _part(rows: dict) -> EncodedPart:
    lengths = np.array([len(row) for row in rows["input_ids"]], dtype=np.int32)
    return EncodedPart(
        ids=np.array(rows["ids"]),
        encoded=datasets.Dataset.from_dict({"input_ids": rows["input_ids"], "length": lengths}),
        lengths=lengths,
        labels=None if rows["labels"] is None else _labels(rows["labels"]),
        weights=np.array(rows["weights"], dtype=np.float32),
        pad_token_id=0,
    )


def _labels(values: list) -> np.ndarray:
    labels = np.array(values)
    return labels.astype(np.int64 if labels.dtype.kind == "i" else np.float32)


def _compared(report: EpochReport) -> dict:
    compared = [field.name for field in dataclasses.fields(report) if field.compare]
    return {name: value for name, value in dataclasses.asdict(report).items() if name in compared}


def main(job_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    dist.init_process_group("gloo")
    outcomes = {}
    for name, run in job["runs"].items():
        reports: list[EpochReport] = []

        def on_epoch(report: EpochReport, reports: list[EpochReport] = reports, run: dict = run) -> None:
            reports.append(report)
            if report.epoch == run.get("stop_after"):
                raise InterruptedError

        outcomes[name] = {"reports": [], "probabilities": {}, "error": None}
        try:
            done = fine_tune(
                backbone=job["backbone"],
                tasks=[Task.from_dict(task, Path(sys.argv[1]).parent) for task in job["tasks"]],
                parts={task: {n: _part(rows) for n, rows in parts.items()} for task, parts in job["parts"].items()},
                training=run["training"],
                folder=Path(run["folder"]),
                on_epoch=on_epoch,
            )
            outcomes[name]["probabilities"] = {
                f"{task}/{part}": predictions.outputs.tolist()
                for task, by_part in done.predictions.items()
                for part, predictions in by_part.items()
            }
            if "lose" in run and dist.get_rank() == 0:  # as if killed before the last state was complete
                shutil.rmtree(Path(run["folder"]) / "resume" / run["lose"])
        except (TuttiError, InterruptedError) as error:
            outcomes[name]["error"] = f"{type(error).__name__}: {error}"
        outcomes[name]["rows"] = reports[-1].usage.rows if reports else 0
        outcomes[name]["reports"] = [_compared(report) for report in reports]
    Path(f"{job_file}.{dist.get_rank()}").write_text(json.dumps(outcomes))
    dist.destroy_process_group()
    # As Ray's workers end. PyTorch's cache of sharded operations keeps gloo's threads alive, and such a thread aborts
    # the process if it lets go of a tensor while Python exits (3 of 210 tries with 20 sums; 0 without the cache).
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
