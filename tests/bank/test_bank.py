from __future__ import annotations

import hashlib
import itertools
import json
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tutti.bank.bank import Bank
from tutti.errors import StorageError
from tutti.records import Predictions


@pytest.fixture(params=["folder", "uri", "subtree", "memory"])
def bank(request, tmp_path) -> Bank:
    if request.param == "folder":
        return Bank(tmp_path / "bank")
    if request.param == "uri":
        return Bank((tmp_path / "bank").as_uri())
    if request.param == "subtree":
        return Bank("", filesystem=fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()))
    return Bank("bucket/bank", filesystem=fs._MockFileSystem())


def same(left: Predictions, right: Predictions) -> bool:
    pairs = [(left.ids, right.ids), (left.probabilities, right.probabilities), (left.values, right.values)]
    pairs.append((left.labels, right.labels))
    return left.class_names == right.class_names and all(
        (a is None and b is None) or (a is not None and b is not None and np.array_equal(a, b) and a.dtype == b.dtype)
        for a, b in pairs
    )


def test_predictions_are_read_back_bit_by_bit(bank, predictions, record):
    validation, test = predictions(), predictions(rows=9, labelled=False, seed=1)
    bank.put(record(), {"emotion": {"validation": validation, "test-round1": test}})
    assert same(bank.predictions("t0000", "emotion", "validation"), validation)
    assert same(bank.predictions("t0000", "emotion", "test-round1"), test)
    assert bank.parts("t0000") == {"emotion": ["validation", "test-round1"]}
    assert bank.records() == [record()]


def test_values_of_a_regression_are_read_back_bit_by_bit(bank, record):
    rng = np.random.default_rng(0)
    ids, values = np.array(["a", "b", "好"], dtype=np.str_), rng.normal(2, 2, 3).astype(np.float32)
    held_out = Predictions(ids=ids, values=values, labels=np.array([0, 3.8, 5], dtype=np.float32))
    test = Predictions(ids=ids[:2], values=values[:2])
    bank.put(record(), {"STS-B": {"validation": held_out, "test": test}})
    assert same(bank.predictions("t0000", "STS-B", "validation"), held_out)
    assert same(bank.predictions("t0000", "STS-B", "test"), test)


def test_a_table_of_values_has_the_columns_that_its_docstring_names(tmp_path, record):
    one = Predictions(ids=np.array(["a"]), values=np.array([1.5], np.float32), labels=np.array([2], np.float32))
    Bank(tmp_path).put(record(), {"STS-B": {"validation": one}})
    schema = pq.read_schema(next(tmp_path.rglob("validation.parquet")))
    assert {field.name: str(field.type) for field in schema} == {"id": "string", "label": "float", "value": "float"}


def test_a_new_bank_is_empty_and_creates_no_folder(tmp_path):
    assert Bank(tmp_path / "bank").records() == []
    assert not (tmp_path / "bank").exists()


def test_records_come_by_trial_number(bank, predictions, record):
    for number in (10, 2, 7):
        bank.put(record(number), {"emotion": {"validation": predictions()}})
    assert [record.number for record in bank.records()] == [2, 7, 10]


def test_putting_a_key_again_replaces_it_whole(bank, predictions, record):
    old, new = predictions(), predictions(rows=3, seed=5)
    bank.put(record(score=0.5), {"emotion": {"validation": old, "test": old}, "topic": {"validation": old}})
    bank.put(record(score=0.7), {"emotion": {"validation": new}})
    assert bank.parts("t0000") == {"emotion": ["validation"]}
    assert same(bank.predictions("t0000", "emotion", "validation"), new)
    assert [record.score for record in bank.records()] == [0.7]


def test_a_replaced_entry_leaves_no_files_behind(tmp_path, predictions, record):
    bank = Bank(tmp_path)
    for _ in range(3):
        bank.put(record(), {"emotion": {"validation": predictions()}})
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["record.json", "validation.parquet"]


