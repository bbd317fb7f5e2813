"""The training throughput of a trial compared with what a user would write instead, in one process on one CPU thread.

    python benchmarks/training_throughput.py [--quick] [--json FILE] [--device cuda] [--base] [--batch N] [--epochs N]

Fine-tunes MiniLM on the same rows of SST-2 and MRPC with the same optimizer (fused AdamW) and learning rate:

* trial: the trainer of tutti.training.fine_tune, with max_tokens_per_batch and the precision that Tutti chooses.
* trainer: a plain transformers.Trainer with default settings: 8 rows per batch, padded to the longest of them, float32.
* padded: the same, with every row padded to 128 tokens as in GLUE's run_glue.py.
* grouped bf16: the same as trainer with train_sampling_strategy="group_by_length" and bf16.
* bare: a plain PyTorch loop: the trial's tokens per batch, bf16 autocast, AdamW, clipping, schedule.
* trial, same rows: the trial with the Trainer's rows per batch instead of the token budget.
* packed: the trial with batching: packed, and as many tokens in a sequence as in the trial's batches; "packed, same
  rows" with the Trainer's rows per sequence on average.

The token budget equals a batch of "padded", 8 x 128, so no step needs more memory than its steps. A batch of short
rows then has more than 8 rows, and an epoch has fewer steps; the table shows the rows per step. Only the training loop
is measured, without loading, evaluating and saving. Contenders alternate; ratios are medians over the turns. oneDNN's
kernels for new batch shapes are compiled before measuring, as after a trial's first epoch. oneDNN's cache is enlarged,
since it holds the kernels of one contender only, and five in one process would recompile them in each turn. All
contenders have the environment of Tutti's workers; large pages make the Trainer no faster. bf16 is float32 if the CPU
does not compute in bfloat16. With --device cuda all contenders train on the first GPU, whose peak memory is shown too.
With --base they train an encoder of BERT-base's size with random weights, and with --batch N the Trainer has N rows per
batch, the trial N x 128 tokens. The targets apply to MiniLM on a CPU with 8 rows, and are not shown otherwise.

Measured separately: the share of padding in the trial's batches of the whole training file, the overhead of the
trial's trainer per step on a toy model over a bare loop with the same batches, and an update of the weight average.
The trial's tokens per second are also shown as a share of what the device computes in products of large matrices.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import shared
import torch
from datasets import Dataset
from encoders import base_backbone, toy_backbone
from matrix_peak import measured_peak, operations_per_token
from shared import MAX_LENGTH, Rows, Target
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from tutti.data.batches import BatchPlan, BatchRows, TaskBatchSampler, TaskRows
from tutti.modeling.model import load_encoder
from tutti.training.machine.cpu import eager_attention
from tutti.training.machine.precision import cpu_gains_from_bf16
from tutti.training.tricks.averages import ExponentialAverage

BATCH = shared.batch
RATE = 5e-5  # the default learning rate of TrainingArguments
TRAINING = {"learning_rate": RATE, "weight_decay": 0.0, "warmup_steps": 0}
TARGETS = {
    "sst2_vs_trainer": Target(4),
    "sst2_vs_padded": Target(10),
    "sst2_vs_grouped_bf16": Target(1.05),
    "sst2_vs_bare": Target(0.95),
    "mrpc_vs_trainer": Target(3),
    "padding_waste_sst2": Target(0.05, most=True),
    "padding_waste_mrpc": Target(0.05, most=True),
    "engine_ms_per_step": Target(2, most=True),
    "ema_ms": Target(6, most=True),
}
SHORT_NAMES = {"SST-2": "sst2", "MRPC": "mrpc"}  # of tasks, in the names of results

Timed = tuple[float, int]  # seconds, optimizer steps


def _bf16() -> bool:
    """Whether a user would choose bfloat16 on this device."""
    if shared.device.type == "cpu":
        return cpu_gains_from_bf16()
    return torch.cuda.is_bf16_supported(including_emulation=False)


def _max_tokens() -> int:
    return shared.batch * MAX_LENGTH


def _on_device(values: torch.Tensor) -> torch.Tensor:
    if shared.device.type == "cpu":
        return values
    return values.pin_memory().to(shared.device, non_blocking=True)


def _trial(rows: Rows, folder: Path, **keys: Any) -> Timed:
    training = {**TRAINING, "num_train_epochs": shared.epochs, "max_length": MAX_LENGTH, **keys}
    watch = shared.timed(shared.trial_trainer(rows, training, folder=folder))
    return watch.seconds, watch.steps


def _plain_trainer(rows: Rows, folder: Path, *, padded: bool = False, **keys: Any) -> Timed:
    set_seed(0)
    (task,) = rows.tasks
    tokenizer = AutoTokenizer.from_pretrained(shared.backbone)
    padding = {"padding": "max_length", "max_length": MAX_LENGTH} if padded else {}
    args = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=shared.epochs,
        learning_rate=RATE,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=shared.device.type == "cpu",
        **({} if shared.batch == BATCH else {"per_device_train_batch_size": shared.batch}),
        **keys,
    )
    args._n_gpu = min(args.n_gpu, 1)
    trainer = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(shared.backbone, num_labels=task.outputs),
        args=args,
        train_dataset=shared.plain_rows(rows.parts[task.name]["train"]),
        data_collator=DataCollatorWithPadding(tokenizer, **padding),
    )
    assert trainer.args.per_device_train_batch_size == shared.batch
    torch.set_num_threads(1)  # accelerate may have increased it
    watch = shared.timed(trainer)
    return watch.seconds, watch.steps


def _bare(rows: Rows, folder: Path) -> Timed:
    set_seed(0)
    (task,) = rows.tasks
    model = AutoModelForSequenceClassification.from_pretrained(shared.backbone, num_labels=task.outputs).to(
        shared.device
    )
    plain_rows = shared.plain_rows(rows.parts[task.name]["train"])
    pad = AutoTokenizer.from_pretrained(shared.backbone).pad_token_id
    batches: list[list[dict[str, Any]]] = [[]]
    for row in sorted(plain_rows, key=lambda row: len(row["input_ids"])):
        if batches[-1] and (len(batches[-1]) + 1) * len(row["input_ids"]) > _max_tokens():
            batches.append([])
        batches[-1].append(row)

    order = [
        index for epoch in range(shared.epochs) for index in np.random.default_rng(epoch).permutation(len(batches))
    ]

    def collated() -> Iterator[dict[str, torch.Tensor]]:
        for index in order:
            batch = batches[index]
            width = max(len(row["input_ids"]) for row in batch)
            fill = {"input_ids": pad, "token_type_ids": 0, "attention_mask": 0}
            yield {
                name: torch.tensor([row[name] + [value] * (width - len(row[name])) for row in batch])
                for name, value in fill.items()
                if name in batch[0]
            } | {"labels": torch.tensor([row["labels"] for row in batch])}

    def loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        value: torch.Tensor = model(**{name: _on_device(values) for name, values in batch.items()}).loss
        return value

    return shared.bare_loop(model, collated(), loss, steps=len(order), rate=RATE, bf16=_bf16()), len(order)


CONTENDERS: dict[str, Callable[[Rows, Path], Timed]] = {
    "trial": lambda rows, folder: _trial(rows, folder, max_tokens_per_batch=_max_tokens()),
    "trainer": _plain_trainer,
    "padded": lambda rows, folder: _plain_trainer(rows, folder, padded=True),
    "grouped bf16": lambda rows, folder: _plain_trainer(
        rows, folder, train_sampling_strategy="group_by_length", bf16=_bf16()
    ),
    "bare": _bare,
    "trial, same rows": lambda rows, folder: _trial(rows, folder, per_device_train_batch_size=shared.batch),
    "packed": lambda rows, folder: _trial(rows, folder, max_tokens_per_batch=_max_tokens(), batching="packed"),
    "packed, same rows": lambda rows, folder: _trial(
        rows, folder, per_device_train_batch_size=shared.batch, batching="packed"
    ),
}
IN_FLOAT32 = ("trainer", "padded")
ON_MRPC = ("trial", "trainer", "trial, same rows")


def compare(rows: Rows, names: tuple[str, ...], *, count: int, repeats: int, folder: Path) -> dict[str, float]:
    """For each contender, the trial's examples/s relative to the contender's; and the trial's ``tokens_per_second``.

    On a GPU also ``memory``, the trial's peak relative to the Trainer's.

    Prints all results.
    """
    (task,) = rows.tasks
    drawn = rows.drawn({task.name: count}, part="train", seed=0)
    first = rows.drawn({task.name: 4 * shared.batch}, part="train", seed=0)
    for name in names:  # the first steps of a process are slow, and in bfloat16 also those with a new batch shape
        CONTENDERS[name](first if name in IN_FLOAT32 else drawn, folder / "warm-up")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    steps, mib = {}, {}
    for turn, name in shared.in_turns(names, repeats):
        with shared.peak_memory() as peak:
            duration, steps[name] = CONTENDERS[name](drawn, folder / f"{name} {turn}")
        seconds[name].append(duration)
        mib[name] = peak()
    count = len(drawn.parts[task.name]["train"].ids) * shared.epochs
    ratios = {
        name: median(theirs / ours for ours, theirs in zip(seconds["trial"], seconds[name], strict=True))
        for name in names
    }
    tokens = int(drawn.parts[task.name]["train"].lengths.sum()) * shared.epochs
    ratios["tokens_per_second"] = tokens / median(seconds["trial"])
    on_gpu = shared.device.type == "cuda"
    if on_gpu:
        ratios["memory"] = mib["trial"] / mib["trainer"]
    print(f"\n{task.name}, {count} rows, {repeats} turns")
    print(f"{'':16}{'examples/s':>12}{'rows/step':>11}{'ms/step':>10}{'the trial is':>15}{'MiB' if on_gpu else '':>8}")
    for name in names:
        duration = median(seconds[name])
        speed = f"{count / duration:12.1f}{count / steps[name]:11.1f}{duration / steps[name] * 1000:10.1f}"
        print(f"{name:16}{speed}{ratios[name]:14.2f}x{mib[name] if on_gpu else '':8}", flush=True)
    return ratios


def share_of_peak(rows: Rows, tokens_per_second: float) -> float:
    """The share of the device's matrix peak that a trial with this speed uses, padding not counted."""
    (task,) = rows.tasks
    lengths = rows.parts[task.name]["train"].lengths.astype(np.float64)
    attended = (lengths**2).sum() / lengths.sum()  # every token attends to all of its row
    operations = operations_per_token(shared.backbone, length=attended)
    return tokens_per_second * operations / measured_peak(bf16=_bf16())


