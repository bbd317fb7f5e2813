"""Bundles: rows per second of three members against transformers' own pipelines, quantised and as ONNX.

    python benchmarks/export.py [--quick] [--json FILE] [--data FOLDER] [--threads N] [--cpu-time]

Three MiniLM with heads of their own, of the first token's state, which plain models of transformers can have, label
sentences of SST-2 on a CPU:

* bundle: ``Bundle.predict``: rows are tokenized once for all members, sorted by length and batched by tokens, in the
  precision that is the fastest of this machine, as for ``tutti predict``. ``bundle_float32`` is the same in float32.
* pipeline: ``pipeline("text-classification")`` of each member's plain model in float32, called with all rows.
* int8: the bundle with linear layers of 8 bits; ``flipped_labels`` is the share of rows whose label that changes.
* onnx: each member with onnxruntime in float32, on the bundle's batches.

Contenders alternate; ratios are medians over the turns. ``startup_seconds`` is ``python predict.py`` on one row from
beginning to end, ``megabytes`` the bundle's size, ``int8_megabytes`` with 8 bits. With --cpu-time the clock of the
ratios counts the CPU seconds of the process, for a machine with other work.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import shared
import torch
from shared import BACKBONE, MAX_LENGTH, Target
from transformers import pipeline

from tutti.bundle.one import export_onnx, export_plain
from tutti.bundle.onnx_model import FILE, OnnxModel
from tutti.bundle.predict import Bundle
from tutti.bundle.write import store_int8, write_bundle
from tutti.data.batches import TokenRows
from tutti.data.encode import load_tokenizer
from tutti.data.flat_rows import MAX_TOKENS, TokenizedRows
from tutti.data.tokenized import tokenized
from tutti.ensembling.fitted import Fitted
from tutti.ensembling.methods.protocol import Weighted
from tutti.ensembling.task_vote import TaskVote
from tutti.modeling.checkpoint import read_metadata, save_checkpoint
from tutti.modeling.heads import HeadOptions
from tutti.modeling.model import MultiTaskModel, load_encoder
from tutti.records import TextLimit
from tutti.tasks.layouts.table import Table
from tutti.tasks.task import Task
from tutti.training.predict import batches_of

TARGETS = {"bundle_vs_pipeline": Target(4), "int8_vs_bundle_float32": Target(1)}
MEMBERS = 3
TASK = Task("SST-2", ("bad", "good"), pair=False, metric="accuracy", submission="csv")
CLEANING = {"emoji": None, "emoticons": False, "repeated_punctuation": False}


class OnnxMember:
    """Predicts texts with a file of ``export_onnx``, in batches by tokens of rows of similar length.

    Args:
        checkpoint: that it was made of, which has the tokenizer and the limit.
    """

    def __init__(self, file: Path, checkpoint: Path, task: Task) -> None:
        self._onnx, self._tokenizer = OnnxModel(file), load_tokenizer(str(checkpoint))
        self._limit = replace(read_metadata(checkpoint).limit, unit=task.unit)

    def predict(self, texts: Mapping[str, Sequence[str]]) -> np.ndarray:
        """``(rows, outputs)`` float32."""
        rows = TokenizedRows(tokenized(texts, self._tokenizer, self._limit), self._tokenizer.pad_token_id)
        tokens = TokenRows(rows)
        order = np.argsort(-rows.lengths.astype(np.int64), kind="stable")
        batches = batches_of(order, rows.lengths, 1, MAX_TOKENS["cpu"], windows=None)
        found = np.concatenate([self._onnx.predict(tokens.pad(each)) for each in batches])
        outputs = np.empty_like(found)
        outputs[order] = found
        return outputs


def sentences(data: Path, count: int) -> list[str]:
    """The first sentences of SST-2's training file. Exits with a message if it is missing."""
    file = data / "SST-2" / "train.tsv"
    shared.at_hand(file, folder="that has SST-2/train.tsv")
    with file.open(encoding="utf8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [row["sentence"] for row, _ in zip(rows, range(count), strict=False)]


def checkpoints(folder: Path) -> list[Path]:
    """Three checkpoints with other heads, without training."""
    places = []
    for number in range(MEMBERS):
        torch.manual_seed(number)
        model = MultiTaskModel(encoder=load_encoder(BACKBONE), tasks=[TASK], heads=HeadOptions(pooling="cls"))
        with torch.no_grad():
            for weight in model.heads.parameters():
                weight.mul_(30)  # as sure as trained ones
        places.append(folder / f"t{number:04d}")
        save_checkpoint(
            places[-1],
            model=model,
            tokenizer=load_tokenizer(BACKBONE),
            tasks=[TASK],
            key=places[-1].name,
            number=number,
            epoch=1,
            score=0.5,
            task_scores={TASK.name: 0.5},
            limit=TextLimit(MAX_LENGTH),
        )
    return places


def make_bundle(folder: Path, members: Sequence[Path]) -> Path:
    folder.mkdir()
    fitted = Fitted(TASK.kind, Weighted(np.full(MEMBERS, 1 / MEMBERS)), None, 1.0)
    vote = TaskVote(TASK, {place: [place] for place in range(MEMBERS)}, fitted)
    named = [(each.name, each) for each in members]
    write_bundle(folder, vote=vote, members=named, layout=Table(), cleaning=CLEANING, training={})
    return folder


def megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20


def contenders(folder: Path, small: Path, members: Sequence[Path], texts: list[str]) -> dict[str, Callable[[], object]]:
    """By name what predicts all rows."""
    bundle, int8 = Bundle(folder, device="cpu"), Bundle(small, device="cpu")
    exact = Bundle(folder, device="cpu")
    exact.precision = "float32"
    pipelines, models = [], []
    for number, member in enumerate(members):
        plain, onnx = folder.with_name(f"plain{number}"), folder.with_name(f"onnx{number}")
        for place, write in ((plain, export_plain), (onnx, export_onnx)):
            place.mkdir()
            write(place, member, TASK, {"text": texts[:16]})
        pipelines.append(pipeline("text-classification", str(plain), top_k=None, device="cpu"))
        models.append(OnnxMember(onnx / FILE, member, TASK))
    rows = [{"text": text} for text in texts]
    return {
        "bundle": lambda: bundle.predict(rows),
        "bundle_float32": lambda: exact.predict(rows),
        "int8": lambda: int8.predict(rows),
        "pipeline": lambda: [each(texts) for each in pipelines],
        "onnx": lambda: [each.predict({"text": texts}) for each in models],
    }


def speeds(runs: dict[str, Callable[[], object]], *, rows: int, turns: int) -> dict[str, float]:
    """Rows per second, and ratios of them."""
    for run in runs.values():  # kernels are made for each new shape of a batch
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _, name in shared.in_turns(runs, turns):
        start = shared.now()
        runs[name]()
        seconds[name].append(shared.now() - start)

    def ratio(ours: str, theirs: str) -> float:
        return median(two / one for one, two in zip(seconds[ours], seconds[theirs], strict=True))

    return {
        **{f"{name}_rows_per_second": rows / median(own) for name, own in seconds.items()},
        "bundle_vs_pipeline": ratio("bundle", "pipeline"),
        "bundle_float32_vs_pipeline": ratio("bundle_float32", "pipeline"),
        "int8_vs_bundle": ratio("int8", "bundle"),
        "int8_vs_bundle_float32": ratio("int8", "bundle_float32"),
        "onnx_vs_bundle_float32": ratio("onnx", "bundle_float32"),
    }


def startup(folder: Path) -> float:
    """Seconds of ``python predict.py`` on one row."""
    rows = folder.with_name("one.csv")
    rows.write_text("text\na fine day\n")
    start = time.perf_counter()
    command = [
        sys.executable,
        str(folder / "predict.py"),
        "--input",
        str(rows),
        "--out",
        str(folder.with_name("o.csv")),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    parser = shared.arguments(__doc__, quick="300 rows, 3 turns: about 2 minutes")
    parser.add_argument("--threads", type=int, default=1, help="of torch and onnxruntime")
    options = shared.with_cpu_time(parser)
    torch.set_num_threads(options.threads)
    texts = sentences(options.data, 300 if options.quick else 4000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        members = checkpoints(folder)
        bundle = make_bundle(folder / "bundle", members)
        values = {"startup_seconds": min(startup(bundle) for _ in range(2))}
        small = Path(shutil.copytree(bundle, folder / "int8"))
        store_int8(small)
        values |= {"megabytes": megabytes(bundle), "int8_megabytes": megabytes(small)}
        runs = contenders(bundle, small, members, texts)
        values |= speeds(runs, rows=len(texts), turns=3 if options.quick else 5)
        labels = [runs[each]()["label"] for each in ("bundle_float32", "int8")]  # type: ignore[index]
        values["flipped_labels"] = float(np.mean([one != two for one, two in zip(*labels, strict=True)]))
    shared.show_results(values, TARGETS, options.json)


if __name__ == "__main__":
    main()
