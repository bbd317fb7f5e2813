"""What is known of unlabelled rows before an ensemble is asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tutti.data.prepare import prepare
from tutti.data.prepared import Prepared
from tutti.errors import StorageError
from tutti.outputs.pseudo.pool import Pool, pools
from tutti.tasks.build import ExtraRows, TaskSpec
from tutti.tasks.layouts.competition import Competition


@pytest.fixture
def pool(tmp_path: Path):
    """Twenty rows, 15 of them ``yes``, two pseudo-labels ``no``, and four unlabelled rows, three of them known."""

    def write(name: str, lines: list[str]) -> Path:
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf8")
        return tmp_path / name

    def make(folds: int | None = None) -> Pool:
        layout = Competition()
        own = [f"{n}\ttext {n}\t{'yes' if n % 4 else 'no'}" for n in range(20)]
        extra = write("A.tsv", ["0\tnew 0\tno", "1\tnew 1\tno"])
        files = {"train": write("train.tsv", own)}
        files["unlabeled"] = write("pool.tsv", ["0\tnew 0", "1\tnew\u30001 ", "2\tnew 2", "3\ttext 3"])
        sources = {part: str(file) for part, file in files.items()}
        spec = TaskSpec(
            "A", layout, layout, sources, False, "macro_f1", "csv", extra_train=(ExtraRows(extra, 0.5, layout),)
        )
        share = None if folds else 0.2
        prepared = prepare([spec], validation=share, folds=folds, seed=0, folder=tmp_path / "data")
        return pools(prepared, [spec])["A"]

    return make


@pytest.mark.parametrize("folds", [None, 4])
def test_shares_are_those_of_the_task_s_own_training_rows(pool, folds):
    assert pool(folds).prior == pytest.approx([0.25, 0.75], abs=0.02)


@pytest.mark.parametrize("folds", [None, 4])
def test_rows_are_seen_whose_texts_stand_among_training_validation_or_earlier_pseudo_labels(pool, folds):
    assert pool(folds).seen.tolist() == [True, True, False, True]


def test_labels_of_a_study_without_pseudo_labels_are_of_the_first_round(pool):
    assert pool().round == 1


def test_the_round_goes_on_from_the_ledger_beside_the_pseudo_labels(pool, tmp_path):
    pq.write_table(
        pa.table({"id": ["0", "1"], "round": np.array([1, 2], dtype=np.int32)}), tmp_path / "A.ledger.parquet"
    )
    assert pool().round == 3


def test_a_ledger_that_cannot_be_read_is_named(pool, tmp_path):
    (tmp_path / "A.ledger.parquet").write_text("torn")
    with pytest.raises(StorageError, match=r"A.ledger.parquet must be a ledger of pseudo-labels"):
        pool()


def test_what_the_trials_of_a_study_beside_this_one_know_is_known(tmp_path):
    """Their own training rows too, and the round that their pseudo-labels are of."""
    layout = Competition()

    def write(name: str, lines: list[str]) -> Path:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf8")
        return tmp_path / name

    def study(name: str, own: list[str], extra: list[str]) -> tuple[Prepared, TaskSpec]:
        sources = {
            "train": str(write(f"{name}/train.tsv", own)),
            "unlabeled": str(write("pool.tsv", [f"{row}\tnew {row}" for row in range(5)])),
        }
        rows = (ExtraRows(write(f"{name}/A.tsv", extra), 0.5, layout),)
        spec = TaskSpec("A", layout, layout, sources, False, "macro_f1", "csv", extra_train=rows)
        return prepare([spec], validation=0.2, seed=0, folder=tmp_path / name / "data"), spec

    own = [f"{row}\ttext {row}\t{'yes' if row % 2 else 'no'}" for row in range(20)]
    first, spec = study("first", own, ["0\tnew 0\tno"])
    other, _ = study("other", [*own, "20\tnew 1\tyes", "21\tnew 2\tno"], ["0\tnew 3\tno"])
    ledger = pa.table({"id": ["0"], "round": np.array([2], dtype=np.int32)})
    pq.write_table(ledger, tmp_path / "other" / "A.ledger.parquet")
    alone, beside = pools(first, [spec])["A"], pools(first, [spec], others=[other])["A"]
    assert (alone.seen.tolist(), alone.round) == ([True, False, False, False, False], 1)
    assert (beside.seen.tolist(), beside.round) == ([True, True, True, True, False], 3)
    assert beside.prior.tolist() == alone.prior.tolist()