def padding_waste(rows: Rows, *, epochs: int = 3) -> float:
    """The share of padding among all tokens of the trial's batches."""
    (task,) = rows.tasks
    lengths = rows.parts[task.name]["train"].lengths
    sampler = TaskBatchSampler(
        {task.name: BatchRows(lengths=lengths, weights=np.ones(len(lengths)))},
        plan=BatchPlan(per_device_batch=BATCH, max_tokens=_max_tokens()),
        seed=0,
        stage=0,
        rank=0,
        world=1,
    )
    padded = real = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in sampler:
            batch_lengths = lengths[batch.rows]
            padded += len(batch_lengths) * int(batch_lengths.max())
            real += int(batch_lengths.sum())
    return 1 - real / padded


def engine_ms_per_step(rows: Rows, *, steps: int, repeats: int, folder: Path) -> float:
    """Milliseconds per step that the trial's trainer adds to a bare loop with the same model, attention and batches."""
    (task,) = rows.tasks
    part = rows.of(task.name).drawn({task.name: steps * BATCH}, part="train", seed=0).parts[task.name]["train"]
    # Maps each token id to one of the toy's 60 words.
    words = [[4 + token % 60 for token in row] for row in part.encoded["input_ids"]]
    toy = {"train": replace(part, encoded=Dataset.from_dict({"input_ids": words}), pad_token_id=0)}
    toy_rows = Rows(rows.tasks, {task.name: toy})
    keys = {**TRAINING, "num_train_epochs": 1, "per_device_train_batch_size": BATCH, "max_length": MAX_LENGTH}
    backbone = toy_backbone(folder / "toy")
    differences = []
    for turn in range(repeats + 1):
        trainer = shared.trial_trainer(toy_rows, keys, folder=folder / f"engine {turn}", encoder=backbone)
        watch = shared.timed(trainer)
        trainer = shared.trial_trainer(toy_rows, keys, folder=folder / f"bare {turn}", encoder=backbone)
        with eager_attention(trainer._slow_attention):  # as in the trial's steps: the engine alone shall differ
            bare = _bare_loop(trainer.model, toy_rows, bf16=trainer.args.bf16)
        if turn:  # the first turn is a warm-up
            differences.append((watch.seconds - bare) / watch.steps * 1000)
    return median(differences)


