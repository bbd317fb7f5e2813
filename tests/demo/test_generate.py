"""The demo's data: seeded, in the competition layout, without test labels or repeated texts, with a valid study."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tutti.config.load import load_study
from tutti.demo.generate import write_demo_data
from tutti.demo.words import FEELINGS, TOPICS
from tutti.errors import StudyError
from tutti.files import sha256_of

TASKS = {"inference": 4, "emotion": 3, "topic": 3}  # columns of a training row
CLASSES = {
    "inference": {"entailment", "neutral", "contradiction"},
    "emotion": {"sadness", "happiness", "like", "anger", "fear", "surprise", "disgust"},
    "topic": {"100", "101", "102", "103", "104", "106", "107", "108", "109", "110", "112", "113", "114", "115", "116"},
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_data(tmp_path_factory.mktemp("demo") / "data").parent


def rows(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("task", TASKS)
def test_files_are_in_the_competitions_layout(demo: Path, task: str) -> None:
    for name, columns in (
        (f"{task}_train", TASKS[task]),
        (f"{task}_test", TASKS[task] - 1),
        (f"truth/{task}", TASKS[task]),
    ):
        table = rows(demo / f"{name}.csv")
        assert {len(row) for row in table} == {columns}
        assert [row[0] for row in table] == [str(number) for number in range(len(table))]
        assert all(cell for row in table for cell in row)


@pytest.mark.parametrize("task", TASKS)
def test_every_class_has_enough_training_rows(demo: Path, task: str) -> None:
    counts = Counter(row[-1] for row in rows(demo / f"{task}_train.csv"))
    assert set(counts) == CLASSES[task]
    assert min(counts.values()) >= 30


@pytest.mark.parametrize("task", TASKS)
def test_the_truth_has_the_texts_of_the_test_rows(demo: Path, task: str) -> None:
    assert [row[:-1] for row in rows(demo / "truth" / f"{task}.csv")] == rows(demo / f"{task}_test.csv")


@pytest.mark.parametrize("task", TASKS)
def test_the_texts_of_a_task_are_all_different(demo: Path, task: str) -> None:
    texts = [
        tuple(row[1 : TASKS[task] - 1])
        for part in ("train", "test", "unlabeled")
        for row in rows(demo / f"{task}_{part}.csv")
    ]
    assert len(set(texts)) == len(texts)


def test_each_word_belongs_to_one_class() -> None:
    for lists in (FEELINGS, TOPICS):
        words = [word for group in lists.values() for word in group]
        assert len(set(words)) == len(words)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(demo: Path, tmp_path: Path) -> None:
    again, other = write_demo_data(tmp_path / "again").parent, write_demo_data(tmp_path / "other", seed=1).parent
    files = sorted(str(file.relative_to(demo)) for file in demo.rglob("*.*"))
    assert len(files) == 15
    assert [sha256_of(demo / file) for file in files] == [sha256_of(again / file) for file in files]
    assert sha256_of(demo / "topic_train.csv") != sha256_of(other / "topic_train.csv")


def test_its_study_is_valid_once_the_backbone_exists(demo: Path) -> None:
    (demo / "backbone").mkdir()
    config = load_study(demo / "study.yaml")
    assert config.study == "demo"
    assert config.search.trials >= 6
    assert config.backbone == str(demo / "backbone")
    assert set(config.tasks) == set(TASKS)
    assert "learning_rate" in config.search_space.root


@pytest.mark.parametrize("task", ["emotion", "topic", "inference"])
def test_a_bag_of_words_learns_the_task_only_partly(demo: Path, task: str) -> None:
    """Words alone solve part of each task; the rest needs word order and matching of the two texts."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score

    train, test = rows(demo / f"{task}_train.csv"), rows(demo / "truth" / f"{task}.csv")
    words = CountVectorizer(token_pattern=r"\S+")
    model = LogisticRegression(max_iter=500).fit(
        words.fit_transform([" ".join(row[1:-1]) for row in train]), [row[-1] for row in train]
    )
    predicted = model.predict(words.transform([" ".join(row[1:-1]) for row in test]))
    assert 0.4 < f1_score([row[-1] for row in test], predicted, average="macro") < 0.85


def test_the_demo_goes_on_with_its_own_seed_only(tmp_path: Path) -> None:
    from tutti.workflows.demo import run_demo

    write_demo_data(tmp_path / "data", seed=3)
    with pytest.raises(StudyError, match="got 1 where it was 3; give --seed 3 to go on there, or another folder"):
        run_demo(out=tmp_path, seed=1)
    assert not (tmp_path / "studies").exists()


def test_the_demo_stays_in_its_folder_whatever_the_folder_is_called(tmp_path: Path) -> None:
    from tutti.workflows.demo import _study_in

    out = tmp_path / "a #b: [c"
    write_demo_data(out / "data")
    (out / "data" / "backbone").mkdir()
    study, folder = _study_in(out)
    assert study.storage.path == out / "studies"
    assert folder.path == out / "studies" / "demo"
