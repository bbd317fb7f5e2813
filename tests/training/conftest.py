from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from training_runs import EMA_AND_DROPOUT, TRAINING, Tune

from tutti.data.encode import EncodedPart
from tutti.tasks.task import Task
from tutti.training import EpochReport, FineTuned, fine_tune


@pytest.fixture(scope="session")
def steady_backbone(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The backbone without dropout, so that runs with different batches can be compared."""
    folder = tmp_path_factory.mktemp("steady") / "backbone"
    shutil.copytree(backbone, folder)
    config = json.loads((folder / "config.json").read_text())
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps({**config, **off}))
    return folder


@pytest.fixture(scope="session")
def tasks() -> tuple[Task, ...]:
    return (
        Task(name="news.v1", names=("100", "101", "102"), pair=False, metric="macro_f1", submission="csv"),
        Task(name="mood", names=("no", "yes"), pair=False, metric="accuracy", submission="csv"),
    )


MakePart = Callable[..., EncodedPart]


@pytest.fixture(scope="session")
def make_part() -> MakePart:
    """Makes rows of random words. The first word determines the class, so that it can be learnt."""

    def make(rows: int, *, classes: int, seed: int, labelled: bool = True, weighted: bool = False) -> EncodedPart:
        generator = np.random.default_rng(seed)
        labels = generator.integers(classes, size=rows)
        tokens = [
            [2, 4 + int(label), *generator.integers(10, 64, size=generator.integers(1, 12)).tolist(), 3]
            for label in labels
        ]
        lengths = np.array([len(row) for row in tokens], dtype=np.int32)
        features = datasets.Features(
            {"input_ids": datasets.List(datasets.Value("int32")), "length": datasets.Value("int32")}
        )
        return EncodedPart(
            ids=np.array([f"{seed}-{row}" for row in range(rows)]),
            encoded=datasets.Dataset.from_dict({"input_ids": tokens, "length": lengths}, features=features),
            lengths=lengths,
            labels=labels.astype(np.int64) if labelled else None,
            weights=generator.uniform(0.2, 1, rows).astype(np.float32) if weighted else np.ones(rows, np.float32),
            pad_token_id=0,
        )

    return make


@pytest.fixture(scope="session")
def parts(tasks: tuple[Task, ...], make_part: MakePart) -> dict[str, dict[str, EncodedPart]]:
    return {
        task.name: {
            "train": make_part(rows, classes=len(task.names), seed=rows, weighted=True),
            "validation": make_part(30, classes=len(task.names), seed=rows + 1),
            "test": make_part(11, classes=len(task.names), seed=rows + 2, labelled=False),
        }
        for task, rows in zip(tasks, (53, 37), strict=True)
    }


@pytest.fixture(scope="session")
def make_tune(tasks: tuple[Task, ...], parts: dict[str, dict[str, EncodedPart]]) -> Callable[..., Tune]:
    """Makes a function that calls fine_tune with these default training keys, and returns its result and reports.

    The function takes the folder and further training keys, of which None removes a default. With ``stop_after``, the
    run ends with an InterruptedError after this evaluation.
    """

    def make(backbone: Path, **defaults: Any) -> Tune:
        def tune(
            folder: Path,
            *,
            stop_after: int = 0,
            tasks: Sequence[Task] = tasks,
            parts: Mapping[str, Mapping[str, EncodedPart]] = parts,
            on_notice: Callable[[str], None] = lambda text: None,
            until: int | None = None,
            **training: Any,
        ) -> tuple[FineTuned, list[EpochReport]]:
            reports: list[EpochReport] = []

            def on_epoch(report: EpochReport) -> None:
                reports.append(report)
                if report.epoch == stop_after:
                    raise InterruptedError

            tuned = fine_tune(
                backbone=str(backbone),
                tasks=tasks,
                parts=parts,
                training={key: value for key, value in {**defaults, **training}.items() if value is not None},
                folder=folder,
                on_epoch=on_epoch,
                on_notice=on_notice,
                key="t0003",
                number=3,
                until=until,
            )
            return tuned, reports

        return tune

    return make


@pytest.fixture(scope="session")
def tune(make_tune: Callable[..., Tune], backbone: Path) -> Tune:
    return make_tune(backbone, **TRAINING)


@pytest.fixture(scope="session")
def whole(tune: Tune, tmp_path_factory: pytest.TempPathFactory) -> tuple[FineTuned, list[EpochReport], Path]:
    """An uninterrupted run of three epochs, with weight average and dropout."""
    folder = tmp_path_factory.mktemp("whole")
    return *tune(folder, **EMA_AND_DROPOUT), folder
