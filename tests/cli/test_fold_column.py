"""A study whose folds are a column of its table: their number follows from the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tutti.config.load import parse_study
from tutti.errors import StudyError
from tutti.workflows import stores
from tutti.workflows.base import StudyBase
from tutti.workflows.preparation import prepare_study, with_folds


def test_the_number_of_folds_follows_from_the_rows_and_stays_when_the_study_is_resumed(make_study, tmp_path: Path):
    rows = [f"w{n % 9} w{n},{'ab'[n % 2]},{n // 2 % 3}" for n in range(24)]
    (tmp_path / "topic.csv").write_text("\n".join(["text,label,part", *rows]) + "\n")
    tasks = {"topic": {"layout": "table", "train": str(tmp_path / "topic.csv")}}
    file = make_study(tmp_path, tasks=tasks, split={"fold_column": "part"}).file
    study, folder = stores.read_study_file(file, overrides=[])
    assert study.split.folds is None
    prepared = prepare_study(StudyBase(study, folder), resume=False)
    assert prepared.folds("topic").tolist() == [n // 2 % 3 for n in range(24)]
    assert parse_study(folder.study_file) == with_folds(study, 3)
    folder.optuna_file.touch()  # it has begun
    assert prepare_study(StudyBase(study, folder), resume=True) == prepared
    other, _ = stores.read_study_file(file, overrides=["split.fold_column=label"])
    with pytest.raises(StudyError, match=r"^split\.fold_column of the study"):
        prepare_study(StudyBase(other, folder), resume=True)