def test_a_removed_entry_is_gone_and_removing_it_again_is_no_error(bank, predictions, record):
    for number in (7, 8):
        bank.put(record(number), {"emotion": {"validation": predictions()}})
    for _ in range(2):
        bank.remove("t0007")
        assert [record.key for record in bank.records()] == ["t0008"]
    assert bank.leftovers() == []


def test_an_entry_without_metadata_is_ignored(tmp_path, predictions, record):
    bank = Bank(tmp_path)
    bank.put(record(0), {"emotion": {"validation": predictions()}})
    bank.put(record(1), {"emotion": {"validation": predictions()}})
    next(tmp_path.glob("t0000/*/record.json")).unlink()
    assert [record.key for record in bank.records()] == ["t0001"]
    with pytest.raises(StorageError, match=r"must hold checkpoint t0000; got only t0001"):
        bank.predictions("t0000", "emotion", "validation")


def test_a_trial_whose_only_record_is_cut_short_is_told_once(tmp_path, predictions, record, caplog):
    bank = Bank(tmp_path)
    for number in range(2):
        bank.put(record(number), {"emotion": {"validation": predictions()}})
    next(tmp_path.glob("t0000/*/record.json")).write_text("{")
    for _ in range(2):
        assert [record.key for record in bank.records()] == ["t0001"]
    assert caplog.text.count("trial t0000 has no vote until the file is restored from a copy") == 1


