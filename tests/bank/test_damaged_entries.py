"""Entries of a bank that a kill left incomplete, or that were edited or damaged since."""

from __future__ import annotations

import hashlib
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tutti.bank.bank import Bank
from tutti.errors import StorageError


def test_an_entry_without_metadata_is_ignored(tmp_path, predictions, record):
    bank = Bank(tmp_path)
    bank.put(record(0), {"emotion": {"validation": predictions()}})
    bank.put(record(1), {"emotion": {"validation": predictions()}})
    next(tmp_path.glob("t0000/*/record.json")).unlink()
    assert [record.key for record in bank.records()] == ["t0001"]
    with pytest.raises(StorageError, match=r"must hold checkpoint t0000; got only t0001"):
        bank.predictions("t0000", "emotion", "validation")


def test_metadata_cut_short_leaves_the_earlier_version_standing(tmp_path, predictions, record):
    bank = Bank(tmp_path)
    bank.put(record(), {"emotion": {"validation": predictions()}})
    earlier = next(tmp_path.glob("t0000/*"))
    later = shutil.copytree(earlier, tmp_path / "t0000" / "0002-abcdef01")
    content = (later / "record.json").read_bytes()
    (later / "record.json").write_bytes(content[: len(content) // 2])
    assert bank.records() == [record()]
    standing = bank.predictions("t0000", "emotion", "validation")
    assert np.array_equal(standing.outputs, predictions().outputs)
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
    for read in (lambda: bank.predictions("t0000", "emotion", "validation"), lambda: bank.check("t0000")):
        with pytest.raises(StorageError) as error:
            read()
        assert str(file) in str(error.value)
        assert "or move the trial's folder out of the bank" in str(error.value)


def test_every_file_of_an_entry_is_checked(tmp_path, predictions, record):
    bank, files = Bank(tmp_path), {"validation": predictions(), "test": predictions(seed=1)}
    bank.put(record(), {"emotion": files, "topic": files})
    bank.check("t0000")
    for file in tmp_path.rglob("*.parquet"):
        content = file.read_bytes()
        file.write_bytes(content[:-1])
        with pytest.raises(StorageError, match=str(file)):
            bank.check("t0000")
        file.write_bytes(content)


def _changed(content: bytes, *, rows: int = 6, names: str = '["a", "b", "c"]') -> bytes:
    """A bank table with so many of its rows, the first ones over again, and these class names."""
    table, sink = pq.read_table(pa.BufferReader(content)), pa.BufferOutputStream()
    table = table.take([row % 6 for row in range(rows)]).replace_schema_metadata({"tutti.classes": names})
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda content: b"PAR1 of another kind PAR1", "got a file that cannot be read"),
        (lambda content: _changed(content, names="[1, 2, 3]"), "names of outputs that are no texts"),
        (lambda content: _changed(content, names='["a", "b", "c", "d"]'), "got a file that cannot be read"),
        (lambda content: _changed(content, names="null"), "got a file that cannot be read"),
        (lambda content: _changed(content, rows=7), "hold every id once"),
    ],
)
def test_a_file_that_is_no_bank_table_is_a_storage_error_that_names_it(tmp_path, predictions, record, change, got):
    bank = Bank(tmp_path)
    bank.put(record(), {"emotion": {"validation": predictions()}})
    file, metadata = next(tmp_path.rglob("*.parquet")), next(tmp_path.rglob("record.json"))
    old = hashlib.sha256(file.read_bytes()).hexdigest()
    file.write_bytes(change(file.read_bytes()))
    metadata.write_text(metadata.read_text().replace(old, hashlib.sha256(file.read_bytes()).hexdigest()))
    with pytest.raises(StorageError, match=f"^{file} must .*{got}"):
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


@pytest.mark.parametrize("place", ["../../../emotion/", "/etc/", "predictions/../../../../emotion/"])
def test_a_record_that_names_a_file_outside_of_the_bank_is_refused(tmp_path, predictions, record, place):
    bank = Bank(tmp_path / "bank")
    bank.put(record(), {"emotion": {"validation": predictions()}})
    [metadata] = (tmp_path / "bank").glob("*/*/record.json")
    metadata.write_text(metadata.read_text().replace("predictions/emotion/", place))
    with pytest.raises(StorageError, match="a path that leads out of the bank"):
        bank.records()
