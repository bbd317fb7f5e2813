from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tutti.bank.bank import Bank
from tutti.errors import StorageError
from tutti.tasks.predictions import Predictions


@pytest.fixture(params=["folder", "uri", "subtree", "memory"])
def bank(request, tmp_path) -> Bank:
    if request.param == "folder":
        return Bank(tmp_path / "bank")
    if request.param == "uri":
        return Bank((tmp_path / "bank").as_uri() + "/")
    if request.param == "subtree":
        return Bank("", filesystem=fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()))
    return Bank("bucket/bank/", filesystem=fs._MockFileSystem())


def same(left: Predictions, right: Predictions) -> bool:
    pairs = [(left.ids, right.ids), (left.outputs, right.outputs)]
    pairs.append((left.labels, right.labels))
    return left.names == right.names and all(
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
    held_out = Predictions(ids=ids, outputs=values, labels=np.array([0, 3.8, 5], dtype=np.float32))
    test = Predictions(ids=ids[:2], outputs=values[:2])
    bank.put(record(), {"STS-B": {"validation": held_out, "test": test}})
    assert same(bank.predictions("t0000", "STS-B", "validation"), held_out)
    assert same(bank.predictions("t0000", "STS-B", "test"), test)


def test_a_table_of_values_has_the_columns_that_its_docstring_names(tmp_path, record):
    one = Predictions(ids=np.array(["a"]), outputs=np.array([1.5], np.float32), labels=np.array([2], np.float32))
    Bank(tmp_path).put(record(), {"STS-B": {"validation": one}})
    schema = pq.read_schema(next(tmp_path.rglob("validation.parquet")))
    assert {field.name: str(field.type) for field in schema} == {"id": "string", "label": "float", "value": "float"}


def test_a_new_bank_is_empty_and_creates_no_folder(tmp_path):
    assert Bank(tmp_path / "bank").records() == []
    assert not (tmp_path / "bank").exists()


def test_a_bank_named_by_a_relative_path_stays_where_it_was(tmp_path, predictions, record, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bank = Bank("bank")
    bank.put(record(), {"emotion": {"validation": predictions()}})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert bank.records() == [record()]
    assert same(bank.predictions("t0000", "emotion", "validation"), predictions())


def test_records_come_by_trial_number(bank, predictions, record):
    for number in (10, 2, 7):
        bank.put(record(number), {"emotion": {"validation": predictions()}})
    assert [record.number for record in bank.records()] == [2, 7, 10]
    assert [record.key for record in bank.records(["t0010", "t0003", "t0002"])] == ["t0002", "t0010"]


def test_a_checkpoint_whose_weights_were_removed_keeps_its_vote(bank, predictions, record):
    bank.put(record(), {"emotion": {"validation": predictions()}})
    bank.forget_weights("t0000")
    assert bank.records() == [replace(record(), path=None)]
    assert same(bank.predictions("t0000", "emotion", "validation"), predictions())


@pytest.mark.parametrize("names", [("../t0000", "a", "b"), ("t0000", "../a", "b"), ("t0000", "a", "../b")])
def test_a_name_that_leads_elsewhere_is_refused_before_anything_is_written(tmp_path, predictions, record, names):
    key, task, part = names
    with pytest.raises(StorageError, match="be a plain name in the bank"):
        Bank(tmp_path / "bank").put(replace(record(), key=key), {task: {part: predictions()}})
    assert [*tmp_path.iterdir()] == []


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


def test_of_versions_left_side_by_side_the_newest_counts(tmp_path, predictions, record):
    bank = Bank(tmp_path / "bank")
    for key, number in (("t0001", 1), ("t0000", 0)):
        bank.put(replace(record(number, score=0.5), key=key), {"emotion": {"validation": predictions()}})
        [old] = (tmp_path / "bank" / key).iterdir()
        kept = shutil.copytree(old, tmp_path / key)
        bank.put(record(number, score=0.7), {"emotion": {"validation": predictions(seed=5)}})
        shutil.copytree(kept, old)
        (tmp_path / "bank" / key / "0009-cut00000").mkdir()  # without a record
        (tmp_path / "bank" / key / "notes").mkdir()
    assert [record.score for record in bank.records()] == [0.7, 0.7]
    versions = [[path[:10] for path in bank.leftovers() if path.startswith(key)] for key in ("t0000", "t0001")]
    assert versions == [["t0000/0001", "t0000/0009"], ["t0001/0001", "t0001/0009"]]
    assert bank.leftovers() == sorted(bank.leftovers())
    for folder in bank.leftovers():
        bank.discard(folder)
    assert bank.leftovers() == []
    with pytest.raises(StorageError, match="be removed"):
        bank.discard(folder)
    assert same(bank.predictions("t0000", "emotion", "validation"), predictions(seed=5))


def test_a_removed_entry_is_gone_and_removing_it_again_is_no_error(bank, predictions, record):
    for number in (7, 8):
        bank.put(record(number), {"emotion": {"validation": predictions()}})
    for _ in range(2):
        bank.remove("t0007")
        assert [record.key for record in bank.records()] == ["t0008"]
    assert bank.leftovers() == []


def test_nothing_is_written_through_a_link_in_the_bank(tmp_path, predictions, record):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "bank").mkdir()
    (tmp_path / "bank" / record().key).symlink_to(tmp_path / "theirs")
    with pytest.raises(StorageError, match="must be a file or folder of the study itself; got a link to"):
        Bank(tmp_path / "bank").put(record(), {"emotion": {"validation": predictions()}})
    assert [*(tmp_path / "theirs").iterdir()] == []


def test_a_part_that_is_not_there_is_named_with_those_that_are(bank, predictions, record):
    bank.put(record(), {"emotion": {"validation": predictions()}})
    with pytest.raises(StorageError, match="must hold emotion/test; got only emotion/validation"):
        bank.predictions("t0000", "emotion", "test")
    bank.put(record(), {})
    with pytest.raises(StorageError, match="got only nothing"):
        bank.predictions("t0000", "emotion", "test")


def test_a_key_of_an_empty_bank_is_a_storage_error(bank):
    with pytest.raises(StorageError, match="must hold checkpoint t0003; got an empty bank"):
        bank.parts("t0003")


def test_an_entry_that_is_replaced_while_it_is_read_is_read_whole_or_not_at_all(tmp_path, predictions, record):
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
        with suppress(StorageError):
            assert len(bank.records()) <= 1
            read = bank.predictions("t0000", "emotion", "validation")
            assert any(same(read, version) for version in versions)
            reads += 1
    writer.join()


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


def test_a_put_that_fails_before_it_is_whole_leaves_nothing(tmp_path, predictions, record):
    bank = Bank(tmp_path)
    with pytest.raises(AttributeError):
        bank.put(record(), {"emotion": {"validation": predictions(), "test": None}})
    assert (bank.leftovers(), [*tmp_path.rglob("*.parquet")]) == ([], [])


_FILL = """
import sys
import threading
import numpy as np
from tutti.bank.bank import Bank
from tutti.errors import StorageError
from tutti.records import CheckpointRecord
from tutti.tasks.predictions import Predictions
bank = Bank(sys.argv[1])
for number in range(100):
    values = np.random.default_rng(number).dirichlet(np.ones(5), size=500).astype(np.float32)
    part = Predictions(ids=np.arange(500).astype(str), outputs=values, names=tuple("abcde"))
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


def test_a_part_without_rows_comes_back(bank, predictions, record):
    bank.put(record(), {"emotion": {"test": predictions(rows=0)}})
    assert same(bank.predictions("t0000", "emotion", "test"), predictions(rows=0))


def test_ids_and_names_keep_every_character(bank, record):
    ids = np.array(["", " 7 ", 'a"b', "行\u2028尾", "😀", "x" * 300])
    names = ("a|b", "c\td", "生气")
    part = Predictions(ids=ids, outputs=np.full((6, 3), 1 / 3, np.float32), names=names)
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
