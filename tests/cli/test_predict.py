"""``tutti predict`` on a study that was really run: new rows, a kill in the middle, the same file in the end."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from tutti.bank.bank import Bank
from tutti.orchestration.inference import SHARD

pytestmark = [pytest.mark.ray, pytest.mark.slow]
SHARDS = 40


@pytest.fixture
def many_rows(tiny_data, tmp_path) -> Path:
    """The study's own test rows, and behind them so many others that a run can be killed among them."""
    rng = np.random.default_rng(0)
    file = tmp_path / "new.tsv"
    lines = (tiny_data / "mood_test.tsv").read_text(encoding="utf8").splitlines()
    for row in range(SHARDS * SHARD - len(lines) - 7):
        lines.append(f"n{row}\t" + " ".join(f"w{word}" for word in rng.integers(0, 60, size=rng.integers(0, 14))))
    file.write_text("\n".join(lines) + "\n", encoding="utf8")
    return file


def test_a_run_that_was_killed_goes_on_and_gives_the_bytes_of_one_that_was_not(
    finished, tutti, tutti_command, many_rows, tmp_path
):
    out, whole = tmp_path / "killed.csv", tmp_path / "whole.csv"
    command = ["predict", finished.study.folder.path, "--task", "mood", "--input", many_rows, "--out"]
    running = tutti_command(*command, out)
    shards = tmp_path / "killed.csv.shards"
    running.wait_for(lambda: len(list(shards.glob("*.parquet"))) > 2, what="some shards")
    running.kill()
    there = len(list(shards.glob("*.parquet")))
    assert there < SHARDS, "it was over before it could be killed"
    assert not out.exists()
    said = tutti(*command, out)
    assert f"of {SHARDS} shards are there" in said
    assert not shards.exists()
    tutti(*command, whole)
    assert out.read_bytes() == whole.read_bytes()

    table = pa.csv.read_csv(whole, convert_options=pa.csv.ConvertOptions(column_types={"id": pa.string()}))
    ids = [line.split("\t")[0] for line in many_rows.read_text(encoding="utf8").splitlines()]
    assert table["id"].to_pylist() == ids
    bank = Bank(finished.study.folder.bank)
    said = [bank.predictions(key, "mood", "test") for key in ("t0000", "t0001")]  # its recipe takes the two alike
    expected = np.mean([each.probabilities for each in said], axis=0)
    rows = len(said[0].ids)
    assert said[0].ids.tolist() == ids[:rows]
    found = np.stack([table[f"p_{name}"].to_numpy() for name in said[0].class_names], axis=1)
    np.testing.assert_allclose(found[:rows], expected, atol=1e-5)
    np.testing.assert_array_equal(table["confidence"].to_numpy(), found.max(axis=1))
    assert table["label"].to_pylist() == [said[0].class_names[index] for index in found.argmax(axis=1)]


def test_a_member_alone_predicts_pairs_of_a_table_as_the_bank_has_it(finished, tutti, tiny_data, tmp_path):
    rows = [line.split("\t") for line in (tiny_data / "same_test.tsv").read_text(encoding="utf8").splitlines()]
    pa.parquet.write_table(
        pa.table({"text_b": [row[2] for row in rows], "extra": [1] * len(rows), "text": [row[1] for row in rows]}),
        tmp_path / "pairs.parquet",
    )
    best = finished.study.folder.trial("t0001") / "best"
    out = tmp_path / "out.parquet"
    out.write_bytes(b"of an earlier day")
    shutil.copytree(best, tmp_path / "copy")  # a checkpoint may lie anywhere
    command = ["--input", tmp_path / "pairs.parquet", "--out", out, "--checkpoint", tmp_path / "copy"]
    tutti("predict", finished.study.folder.path, "--task", "same", *command)
    table = pa.parquet.read_table(out)
    assert table["id"].to_pylist() == [str(row) for row in range(len(rows))]
    expected = Bank(finished.study.folder.bank).predictions("t0001", "same", "test").probabilities
    found = np.stack([table["p_0"].to_numpy(), table["p_1"].to_numpy()], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
