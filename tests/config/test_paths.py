"""Paths of a study file are told from names, start at its folder, and must be there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tutti.config.folder import find_study, studies_folder
from tutti.config.load import dump_study, load_study
from tutti.errors import StudyError

Changed = Callable[..., Path]
Faults = Callable[..., list[str]]


def test_paths_in_home_named_sets_extra_rows_and_storage_are_resolved(changed, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "data"))
    path = changed(
        "    test: data/topic_test.csv",
        "    test: {first: ~/topic_test.csv}\n    extra_train: [{path: data/topic_train.csv, weight: 0.5}]",
        add="storage: {path: ../studies}\n",
    )
    config = load_study(path)
    assert config.tasks["topic"].test_sets() == {"test-first": str(tmp_path / "data" / "topic_test.csv")}
    assert config.tasks["topic"].extra_train[0].path == tmp_path / "data" / "topic_train.csv"
    assert config.storage.path == tmp_path.parent / "studies"


def test_environment_variables_in_paths_are_replaced_and_must_be_set(changed, faults, tmp_path, monkeypatch):
    monkeypatch.setenv("TUTTI_TEST_DATA", str(tmp_path / "data"))
    storage = "storage: {path: $TUTTI_TEST_DATA/a$b}\n"
    path = changed("data/topic_test.csv", "${TUTTI_TEST_DATA}/topic_test.csv", add=storage)
    config = load_study(path)
    assert config.tasks["topic"].test_sets() == {"test": str(tmp_path / "data" / "topic_test.csv")}
    assert config.storage.path == tmp_path / "data" / "a$b"
    monkeypatch.delenv("TUTTI_TEST_DATA")
    told = [message.partition(": ")[2] for message in faults(path)]
    assert [text.partition(" must ")[0] for text in told] == ["storage.path", "tasks.topic.test"]
    assert all(text.endswith("set TUTTI_TEST_DATA, or write the path out.") for text in told)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("backbone: backbone/", "backbone: s3://bucket/backbone", "backbone"),
        ("data/topic_train.csv", "gs://bucket/train.csv", "tasks.topic.train"),
        ("", "storage: {path: 'ftp://host/studies'}\n", "storage.path"),
        ("", "storage: {path: 's3://key:secret@bucket/studies'}\n", "storage.path"),
        ("", "tracking: {uri: 'sqlite:///s3://bucket/mlflow.db'}\n", "tracking.uri"),
        ("", "search: {warm_start: ['ftp://host/older']}\n", "search.warm_start.0"),
        ("", "ensemble: {recipe: 's3://bucket/recipe.yaml'}\n", "ensemble.recipe"),
    ],
)
def test_an_address_where_a_path_has_to_be_is_told_and_names_no_folder(faults, changed, old, new, key):
    path = changed(old, new) if old else changed("", "", add=new)
    [message] = faults(path)
    assert message.startswith(f"{path}: {key} must be a path, of a disk or of mounted storage; got the address ")


def test_no_study_is_looked_for_or_made_at_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StudyError, match=r"got the address ftp://host/studies/s; mount that storage"):
        find_study("ftp://host/studies/s")
    with pytest.raises(StudyError, match=r"the study must be named below a bucket; got s3://bucket;"):
        find_study("s3://bucket")
    monkeypatch.setenv("TUTTI_STUDIES", "file:///mnt/studies")
    with pytest.raises(StudyError, match=r"\$TUTTI_STUDIES must be a path, .* write the path alone"):
        studies_folder()


def test_a_missing_folder_and_a_folder_in_place_of_a_file_are_told(faults: Faults, changed: Changed) -> None:
    path = changed("data/topic_train.csv", "dta/topic_train.csv")
    assert f"of which only the folder '{path.parent}' exists" in faults(path)[0]
    changed("dta/topic_train.csv", "data")
    assert "tasks.topic.train must be a file; got the folder" in faults(path)[0]


@pytest.mark.parametrize("name", ["x" * 300, "a\\0b"])
def test_a_file_name_that_the_system_refuses_is_told(faults: Faults, changed: Changed, name: str) -> None:
    path = changed("data/topic_train.csv", f'"{name}"')
    assert [messages.split(" must ")[0] for messages in faults(path)] == [f"{path}: tasks.topic.train"]
    changed(f'"{name}"', "data/topic_train.csv")
    assert "backbone must be an existing folder" in faults(changed("backbone: backbone/", f'backbone: "./{name}"'))[0]


@pytest.mark.parametrize("backbone", ["bert-base-chinese", "hfl/chinese-roberta-wwm-ext-large"])
def test_a_hub_id_is_left_alone_also_beside_a_folder_of_its_organization(changed: Changed, backbone: str) -> None:
    Path("hfl", "another-model").mkdir(parents=True, exist_ok=True)
    assert load_study(changed("backbone/", backbone)).backbone == backbone


@pytest.mark.parametrize(
    "backbone", ["./bert", "/no/such/bert", "bakbone/", "~nobody/bert", "''", "a/b/c", "no such id"]
)
def test_a_backbone_that_looks_like_a_path_must_be_there(faults: Faults, changed: Changed, backbone: str) -> None:
    path = changed("backbone: backbone/", f"backbone: {backbone}")
    messages = faults(path)
    assert len(messages) == 1
    assert messages[0].startswith(
        f"{path}: backbone must be an existing folder, or an id of the Hugging Face hub; got "
    )
    assert ("did you mean 'backbone'?" in messages[0]) == (backbone == "bakbone/")


def test_names_of_a_hub_tasks_splits_are_no_paths(changed: Changed) -> None:
    path = changed("layout: competition", "layout: hub\n    dataset: data")
    task = load_study(path).tasks["topic"]
    assert task.train == "data/topic_train.csv"
    assert task.dataset == str(path.parent / "data")


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("sqlite:///mlflow.db", "sqlite:///{folder}/mlflow.db"),
        ("sqlite+pysqlite:///runs/m.db?timeout=5", "sqlite+pysqlite:///{folder}/runs/m.db?timeout=5"),
        ("sqlite:////srv/mlflow.db", "sqlite:////srv/mlflow.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("file:runs", "file:{folder}/runs"),
        ("file:///srv/runs", "file:///srv/runs"),
        ("http://mlflow:5000", "http://mlflow:5000"),
        ("postgresql+psycopg2://me:pw@db/mlflow", "postgresql+psycopg2://me:pw@db/mlflow"),
        ("databricks", "databricks"),
        ("databricks://profile", "databricks://profile"),
    ],
)
def test_an_mlflow_store_in_a_file_lies_beside_the_study_file(changed: Changed, uri: str, expected: str) -> None:
    path = changed(add=f"tracking: {{uri: '{uri}'}}\n")
    assert load_study(path).tracking.uri == expected.format(folder=path.parent)


def test_what_is_below_storage_that_is_not_mounted_here_is_left_for_the_cluster_to_check(changed, faults, tmp_path):
    mount = tmp_path / "mnt" / "studies"
    changed("backbone: backbone/", f"backbone: {mount}/bert")
    changed("    test: data/topic_test.csv", f"    test: {mount}/data/topic_test.csv")
    path = changed(add=f"storage: {{path: {mount}}}\nsearch: {{warm_start: [older, {mount}/first]}}\n")
    assert len(faults(path)) == 4  # `tutti tune` runs here
    config = load_study(path, shared=True)
    assert config.backbone == str(mount / "bert")
    assert config.tasks["topic"].test_sets() == {"test": str(mount / "data" / "topic_test.csv")}
    assert config.search.warm_start == (str(mount / "older"), str(mount / "first"))
    assert [fault.split(" must")[0] for fault in faults(changed("data/topic_train.csv", "lost.csv"), shared=True)] == [
        f"{path}: tasks.topic.train"
    ]
    changed("lost.csv", "data/topic_train.csv")
    older = tmp_path / "older"
    older.mkdir()
    (older / "study.json").write_text(dump_study(config))
    assert load_study(path, shared=True).search.warm_start[0] == str(older)  # one that is here is shipped
    mount.mkdir(parents=True)  # mounted: now they must be there
    assert len(faults(path, shared=True)) == 3
