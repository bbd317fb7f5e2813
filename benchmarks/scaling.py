"""The speedup by a second worker on two CPU cores, and a trial's memory compared with a plain Trainer's.

    python benchmarks/scaling.py [--quick] [--json FILE] [--data GLUE]

* two_workers_vs_one: examples/s of two gloo workers with one thread each, relative to one worker with one thread. Both
  train on SST-2 in almost the same batches, with max_tokens_per_batch 1024 for two workers and 2048 for one.
* two_workers_vs_two_threads: the same, relative to one worker with both cores.
* memory_vs_trainer: peak resident memory of fine_tune (two epochs, with evaluation and saving after each, and
  prediction at the end), relative to a plain transformers.Trainer with evaluation and saving after each epoch and the
  best model loaded at the end. Model, rows and batch size (16) are the same; other settings are the defaults.

Each run has its own processes. Contenders alternate; ratios are medians over the turns.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import shared
import torch
import torch.distributed as dist
from shared import BACKBONE, MAX_LENGTH, Rows, Target
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from tutti.tasks.scorer import Scorer
from tutti.training import fine_tune

TASK = "SST-2"
MAX_TOKENS = 2048  # of a global batch
BATCH = 16
TARGETS = {"memory_vs_trainer": Target(1, most=True)}
TORCHS_OWN = {"THP_MEM_ALLOC_ENABLE": "0", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1024", "LRU_CACHE_CAPACITY": "1024"}


def _rows(job: dict[str, Any]) -> Rows:
    rows = shared.glue_rows(Path(job["data"]), [TASK]).drawn({TASK: job["rows"]}, part="train", seed=0)
    return rows.drawn({TASK: job["validation_rows"]}, part="validation", seed=0)


def train(job: dict[str, Any]) -> dict[str, float]:
    """Runs one rank of a trial without evaluation; returns the duration and steps of its training loop."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    threads = int(os.environ["OMP_NUM_THREADS"])
    torch.set_num_threads(threads)
    if world > 1:
        dist.init_process_group("gloo")
    rows = _rows(job)
    keys = {"num_train_epochs": 1, "max_length": MAX_LENGTH, "max_tokens_per_batch": MAX_TOKENS // world}
    folder = Path(job["folder"])
    few = rows.drawn({TASK: 256}, part="train", seed=1)
    shared.timed(shared.trial_trainer(few, keys, folder=folder / "warm-up", threads=threads))
    watch = shared.timed(shared.trial_trainer(rows, keys, folder=folder / "timed", threads=threads))
    if world > 1:
        dist.destroy_process_group()
    return {"seconds": watch.seconds, "steps": watch.steps}


def trial(job: dict[str, Any]) -> dict[str, float]:
    """Runs a whole trial; returns the peak memory of its process."""
    rows = _rows(job)
    fine_tune(
        backbone=BACKBONE,
        tasks=rows.tasks,
        parts=rows.parts,
        training={
            "num_train_epochs": 2,
            "max_length": MAX_LENGTH,
            "per_device_train_batch_size": BATCH,
            "use_cpu": True,  # like the plain Trainer
        },
        folder=Path(job["folder"]) / "trial",
        on_epoch=lambda report: None,
    )
    return {"peak_mib": peak_mib()}


def plain(job: dict[str, Any]) -> dict[str, float]:
    """Does the same with a plain transformers.Trainer."""
    set_seed(0)
    rows = _rows(job)
    (task,) = rows.tasks
    trainer = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(BACKBONE, num_labels=task.outputs),
        args=TrainingArguments(
            output_dir=str(Path(job["folder"]) / "plain"),
            num_train_epochs=2,
            per_device_train_batch_size=BATCH,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=2,
            load_best_model_at_end=True,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=shared.plain_rows(rows.parts[TASK]["train"]),
        eval_dataset=shared.plain_rows(rows.parts[TASK]["validation"]),
        data_collator=DataCollatorWithPadding(AutoTokenizer.from_pretrained(BACKBONE)),
        compute_metrics=lambda evaluated: {
            task.metric: Scorer.of(task).score(evaluated.label_ids, evaluated.predictions)
        },
    )
    shared.timed(trainer)
    trainer.predict(trainer.eval_dataset)
    return {"peak_mib": peak_mib()}


def peak_mib() -> float:
    """The peak resident memory of this process, in MiB."""
    status = Path("/proc/self/status")
    if status.is_file():  # getrusage includes the memory of the process before exec
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) / 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 2**20 if sys.platform == "darwin" else most / 2**10


