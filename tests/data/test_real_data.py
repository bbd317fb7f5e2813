"""The data sets of a competition and of GLUE are prepared whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tutti.config.study import TaskConfig
from tutti.tasks.build import task_spec


def test_sts_b_is_prepared_whole(shared_data: Path, run_preparation: Any) -> None:
    folder = shared_data / "glue" / "STS-B"
    files = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
    values = {
        "layout": "glue",
        "metric": "pearson_spearman",
        **{key: str(folder / name) for key, name in files.items()},
    }
    prepared = run_preparation(task_spec("STS-B", TaskConfig.model_validate(values)))
    assert {part: info.rows for part, info in prepared.parts["STS-B"].items()} == {
        "train": 3000,
        "validation": 750,
        "test": 2000,
    }
    for part in ("train", "validation"):
        labels = prepared.rows("STS-B", part)["label"]
        assert (labels.dtype, labels.min(), labels.max()) == (np.float32, 0, 5)
    assert prepared.rows("STS-B", "train")["label"].tolist()[:2] == [4, np.float32(3.8)]
    text = " ".join(prepared.rows("STS-B", "train")["text"])
    assert '"' in text
    ids = prepared.ids("STS-B", "test").tolist()
    assert ids == [str(number) for number in range(2000)]


def test_the_competition_is_prepared_whole(shared_data: Path, run_preparation: Any) -> None:
    folder = shared_data / "tianchi"
    emotion = TaskConfig.model_validate(
        {
            "layout": "competition",
            "train": str(folder / "EMOTION_train.csv"),
            "test": {"main": str(folder / "EMOTION_test.csv"), "b": str(folder / "round2" / "ocemotion_test_B.csv")},
            "cleaning": {"emoji": "zh", "emoticons": True, "repeated_punctuation": True, "broken_rows": True},
        }
    )
    news = TaskConfig.model_validate(
        {
            "layout": "competition",
            "train": str(folder / "TNEWS_train.csv"),
            "test": str(folder / "TNEWS_test.csv"),
            "unlabeled": str(folder / "TNEWS_unlabeled.csv"),
        }
    )
    prepared = run_preparation(task_spec("EMOTION", emotion), task_spec("TNEWS", news), validation=0.1)
    counts = {task: {part: info.rows for part, info in parts.items()} for task, parts in prepared.parts.items()}
    assert counts["EMOTION"]["train"] + counts["EMOTION"]["validation"] == 10606
    assert counts["TNEWS"]["train"] + counts["TNEWS"]["validation"] == 2283
    assert (counts["EMOTION"]["test-main"], counts["EMOTION"]["test-b"]) == (3000, 1500)
    assert (counts["TNEWS"]["test"], counts["TNEWS"]["unlabeled"]) == (2010, 20000)
    assert [len(task.names) for task in prepared.tasks] == [6, 15]
    assert set(prepared.rows("TNEWS", "validation")["label"]) == set(range(15))
