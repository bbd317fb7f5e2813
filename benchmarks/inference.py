"""The speed of `tutti predict` compared with transformers.Trainer.predict, and its memory by number of rows.

    python benchmarks/inference.py [--quick] [--json FILE] [--data GLUE]

Three members, MiniLM fine-tuned for a few steps on SST-2, predict its 6,920 training rows (--quick: 2,048).

* tutti: `tutti predict` from the moment its workers have loaded the members until the output file is complete: read,
  clean, tokenize, predict, vote, write. One worker per core, in the precision that Tutti chooses.
* predict_fp32, predict_bf16: tokenize the rows once, then call Trainer.predict for each member with its defaults (8
  rows per batch, padded to the longest of them) on all cores, and average the probabilities. bf16 is float32 if the
  CPU does not compute in bfloat16.
* bare: a plain PyTorch loop over the members in the precision of tutti: rows tokenized once, sorted by length, and
  cut into batches of as many tokens, on all cores.
* padded_fp32: the same with every row padded to 128 tokens, as in GLUE's run_glue.py.

No measured time includes loading. vs_*: the speedup of tutti. Contenders alternate; ratios are medians over the turns.
max_probability_difference and flipped_share compare tutti with predict_fp32.

memory_growth: the peak memory of the command and its workers for 1,000,000 rows (--quick: 60,000) with a tiny encoder,
relative to that for a tenth of the rows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import shared
import torch
from shared import MAX_LENGTH, Target
from studies import run, sst2
from torch import Tensor, nn
from transformers import AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments

from tutti.cluster.connect import connected
from tutti.config.folder import StudyFolder
from tutti.config.load import load_recipe
from tutti.config.study import Resources
from tutti.data.flat_rows import MAX_TOKENS, SHARD
from tutti.modeling.checkpoint import load_checkpoint
from tutti.modeling.new_backbone import new_backbone
from tutti.orchestration.after.inference import Slots, predict_shards
from tutti.outputs.submission.predictions import Shards
from tutti.training.machine.precision import autocast, cpu_gains_from_bf16
from tutti.workflows.electorate import voting_studies
from tutti.workflows.predict import chosen_members, read_input
from tutti.workflows.study import open_study

TARGETS = {
    "vs_predict_fp32": Target(4.5),
    "vs_predict_bf16": Target(1.7),
    "vs_bare": Target(0.95),
    "max_probability_difference": Target(0.01, most=True),
    "flipped_share": Target(0.001, most=True),
    "memory_growth": Target(1.2, most=True),
}
MEMBERS = 3
Timed = tuple[float, np.ndarray]  # seconds, (rows, 2) probabilities


class _OneTask(nn.Module):
    """A member with the interface that Trainer expects of a model."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.model, _ = load_checkpoint(folder)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        return {"logits": self.model("SST-2", input_ids, attention_mask, token_type_ids)}


def study(data: Path, folder: Path, *, trials: int, rows: int, **keys: Any) -> StudyFolder:
    """A study on SST-2 whose trials train one epoch on few rows, with a recipe that gives all of them equal votes."""
    (folder / "all.yaml").write_text(f"members: {{top: {trials}}}\n")
    document = {
        "study": "members",
        "tasks": {"SST-2": sst2(data, folder, rows=rows)},
        "training": {"num_train_epochs": 1, "max_length": MAX_LENGTH, "max_tokens_per_batch": 1024},
        "search_space": {"learning_rate": {"type": "log_uniform", "low": 5e-5, "high": 2e-4}},
        "search": {"trials": trials, "scheduler": "none", "sampler": "random"},
        "storage": {"path": str(folder / "studies")},
        "ensemble": {"recipe": str(folder / "all.yaml")},
        **keys,
    }
    with connected(Resources()) as concurrent:
        return run(document, concurrent_trials=min(concurrent, trials))


