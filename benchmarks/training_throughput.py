"""How fast a trial trains against what a user would write instead, side by side in one process on one CPU thread.

    python benchmarks/training_throughput.py [--quick] [--json FILE] [--data GLUE] [--device cuda]

Fine-tunes MiniLM on the same rows of SST-2 and MRPC with the same optimizer (fused AdamW) and learning rate:

* trial: the trainer that tutti.training.fine_tune makes, with max_tokens_per_batch and the precision that it chooses.
* trainer: plain transformers.Trainer with its defaults: 8 rows a batch, padded to the longest of them, float32.
* padded: the same, with every row padded to 128 tokens as GLUE's run_glue.py does.
* grouped bf16: the same with train_sampling_strategy="group_by_length" and bf16.
* bare: a loop in PyTorch alone: batches of as many tokens as the trial's, bf16 autocast, AdamW, clipping, schedule.
* trial, 8 rows: the trial with the Trainer's 8 rows a batch in the place of the token budget.

The budget of tokens is what a batch of "padded" holds, 8 x 128, so no step needs more memory than that one's; a batch
of short rows then has more than 8, and an epoch fewer steps. The table says how many rows a step has. A contender's
time is that of its training loop: loading, evaluating and saving are not in it. Contenders take turns, and the ratios
are medians over these turns. What oneDNN compiles for batches of a shape that it has not met is compiled before, as it
is after a trial's first epoch, and is kept: oneDNN's cache has room for what one contender computes, and five in one
process would compile theirs anew in each turn. All have the environment of Tutti's workers: large pages make the
Trainer no faster. bf16 is float32 where the CPU does not compute in bfloat16. With --device cuda all of them train on
the first GPU instead; the targets, which are those of a CPU, are then not shown.

Then, by themselves: the share of padding in the trial's batches of the whole training file, what the trial's trainer
costs a step on a toy model beside a bare loop over the same batches, and an update of the moving average of weights.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16384")

import numpy as np
import shared
import torch
from datasets import Dataset
from shared import BACKBONE, MAX_LENGTH, Rows, Target
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertModel,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    get_linear_schedule_with_warmup,
    set_seed,
)

from tutti.data.batches import BatchPlan, BatchRows, TaskBatchSampler, TaskRows
from tutti.modeling.model import load_encoder
from tutti.training.averages import ExponentialAverage
from tutti.training.precision import cpu_gains_from_bf16

BATCH = 8  # per_device_train_batch_size of TrainingArguments where nobody sets it
MAX_TOKENS = BATCH * MAX_LENGTH
RATE = 5e-5  # TrainingArguments' too
TRAINING = {"num_train_epochs": 1, "learning_rate": RATE, "weight_decay": 0.0, "warmup_steps": 0}
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
TOKENS = {"SST-2": "sst2", "MRPC": "mrpc"}


Timed = tuple[float, int]  # seconds, optimizer steps


def _bf16() -> bool:
    """Whether a user would choose bfloat16 on this device."""
    if shared.device.type == "cpu":
        return cpu_gains_from_bf16()
    return torch.cuda.is_bf16_supported(including_emulation=False)


def _autocast(*, bf16: bool) -> AbstractContextManager[object]:
    return torch.autocast(shared.device.type, torch.bfloat16) if bf16 else nullcontext()


def _on_device(values: torch.Tensor) -> torch.Tensor:
    if shared.device.type == "cpu":
        return values
    return values.pin_memory().to(shared.device, non_blocking=True)


def _trial(rows: Rows, folder: Path, **keys: Any) -> Timed:
    training = {**TRAINING, "max_length": MAX_LENGTH, **keys}
    watch = shared.timed(shared.trial_trainer(rows, training, folder=folder))
    return watch.seconds, watch.steps


def _plain_trainer(rows: Rows, folder: Path, *, padded: bool = False, **keys: Any) -> Timed:
    set_seed(0)
    (task,) = rows.tasks
    tokenizer = AutoTokenizer.from_pretrained(BACKBONE)
    to = {"padding": "max_length", "max_length": MAX_LENGTH} if padded else {}
    args = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=1,
        learning_rate=RATE,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=shared.device.type == "cpu",
        **keys,
    )
    args._n_gpu = min(args.n_gpu, 1)
    trainer = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(BACKBONE, num_labels=task.outputs),
        args=args,
        train_dataset=shared.plain_rows(rows.parts[task.name]["train"]),
        data_collator=DataCollatorWithPadding(tokenizer, **to),
    )
    assert trainer.args.per_device_train_batch_size == BATCH
    torch.set_num_threads(1)  # accelerate may have set more
    watch = shared.timed(trainer)
    return watch.seconds, watch.steps


def _bare(rows: Rows, folder: Path) -> Timed:
    set_seed(0)
    (task,) = rows.tasks
    model = AutoModelForSequenceClassification.from_pretrained(BACKBONE, num_labels=task.outputs).to(shared.device)
    given = shared.plain_rows(rows.parts[task.name]["train"])
    pad = AutoTokenizer.from_pretrained(BACKBONE).pad_token_id
    batches: list[list[dict[str, Any]]] = [[]]
    for row in sorted(given, key=lambda row: len(row["input_ids"])):
        if batches[-1] and (len(batches[-1]) + 1) * len(row["input_ids"]) > MAX_TOKENS:
            batches.append([])
        batches[-1].append(row)

    def collated() -> Iterator[dict[str, torch.Tensor]]:
        for index in np.random.default_rng(0).permutation(len(batches)):
            batch = batches[index]
            width = max(len(row["input_ids"]) for row in batch)
            fill = {"input_ids": pad, "token_type_ids": 0, "attention_mask": 0}
            yield {
                name: torch.tensor([row[name] + [value] * (width - len(row[name])) for row in batch])
                for name, value in fill.items()
                if name in batch[0]
            } | {"labels": torch.tensor([row["labels"] for row in batch])}

    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, len(batches))
    model.train()
    bf16, began = _bf16(), shared.now()
    for batch in collated():
        with _autocast(bf16=bf16):
            loss = model(**{name: _on_device(values) for name, values in batch.items()}).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return shared.now() - began, len(batches)


CONTENDERS: dict[str, Callable[[Rows, Path], Timed]] = {
    "trial": lambda rows, folder: _trial(rows, folder, max_tokens_per_batch=MAX_TOKENS),
    "trainer": _plain_trainer,
    "padded": lambda rows, folder: _plain_trainer(rows, folder, padded=True),
    "grouped bf16": lambda rows, folder: _plain_trainer(
        rows, folder, train_sampling_strategy="group_by_length", bf16=_bf16()
    ),
    "bare": _bare,
    "trial, 8 rows": lambda rows, folder: _trial(rows, folder, per_device_train_batch_size=BATCH),
}
IN_FLOAT32 = ("trainer", "padded")
ON_MRPC = ("trial", "trainer", "trial, 8 rows")


def compare(rows: Rows, names: tuple[str, ...], *, count: int, repeats: int, folder: Path) -> dict[str, float]:
    """Every contender's ratio: how many times its examples/s the trial trains. Prints all of them."""
    (task,) = rows.tasks
    drawn = rows.drawn({task.name: count}, part="train", seed=0)
    first = rows.drawn({task.name: 4 * BATCH}, part="train", seed=0)
    for name in names:  # the first steps of a process are slow, and in bfloat16 those with batches of a new shape
        CONTENDERS[name](first if name in IN_FLOAT32 else drawn, folder / "warm-up")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    steps = {}
    for turn in range(repeats):
        order = names if turn % 2 == 0 else names[::-1]  # so that none always follows the same one
        for name in order:
            took, steps[name] = CONTENDERS[name](drawn, folder / f"{name} {turn}")
            seconds[name].append(took)
    count = len(drawn.parts[task.name]["train"].ids)
    ratios = {
        name: median(theirs / ours for ours, theirs in zip(seconds["trial"], seconds[name], strict=True))
        for name in names
    }
    print(f"\n{task.name}, {count} rows, {repeats} turns")
    print(f"{'':16}{'examples/s':>12}{'rows/step':>11}{'ms/step':>10}{'the trial is':>15}")
    for name in names:
        took = median(seconds[name])
        speed = f"{count / took:12.1f}{count / steps[name]:11.1f}{took / steps[name] * 1000:10.1f}"
        print(f"{name:16}{speed}{ratios[name]:14.2f}x", flush=True)
    return ratios