def test_metadata_cut_short_leaves_the_earlier_version_standing(tmp_path, predictions, record):
    bank = Bank(tmp_path)
    bank.put(record(), {"emotion": {"validation": predictions()}})
    earlier = next(tmp_path.glob("t0000/*"))
    later = shutil.copytree(earlier, tmp_path / "t0000" / "0002-abcdef01")
    content = (later / "record.json").read_bytes()
    (later / "record.json").write_bytes(content[: len(content) // 2])
    assert bank.records() == [record()]
    assert same(bank.predictions("t0000", "emotion", "validation"), predictions())
    bank.put(record(score=0.9), {"emotion": {"validation": predictions(seed=3)}})
    assert [record.score for record in bank.records()] == [0.9]
    assert len(list(tmp_path.glob("t0000/*"))) == 1


@pytest.mark.parametrize("damage", ["cut short", "one bit changed", "gone"])
def test_a_damaged_file_is_named_and_the_remedy_given(tmp_path, predictions, record, damage):
    bank = Bank(tmp_path)
    bank.put(record(), {"emotion": {"validation": predictions()}})
    file = next(tmp_path.rglob("*.parquet"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(content if damage == "one bit changed" else content[:40])
    with pytest.raises(StorageError) as error:
        bank.predictions("t0000", "emotion", "validation")
    assert str(file) in str(error.value)
    assert "or move the trial's folder out of the bank" in str(error.value)


def test_a_file_that_is_no_bank_table_is_a_storage_error_too(tmp_path, predictions, record):
    bank = Bank(tmp_path)
    bank.put(record(), {"emotion": {"validation": predictions()}})
    file, metadata = next(tmp_path.rglob("*.parquet")), next(tmp_path.rglob("record.json"))
    old = hashlib.sha256(file.read_bytes()).hexdigest()
    file.write_bytes(b"PAR1 of another kind PAR1")
    metadata.write_text(metadata.read_text().replace(old, hashlib.sha256(file.read_bytes()).hexdigest()))
    with pytest.raises(StorageError, match="a file that cannot be read"):
        bank.predictions("t0000", "emotion", "validation")


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda metadata: {}, "checkpoint (field required)"),
        (lambda metadata: None, "content (input should be a valid dictionary"),
        (lambda metadata: [], "content (input should be a valid dictionary"),
        (lambda metadata: {"checkpoint": metadata["checkpoint"]}, "predictions (field required)"),
        (lambda metadata: metadata | {"checkpoint": {"key": "t0000"}}, "checkpoint.number (field required)"),
        (
            lambda metadata: metadata | {"checkpoint": metadata["checkpoint"] | {"colour": 1}},
            "checkpoint.colour (unexpected keyword argument)",
        ),
        (
            lambda metadata: metadata | {"checkpoint": metadata["checkpoint"] | {"score": "high"}},
            "checkpoint.score (input should be a valid number",
        ),
        (
            lambda metadata: metadata | {"checkpoint": metadata["checkpoint"] | {"task_scores": {"emotion": None}}},
            "checkpoint.task_scores.emotion (input should be a valid number)",
        ),
        (
            lambda metadata: metadata | {"predictions": {"emotion": ["validation"]}},
            "predictions.emotion (input should be a valid dictionary)",
        ),
        (
            lambda metadata: metadata | {"predictions": {"emotion": {"validation": {"file": "a"}}}},
            "predictions.emotion.validation.sha256 (field required)",
        ),
    ],
)
def test_an_invalid_record_is_named_with_its_first_fault(tmp_path, predictions, record, change, got):
    bank = Bank(tmp_path)
    bank.put(record(), {"emotion": {"validation": predictions()}})
    file = next(tmp_path.rglob("record.json"))
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    for read in (bank.records, lambda: bank.parts("t0000"), bank.leftovers):
        with pytest.raises(StorageError) as error:
            read()
        assert str(error.value).startswith(f"{file} must be the record that the trial wrote; got {got}")
        assert "; restore the file" in str(error.value)
    bank.put(record(), {"emotion": {"validation": predictions()}})
    assert bank.records() == [record()]


@pytest.mark.parametrize("take", [shutil.copytree, shutil.move])
def test_a_folder_with_another_trial_s_record_is_refused_and_gives_no_second_vote(tmp_path, predictions, record, take):
    bank = Bank(tmp_path)
    bank.put(record(), {"emotion": {"validation": predictions()}})
    take(tmp_path / "t0000", tmp_path / "t0009")
    file = next((tmp_path / "t0009").rglob("record.json"))
    with pytest.raises(StorageError) as error:
        bank.records()
    assert str(error.value).startswith(f"{file} must be the record that the trial wrote; got the record of t0000")
    assert "or move the trial's folder out of the bank" in str(error.value)


def test_nothing_is_written_through_a_link_in_the_bank(tmp_path, predictions, record):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "bank").mkdir()
    (tmp_path / "bank" / record().key).symlink_to(tmp_path / "theirs")
    with pytest.raises(StorageError, match="must be a file or folder of the study itself; got a link to"):
        Bank(tmp_path / "bank").put(record(), {"emotion": {"validation": predictions()}})
    assert [*(tmp_path / "theirs").iterdir()] == []


def test_a_record_that_names_a_file_outside_of_the_bank_is_refused(tmp_path, predictions, record):
    bank = Bank(tmp_path / "bank")
    bank.put(record(), {"emotion": {"validation": predictions()}})
    [metadata] = (tmp_path / "bank").glob("*/*/record.json")
    metadata.write_text(metadata.read_text().replace("predictions/emotion/", "../../../emotion/"))
    with pytest.raises(StorageError, match="a path that leads out of the bank"):
        bank.records()


def test_a_record_without_a_parameter_count_is_read(tmp_path, predictions, record):
    bank = Bank(tmp_path)
    bank.put(record(), {"emotion": {"validation": predictions()}})
    file = next(tmp_path.rglob("record.json"))
    metadata = json.loads(file.read_text())
    del metadata["checkpoint"]["parameters"]
    file.write_text(json.dumps(metadata))
    assert bank.records() == [record()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probabilities": [[1.5, -0.5], [0.5, 0.5]]}, "must have probabilities from 0 to 1; got -0.5"),
        ({"labels": [0, 7]}, "must have labels from 0 to 1, one for each class; got 7"),
        ({"labels": [-1, 0]}, "must have labels from 0 to 1, one for each class; got -1"),
        ({"labels": [0.0, np.nan]}, "must have labels that are indices of classes; got labels of type float64"),
    ],
)
def test_invalid_probabilities_and_labels_are_refused(changes, message):
    arguments = {"probabilities": [[0.25, 0.75], [0.5, 0.5]], "labels": [0, 1], **changes}
    with pytest.raises(StorageError, match=message):
        Predictions(
            ids=np.array(["a", "b"]),
            probabilities=np.array(arguments["probabilities"], np.float32),
            labels=np.array(arguments["labels"]),
            class_names=("no", "yes"),
        )