def _bare_loop(model: nn.Module, rows: Rows, *, bf16: bool) -> float:
    (task,) = rows.tasks
    parts = {task.name: rows.parts[task.name]["train"]}
    batches = TaskBatchSampler(
        {task.name: BatchRows(lengths=parts[task.name].lengths, weights=parts[task.name].weights)},
        plan=BatchPlan(per_device_batch=BATCH),
        seed=0,
        stage=0,
        rank=0,
        world=1,
    )
    task_rows = TaskRows(parts, multiple=8 if shared.device.type == "cuda" else 1)  # like a trial's

    def loss(task_batch: Any) -> torch.Tensor:
        tensors = {name: value for name, value in task_rows[task_batch].items() if isinstance(value, torch.Tensor)}
        batch = {name: _on_device(values) for name, values in tensors.items()}
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in batch}
        return nn.functional.cross_entropy(model(task.name, **inputs), batch["labels"])

    return shared.bare_loop(model, batches, loss, steps=len(batches), rate=RATE, bf16=bf16)


def ema_ms(*, repeats: int) -> float:
    """The duration in milliseconds of an update of the exponential moving average of the encoder's weights."""
    average = ExponentialAverage(load_encoder(shared.backbone).to(shared.device), decay=0.999)
    average.after_step()
    durations = []
    for _ in range(repeats):
        start = shared.now()
        average.after_step()
        durations.append(shared.now() - start)
    return median(durations) * 1000