KINDS = {"train": train, "trial": trial, "plain": plain}


def run(kind: str, job: dict[str, Any], *, folder: Path, workers: int = 1, threads: int = 1) -> dict[str, float]:
    """Runs a job in new processes and returns the result of rank 0."""
    folder.mkdir(parents=True)
    file = folder / "job.json"
    file.write_text(json.dumps({**job, "folder": str(folder)}))
    own = TORCHS_OWN if kind == "plain" else {}  # what Tutti's workers have instead, a user's own script lacks
    shared.run_ranks([__file__, "--job", str(file), "--kind", kind], workers=workers, threads=threads, environment=own)
    result: dict[str, float] = json.loads((folder / "found-0.json").read_text())
    return result


def main() -> None:
    parser = shared.arguments(__doc__, quick="fewer rows and turns: under 10 minutes on two cores")
    parser.add_argument("--rows", type=int, help="training rows of SST-2 (4096; with --quick 768)")
    parser.add_argument("--turns", type=int, help="of each contender (5; with --quick 3)")
    parser.add_argument("--job", type=Path, help="internal: the job of a process of this benchmark")
    parser.add_argument("--kind", choices=KINDS, help="internal: the kind of the job")
    options = parser.parse_args()
    shared.quiet()
    if options.job:
        result = KINDS[options.kind](json.loads(options.job.read_text()))
        (options.job.parent / f"found-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(result))
        return
    shared.glue_rows(options.data, [TASK])  # exits early if the files are missing
    turns = options.turns or (3 if options.quick else 5)
    rows = options.rows or (768 if options.quick else 4096)
    job = {"data": str(options.data.resolve()), "rows": rows, "validation_rows": min(rows, 872)}
    ways = {
        "1 worker, 1 thread": {"workers": 1, "threads": 1},
        "1 worker, 2 threads": {"workers": 1, "threads": 2},
        "2 workers, 1 thread each": {"workers": 2, "threads": 1},
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    steps = {}
    memory: dict[str, list[float]] = {"trial": [], "plain": []}
    for turn in range(turns):
        with tempfile.TemporaryDirectory() as name:
            for way in list(ways) if turn % 2 == 0 else list(ways)[::-1]:
                result = run("train", job, folder=Path(name) / way, **ways[way])
                seconds[way].append(result["seconds"])
                steps[way] = result["steps"]
            for kind in memory:
                memory[kind].append(run(kind, {**job, "rows": min(rows, 1024)}, folder=Path(name) / kind)["peak_mib"])

    print(f"\n{TASK}, {rows} rows, {turns} turns\n{'':26}{'examples/s':>12}{'ms/step':>10}")
    for way, durations in seconds.items():
        print(f"{way:26}{rows / median(durations):12.1f}{median(durations) / steps[way] * 1000:10.1f}")
    print(f"\n{'':26}{'peak MiB':>12}")
    for kind, label in (("trial", "trial"), ("plain", "transformers.Trainer")):
        print(f"{label:26}{median(memory[kind]):12.0f}")

    def ratio(numerators: list[float], denominators: list[float]) -> float:
        return median(numerator / denominator for numerator, denominator in zip(numerators, denominators, strict=True))

    two_workers = seconds["2 workers, 1 thread each"]
    results = {
        "two_workers_vs_one": ratio(seconds["1 worker, 1 thread"], two_workers),
        "two_workers_vs_two_threads": ratio(seconds["1 worker, 2 threads"], two_workers),
        "memory_vs_trainer": ratio(memory["trial"], memory["plain"]),
    }
    shared.show_results(results, TARGETS, options.json)


if __name__ == "__main__":
    main()
