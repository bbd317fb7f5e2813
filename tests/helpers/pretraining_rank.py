"""One rank of a process group, for test_pretraining_ranks.py: pretrains as a file says, and writes the results."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

from tutti.config.pretraining import PretrainingSettings
from tutti.data.corpus import CorpusOptions
from tutti.training.machine import precision
from tutti.training.pretraining.run import TextFiles, pretrain


def pretrained(run: dict, *, texts: str) -> dict:
    """What a run ends with, and its steps that were told."""
    precision.cpu_gains_from_bf16 = lambda: False  # compared with the tolerance of float32
    steps: list[int] = []

    def tell(progress) -> None:
        steps.append(progress.step)
        if progress.step == run.get("stop_at"):
            raise InterruptedError

    files = TextFiles((Path(texts),), CorpusOptions(max_length=16, packed=False), Path(texts).with_name("cache"))
    settings = PretrainingSettings(**run["settings"])
    out = Path(run["out"])
    try:
        made = pretrain(
            backbone=run["backbone"], texts=files, out=out, settings=settings, objective=run["objective"],
            on_progress=tell,
        )  # fmt: skip
    except InterruptedError:
        return {"steps": steps}
    return {"steps": steps, "measures": made.measures}


def main(job_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    dist.init_process_group("gloo")
    ended = [pretrained(run, texts=job["texts"]) for run in job["runs"]]
    Path(f"{job_file}.{dist.get_rank()}").write_text(json.dumps(ended))
    os._exit(0)  # the other rank waits for one that was stopped, as for one that was killed


if __name__ == "__main__":
    main(sys.argv[1])