def tutti(place: StudyFolder, file: Path, folder: Path, turns: list[str]) -> Timed:
    """Runs the work of `tutti predict` on the connected Ray."""
    study = open_study(place.path)
    config, (task,) = study.config, study.prepared.tasks
    name, recipe = load_recipe(config.ensemble.recipe)
    studies = voting_studies(study, members=recipe.members)
    given, chosen = read_input(config, task, file), chosen_members(studies, task, name, recipe)
    shards = Shards(folder / "tutti.parquet", rows=given.rows, size=SHARD, manifest={})
    start = 0.0

    def started(precision: str) -> None:
        nonlocal start
        turns.append(precision)
        shards.begin(precision)
        start = shared.clock()

    with shards.locked():
        predict_shards(
            given.shards(SHARD, skip=set()),
            checkpoints=chosen.checkpoints,
            task=task,
            slots=Slots(os.cpu_count() or 1, 1, 0),
            training=config.training,
            precision=None,
            started=started,
            done=lambda number, rows, votes: shards.write(number, chosen.vote.table(rows["id"].tolist(), votes)),
        )
        shards.finish()
    seconds = shared.clock() - start
    table = pq.read_table(folder / "tutti.parquet")
    return seconds, np.stack([table["p_0"], table["p_1"]], axis=1)


def plain(members: list[Path], texts: list[str], folder: Path, *, padded: bool = False, bf16: bool = False) -> Timed:
    """Trainer.predict, member by member, on all cores."""
    tokenizer = AutoTokenizer.from_pretrained(shared.BACKBONE)
    padding = {"padding": "max_length", "max_length": MAX_LENGTH} if padded else {}
    trainers = [
        Trainer(
            model=_OneTask(member),  # a new model each time, because a Trainer changes a model's precision
            args=TrainingArguments(
                output_dir=str(folder), report_to="none", disable_tqdm=True, use_cpu=True, bf16=bf16
            ),
            data_collator=DataCollatorWithPadding(tokenizer, **padding),
        )
        for member in members
    ]
    torch.set_num_threads(os.cpu_count() or 1)
    start = shared.clock()
    encoded = tokenizer(texts, truncation=True, max_length=MAX_LENGTH)
    rows = [{name: encoded[name][row] for name in encoded} for row in range(len(texts))]
    logits = [torch.from_numpy(trainer.predict(rows).predictions).float() for trainer in trainers]
    probabilities = torch.stack([each.softmax(dim=1) for each in logits]).mean(dim=0).numpy()
    return shared.clock() - start, probabilities