def padding_waste(rows: Rows, *, epochs: int = 3) -> float:
    """The share of padding among all tokens of the trial's batches."""
    (task,) = rows.tasks
    lengths = rows.parts[task.name]["train"].lengths
    sampler = TaskBatchSampler(
        {task.name: BatchRows(lengths=lengths, weights=np.ones(len(lengths)))},
        plan=BatchPlan(per_device_batch=BATCH, max_tokens=MAX_TOKENS),
        seed=0,
    )
    padded = real = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in sampler:
            own = lengths[batch.rows]
            padded += len(own) * int(own.max())
            real += int(own.sum())
    return 1 - real / padded


def toy_backbone(folder: Path) -> str:
    """A BERT of 40 thousand random weights with a tokenizer of one word for each token of the rows below."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(60))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    config = BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return str(folder)


def engine_ms_per_step(rows: Rows, *, steps: int, repeats: int, folder: Path) -> float:
    """Milliseconds that a step of the trial's trainer takes more than one of a bare loop: same model, same batches."""
    (task,) = rows.tasks
    part = rows.of(task.name).drawn({task.name: steps * BATCH}, part="train", seed=0).parts[task.name]["train"]
    # The toy's words are few: each token id stands for one of them.
    words = [[4 + token % 60 for token in row] for row in part.encoded["input_ids"]]
    toy = {"train": replace(part, encoded=Dataset.from_dict({"input_ids": words}), pad_token_id=0)}
    toy_rows = Rows(rows.tasks, {task.name: toy})
    keys = {**TRAINING, "per_device_train_batch_size": BATCH, "max_length": MAX_LENGTH}
    backbone = toy_backbone(folder / "toy")
    differences = []
    for turn in range(repeats + 1):
        trainer = shared.trial_trainer(toy_rows, keys, folder=folder / f"engine {turn}", backbone=backbone)
        watch = shared.timed(trainer)
        trainer = shared.trial_trainer(toy_rows, keys, folder=folder / f"bare {turn}", backbone=backbone)
        bare = _bare_loop(trainer.model, toy_rows, bf16=trainer.args.bf16)
        if turn:  # the first warms up
            differences.append((watch.seconds - bare) / watch.steps * 1000)
    return median(differences)


