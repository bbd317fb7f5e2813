"""A student: a study whose smaller encoder learns from the soft labels of another study's ensemble."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from word_backbone import save_bert, save_tokenizer

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder
from tutti.config.recipe import Recipe
from tutti.config.study import StudyConfig
from tutti.orchestration.before.abilities import abilities_of
from tutti.orchestration.before.rows import encode_study, prepare_rows
from tutti.orchestration.worker.build import fine_tune_once
from tutti.orchestration.worker.trial_listener import TrialListener
from tutti.workflows.base import StudyBase
from tutti.workflows.pseudo import make_pseudo_labels

WORDS = [f"w{number}" for number in range(60)]
CLASSES = ("calm", "glad", "sad")
OTHERS = WORDS[20:]  # words of no class


def write_rows(path: Path, rows: int, *, telling: bool = True, labelled: bool = True) -> np.ndarray:
    """Writes rows, of which one word tells the class if ``telling``: one of six for each class. Returns the classes."""
    rng = np.random.default_rng(rows)
    truth = np.arange(rows) % len(CLASSES)
    lines = []
    for row, label in enumerate(truth):
        first = WORDS[6 * label + rng.integers(6)] if telling else rng.choice(OTHERS)
        text = " ".join([first, *rng.choice(OTHERS, size=4)])
        lines.append("\t".join([f"{path.stem}-{row}", text, *([CLASSES[label]] if labelled else [])]))
    path.write_text("\n".join(lines) + "\n", encoding="utf8")
    return truth


def tuned(folder: Path, *, backbone: Path, epochs: int, seeds: int, files: dict[str, Any]) -> StudyBase:
    """A study whose trials, one for each seed, were trained in this process."""
    config = StudyConfig.model_validate(
        {
            "study": folder.name,
            "backbone": str(backbone),
            "tasks": {"mood": {"layout": "competition", "metric": "macro_f1", **files}},
            "training": {
                "num_train_epochs": epochs,
                "per_device_train_batch_size": 8,
                "learning_rate": 5e-3,
                "max_length": 16,
                "pooling": "mean",
                "bf16": False,
            },
        }
    )
    study = StudyFolder(folder)
    prepared = prepare_rows(config, study)
    encode_study(config, study, prepared, abilities_of(config.backbone))
    for seed in range(seeds):
        fine_tune_once(
            config,
            study,
            key=f"t{seed:04d}",
            number=seed,
            parameters={"seed": seed},
            listener=TrialListener(),
            main=True,
            smaller_batches=False,
        )
    return StudyBase(config, study)


def predicted(study: StudyBase) -> np.ndarray:
    """The classes of the test rows by the mean of the study's trials."""
    bank = Bank(study.folder.bank)
    each = [bank.predictions(trial.key, "mood", "test").outputs for trial in bank.records()]
    return np.mean(each, axis=0).argmax(axis=1)


@pytest.mark.slow
@pytest.mark.strain
def test_a_smaller_student_learns_from_soft_labels_what_its_own_rows_do_not_tell(tmp_path: Path) -> None:
    for name, shape in {"large": {}, "small": {"num_hidden_layers": 1, "hidden_size": 16}}.items():
        save_tokenizer(tmp_path / name, WORDS)
        save_bert(tmp_path / name, **shape)
    write_rows(tmp_path / "train.tsv", 90)
    write_rows(tmp_path / "dev.tsv", 45)
    write_rows(tmp_path / "own.tsv", 12, telling=False)
    write_rows(tmp_path / "unlabeled.tsv", 300, labelled=False)
    truth = write_rows(tmp_path / "test.tsv", 120, labelled=False)
    files = {"validation": str(tmp_path / "dev.tsv"), "test": str(tmp_path / "test.tsv")}

    teachers_files = files | {"train": str(tmp_path / "train.tsv"), "unlabeled": str(tmp_path / "unlabeled.tsv")}
    teachers = tuned(tmp_path / "teachers", backbone=tmp_path / "large", epochs=10, seeds=2, files=teachers_files)
    recipe = Recipe.model_validate({"pseudo_labels": {"select": "all", "labels": "soft"}})
    make_pseudo_labels(
        {"teachers": teachers}, rows_of="teachers", recipe=recipe, recipe_name="soft", out=tmp_path / "labels"
    ).write()
    soft = {"path": str(tmp_path / "labels" / "mood.soft.parquet"), "labels": "soft"}
    students_files = files | {"train": str(tmp_path / "own.tsv"), "extra_train": [soft]}
    student = tuned(tmp_path / "student", backbone=tmp_path / "small", epochs=4, seeds=1, files=students_files)

    assert np.mean(predicted(student) == predicted(teachers)) > 0.9
    assert np.mean(predicted(student) == truth) > 0.9  # by chance 1 / 3