def test_a_label_of_a_regression_is_a_finite_number():
    values = np.array([1, 2], np.float32)
    for labels in (np.array([1, np.nan], np.float32), np.array(["1", "2"])):
        with pytest.raises(StorageError, match="must have labels that are finite numbers"):
            Predictions(ids=np.array(["a", "b"]), values=values, labels=labels)


def test_a_part_that_is_not_there_is_named_with_those_that_are(bank, predictions, record):
    bank.put(record(), {"emotion": {"validation": predictions()}})
    with pytest.raises(StorageError, match="must hold emotion/test; got only emotion/validation"):
        bank.predictions("t0000", "emotion", "test")


def test_a_key_of_an_empty_bank_is_a_storage_error(bank):
    with pytest.raises(StorageError, match="must hold checkpoint t0003; got an empty bank"):
        bank.parts("t0003")


def test_an_entry_that_is_replaced_while_it_is_read_is_read_whole(tmp_path, predictions, record):
    bank = Bank(tmp_path)
    versions = [predictions(rows=50, seed=seed) for seed in range(2)]
    bank.put(record(), {"emotion": {"validation": versions[0]}})

    def replace() -> None:
        for turn in range(40):
            bank.put(record(), {"emotion": {"validation": versions[turn % 2]}})

    writer = threading.Thread(target=replace)
    writer.start()
    reads = 0
    while writer.is_alive() or not reads:
        assert len(bank.records()) == 1
        read = bank.predictions("t0000", "emotion", "validation")
        assert any(same(read, version) for version in versions)
        reads += 1
    writer.join()


@pytest.mark.parametrize("seen", [[], ["t0000"], ["t0000", "t0000/0001-going"]])
def test_a_listing_that_misses_both_the_old_and_the_new_version_of_an_entry_is_not_believed(
    tmp_path, predictions, record, monkeypatch, seen
):
    bank = Bank(tmp_path)
    bank.put(record(), {"emotion": {"validation": predictions()}})
    true = bank._paths
    for read in (bank.records, lambda: bank.predictions("t0000", "emotion", "validation"), lambda: bank.parts("t0000")):
        listings = [seen]
        monkeypatch.setattr(bank, "_paths", lambda under: listings.pop() if listings else true(under))  # noqa: B023
        assert read()