def _bare_loop(model: nn.Module, rows: Rows, *, bf16: bool) -> float:
    (task,) = rows.tasks
    parts = {task.name: rows.parts[task.name]["train"]}
    weights = {task.name: parts[task.name].weights}
    batches = TaskBatchSampler(
        {task.name: BatchRows(lengths=parts[task.name].lengths, weights=weights[task.name])},
        plan=BatchPlan(per_device_batch=BATCH),
        seed=0,
    )
    made = TaskRows(parts, weights=weights, multiple=8 if shared.device.type == "cuda" else 1)  # as the trial's
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, len(batches))
    model.train()
    began = shared.now()
    for drawn in batches:
        batch = {name: _on_device(values) for name, values in made[drawn].items() if isinstance(values, torch.Tensor)}
        with _autocast(bf16=bf16):
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in batch}
            loss = nn.functional.cross_entropy(model(task.name, **inputs), batch["labels"])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return shared.now() - began


def ema_ms(*, repeats: int) -> float:
    """Milliseconds of an update of the exponential moving average of MiniLM's weights."""
    average = ExponentialAverage(load_encoder(BACKBONE).to(shared.device), decay=0.999)
    average.after_step()
    took = []
    for _ in range(repeats):
        began = shared.now()
        average.after_step()
        took.append(shared.now() - began)
    return median(took) * 1000


def main() -> None:
    parser = shared.arguments(__doc__, quick="fewer rows and turns: under 10 minutes on one core")
    parser.add_argument("--rows", type=int, help="training rows of each task (2048; with --quick 480)")
    parser.add_argument("--turns", type=int, help="of each contender (5; with --quick 2)")
    parser.add_argument("--cpu-time", action="store_true", help="read CPU seconds: for a machine that is not quiet")
    parser.add_argument("--small-parts", action="store_true", help="only what is measured by itself, no contenders")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what all contenders train on")
    options = parser.parse_args()
    if options.device == "cuda" and (options.cpu_time or not torch.cuda.is_available()):
        parser.error("--device cuda needs a GPU that torch can use, and reads the clock: leave out --cpu-time")
    shared.quiet()
    shared.device = torch.device(options.device)
    if options.cpu_time:
        shared.clock = time.process_time  # contenders have one thread: it does all the work
    torch.set_num_threads(1)
    count = options.rows or (480 if options.quick else 2048)
    turns = options.turns or (2 if options.quick else 5)
    rows = shared.glue_rows(options.data, list(TOKENS))
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not options.small_parts:
            sst2 = compare(rows.of("SST-2"), tuple(CONTENDERS), count=count, repeats=turns, folder=folder / "sst2")
            for contender in ("trainer", "padded", "grouped bf16", "bare"):
                results[f"sst2_vs_{contender.replace(' ', '_')}"] = sst2[contender]
            mrpc = compare(rows.of("MRPC"), ON_MRPC, count=count, repeats=turns, folder=folder / "mrpc")
            results["mrpc_vs_trainer"] = mrpc["trainer"]
            for token, found in (("sst2", sst2), ("mrpc", mrpc)):
                results[f"{token}_8_rows_vs_trainer"] = found["trainer"] / found["trial, 8 rows"]
        for task, token in TOKENS.items():
            results[f"padding_waste_{token}"] = padding_waste(rows.of(task))
        steps = 100 if options.quick else 300
        results["engine_ms_per_step"] = engine_ms_per_step(rows.of("SST-2"), steps=steps, repeats=turns, folder=folder)
        results["ema_ms"] = ema_ms(repeats=10 * turns)
    shared.show_results(results, TARGETS if options.device == "cpu" else {})
    shared.write_json(results, options.json)


if __name__ == "__main__":
    main()