def bare(members: list[Path], texts: list[str], *, precision: str) -> Timed:
    """A loop without a Trainer and without Ray, on all cores."""
    tokenizer, device = AutoTokenizer.from_pretrained(shared.BACKBONE), torch.device("cpu")
    models = [load_checkpoint(member)[0].eval() for member in members]
    torch.set_num_threads(os.cpu_count() or 1)
    start = shared.clock()
    rows = tokenizer(texts, truncation=True, max_length=MAX_LENGTH)["input_ids"]
    left = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
    logits = torch.empty(len(models), len(rows), 2)
    with torch.no_grad():
        while left:
            count = max(MAX_TOKENS["cpu"] // len(rows[left[0]]), 1)
            batch, left = left[:count], left[count:]
            inputs = tokenizer.pad({"input_ids": [rows[row] for row in batch]}, return_tensors="pt")
            with autocast(device, precision):
                for number, model in enumerate(models):
                    logits[number, batch] = model("SST-2", inputs["input_ids"], inputs["attention_mask"]).float()
    probabilities = logits.softmax(dim=2).mean(dim=0).numpy()
    return shared.clock() - start, probabilities


def speed(data: Path, folder: Path, *, rows: int, turns: int) -> dict[str, float]:
    """The speed ratios, and the differences between the probabilities."""
    place = study(data, folder, trials=MEMBERS, rows=1200)
    lines = (data / "SST-2" / "train.tsv").read_text(encoding="utf8").splitlines()[1 : rows + 1]
    texts = [line.split("\t")[0] for line in lines]
    file = folder / "new.tsv"
    file.write_text("\n".join(["index\tsentence", *(f"{row}\t{text}" for row, text in enumerate(texts))]) + "\n")
    members = [place.trial(f"t{number:04d}").best for number in range(MEMBERS)]
    precisions: list[str] = []
    contenders: dict[str, Callable[[], Timed]] = {
        "tutti": lambda: tutti(place, file, folder, precisions),
        "predict_fp32": lambda: plain(members, texts, folder),
        "predict_bf16": lambda: plain(members, texts, folder, bf16=cpu_gains_from_bf16()),
        "bare": lambda: bare(members, texts, precision=precisions[-1]),
        "padded_fp32": lambda: plain(members, texts, folder, padded=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    probabilities: dict[str, np.ndarray] = {}
    with connected(Resources()):
        for _, name in shared.in_turns(contenders, turns):
            duration, probabilities[name] = contenders[name]()
            seconds[name].append(duration)
    print(f"\nSST-2, {len(texts)} rows, {MEMBERS} members, {turns} turns; tutti in {precisions[0]}")
    for name, durations in seconds.items():
        print(f"{name:16}{len(texts) / median(durations):10.1f} rows/s")
    values = {
        f"vs_{name}": median(theirs / ours for ours, theirs in zip(seconds["tutti"], durations, strict=True))
        for name, durations in seconds.items()
        if name != "tutti"
    }
    ours, expected = probabilities["tutti"], probabilities["predict_fp32"]
    difference = np.abs(ours - expected).max()
    flipped = ours.argmax(axis=1) != expected.argmax(axis=1)
    return {**values, "max_probability_difference": float(difference), "flipped_share": float(flipped.mean())}


def memory(data: Path, folder: Path, *, rows: int) -> float:
    """The peak memory for this number of rows, relative to that for a tenth of them."""
    backbone = new_backbone(texts=[data / "SST-2" / "dev.tsv"], size="tiny", out=folder / "backbone").path
    place = study(data, folder, trials=1, rows=200, backbone=str(backbone))
    words = np.array((data / "SST-2" / "dev.tsv").read_text(encoding="utf8").split())
    rng = np.random.default_rng(0)
    peaks = []
    for count in (rows // 10, rows):
        file = folder / f"{count}.csv"
        with file.open("w", encoding="utf8") as out:
            out.write("text\n")
            for length in rng.integers(1, 16, size=count):
                out.write('"' + " ".join(rng.choice(words, size=length)).replace('"', "") + '"\n')
        peaks.append(_peak(["predict", str(place.path), "--input", str(file), "--out", str(folder / "out.csv")]))
        print(f"{count:>10,} rows: {peaks[-1] / 2**20:8.0f} MiB", flush=True)
    return peaks[1] / peaks[0]


def _peak(command: list[str]) -> float:
    """The peak unshared memory of the command and its workers, in bytes, without Ray's own processes."""
    process = subprocess.Popen([sys.executable, "-m", "tutti", *command], stdout=subprocess.DEVNULL)
    driver, peak = psutil.Process(process.pid), 0
    while process.poll() is None:
        current = 0
        try:
            for each in (driver, *driver.children(recursive=True)):
                if each == driver or each.name().startswith("ray::Predictor"):
                    current += each.memory_full_info().uss
        except psutil.NoSuchProcess:
            continue
        peak = max(peak, current)
        time.sleep(0.2)
    if process.returncode:
        raise SystemExit(f"`tutti {' '.join(command)}` failed.")
    return peak


def main() -> None:
    parser = shared.arguments(__doc__, quick="fewer rows and turns: under 10 minutes on two cores")
    options = parser.parse_args()
    shared.quiet()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "speed").mkdir()
        rows, turns = (2 * SHARD, 1) if options.quick else (6920, 5)
        values = speed(options.data, Path(folder) / "speed", rows=rows, turns=turns)
    with tempfile.TemporaryDirectory() as folder:
        values["memory_growth"] = memory(options.data, Path(folder), rows=60_000 if options.quick else 1_000_000)
    shared.show_results(values, TARGETS, options.json)


if __name__ == "__main__":
    main()