def test_an_entry_whose_versions_never_stay_is_a_storage_error(tmp_path, monkeypatch):
    bank, turns = Bank(tmp_path), itertools.count()
    monkeypatch.setattr(bank, "_paths", lambda under: ["t0000", f"t0000/{next(turns):04d}-going"])
    with pytest.raises(StorageError, match="must hold still while it is read"):
        bank.records()


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """The kernel refuses to write further than ``size`` bytes into any file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("kind", ["folder", "subtree"])
def test_a_failed_write_leaves_the_bank_unchanged(tmp_path, predictions, record, kind):
    local = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    bank = Bank(tmp_path) if kind == "folder" else Bank("", filesystem=local)
    bank.put(record(0), {"emotion": {"validation": predictions()}})
    before = sorted(tmp_path.rglob("*"))
    for number in (0, 1):
        parts = {"test": predictions(rows=3), "validation": predictions(rows=20_000)}
        with files_no_larger_than(100_000), pytest.raises(StorageError, match="be written whole"):
            bank.put(record(number, score=0.1), {"emotion": parts})
    assert bank.records() == [record(0)]
    assert same(bank.predictions("t0000", "emotion", "validation"), predictions())
    assert [path for path in sorted(tmp_path.rglob("*")) if path.is_file()] == [
        path for path in before if path.is_file()
    ]


_FILL = """
import sys
import threading
import numpy as np
from tutti.bank.bank import Bank
from tutti.errors import StorageError
from tutti.records import CheckpointRecord, Predictions
bank = Bank(sys.argv[1])
for number in range(100):
    values = np.random.default_rng(number).dirichlet(np.ones(5), size=500).astype(np.float32)
    part = Predictions(ids=np.arange(500).astype(str), probabilities=values, class_names=tuple("abcde"))
    try:
        bank.put(CheckpointRecord(f"t{number:04d}", number, 1, 0.5, {}, None), {"a": {"test": part}})
    except StorageError as error:
        print(error)
        break
for record in bank.records():
    bank.predictions(record.key, "a", "test")
print(len(bank.records()), number)
"""


def test_a_full_disk_is_reported_and_leaves_no_partial_entry(tmp_path):
    mount = f"mount -t tmpfs -o size=128k none {tmp_path}"
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "sh", "-c", mount]).returncode:
        pytest.skip("a small file system cannot be mounted here")
    command = f"{mount} && exec {sys.executable} -c '{_FILL}' {tmp_path}"
    run = subprocess.run(["unshare", "-rm", "sh", "-c", command], capture_output=True, text=True, check=True)
    message, counts = run.stdout.strip().split("\n")
    assert "No space left on device; free some space or name another folder" in message
    complete, refused = map(int, counts.split())
    assert complete == refused > 0


def test_tables_are_plain_parquet_that_any_tool_reads(tmp_path, predictions, record):
    expected = predictions()
    Bank(tmp_path).put(record(), {"emotion": {"validation": expected}})
    table = pq.read_table(next(tmp_path.rglob("*.parquet")))
    assert table.column_names == ["id", "label", "p0", "p1", "p2"]
    assert {str(table.schema.field(f"p{index}").type) for index in range(3)} == {"float"}
    assert json.loads(table.schema.metadata[b"tutti.classes"]) == ["happy", "sad", "生气"]


def test_regression_values_and_a_part_without_rows_come_back(bank, predictions, record):
    values = Predictions(
        ids=np.array(["a", "b"]), values=np.array([0.5, 4.0], np.float32), labels=np.array([1.0, 5.0], np.float32)
    )
    bank.put(record(), {"likeness": {"validation": values, "test": predictions(rows=0)}})
    assert same(bank.predictions("t0000", "likeness", "validation"), values)
    empty = bank.predictions("t0000", "likeness", "test")
    assert len(empty.ids) == 0
    assert empty.probabilities.shape == (0, 3)


def test_ids_and_names_keep_every_character(bank, record):
    ids = np.array(["", " 7 ", 'a"b', "行\u2028尾", "😀", "x" * 300])
    names = ("a|b", "c\td", "生气")
    part = Predictions(ids=ids, probabilities=np.full((6, 3), 1 / 3, np.float32), class_names=names)
    bank.put(record(), {"odd": {"test": part}})
    assert same(bank.predictions("t0000", "odd", "test"), part)


def test_a_uri_that_cannot_be_opened_is_named():
    with pytest.raises(StorageError, match="nowhere://bucket/bank"):
        Bank("nowhere://bucket/bank")


def test_a_root_that_is_a_file_is_a_storage_error(tmp_path: Path, predictions, record):
    (tmp_path / "bank").write_text("not a folder")
    with pytest.raises(StorageError):
        Bank(tmp_path / "bank").records()
    with pytest.raises(StorageError):
        Bank(tmp_path / "bank").put(record(), {"emotion": {"validation": predictions()}})