def main() -> None:
    parser = shared.arguments(__doc__, quick="fewer rows and turns: under 10 minutes on one core")
    parser.add_argument("--rows", type=int, help="training rows of each task (2048; with --quick 480)")
    parser.add_argument("--turns", type=int, help="of each contender (5; with --quick 2)")
    parser.add_argument("--cpu-time", action="store_true", help="read CPU seconds: for a machine that is not quiet")
    parser.add_argument("--small-parts", action="store_true", help="only what is measured by itself, no contenders")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what all contenders train on")
    parser.add_argument("--base", action="store_true", help="an encoder of BERT-base's size with random weights")
    parser.add_argument("--batch", type=int, default=BATCH, help=f"the Trainer's rows per batch ({BATCH})")
    parser.add_argument("--epochs", type=int, default=1, help="of each contender (1)")
    options = parser.parse_args()
    if options.device == "cuda" and (options.cpu_time or not torch.cuda.is_available()):
        parser.error("--device cuda needs a GPU that torch can use, and reads the clock: leave out --cpu-time")
    shared.quiet()
    shared.device, shared.batch, shared.epochs = torch.device(options.device), options.batch, options.epochs
    if options.cpu_time:
        shared.clock = time.process_time  # of all work, since contenders have a single thread
    torch.set_num_threads(1)
    count = options.rows or (480 if options.quick else 2048)
    turns = options.turns or (2 if options.quick else 5)
    rows = shared.glue_rows(options.data, list(SHORT_NAMES))
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.base:
            shared.backbone = base_backbone(folder / "base")
        if not options.small_parts:
            sst2 = compare(rows.of("SST-2"), tuple(CONTENDERS), count=count, repeats=turns, folder=folder / "sst2")
            for contender in ("trainer", "padded", "grouped bf16", "bare"):
                results[f"sst2_vs_{contender.replace(' ', '_')}"] = sst2[contender]
            results["sst2_packed_vs_budget"] = 1 / sst2["packed"]
            results["sst2_packed_vs_trainer"] = sst2["trainer"] / sst2["packed"]
            results["sst2_packed_same_rows_vs_padded"] = sst2["trial, same rows"] / sst2["packed, same rows"]
            mrpc = compare(rows.of("MRPC"), ON_MRPC, count=count, repeats=turns, folder=folder / "mrpc")
            results["mrpc_vs_trainer"] = mrpc["trainer"]
            for short_name, ratios in (("sst2", sst2), ("mrpc", mrpc)):
                results[f"{short_name}_same_rows_vs_trainer"] = ratios["trainer"] / ratios["trial, same rows"]
                results[f"{short_name}_tokens_per_second"] = ratios["tokens_per_second"]
                if "memory" in ratios:
                    results[f"{short_name}_memory_vs_trainer"] = ratios["memory"]
            share = share_of_peak(rows.of("SST-2"), sst2["tokens_per_second"])
            results["sst2_share_of_matrix_peak"] = share
        for task, short_name in SHORT_NAMES.items():
            results[f"padding_waste_{short_name}"] = padding_waste(rows.of(task))
        steps = 100 if options.quick else 300
        results["engine_ms_per_step"] = engine_ms_per_step(rows.of("SST-2"), steps=steps, repeats=turns, folder=folder)
        results["ema_ms"] = ema_ms(repeats=10 * turns)
    as_targets = (options.device, options.batch, options.base) == ("cpu", BATCH, False)
    shared.show_results(results, TARGETS if as_targets else {}, options.json)


if __name__ == "__main__":
    main()
