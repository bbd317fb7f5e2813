"""What is written of each row, and the shards that a file of predictions is made of."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scorers import of_classes

from tutti.ensembling.methods.protocol import Weighted
from tutti.ensembling.methods.registry import METHODS
from tutti.ensembling.procedure import Ballot, Procedure
from tutti.ensembling.select import Selection
from tutti.ensembling.task_vote import TaskVote
from tutti.errors import StorageError, StudyError
from tutti.orchestration.after.weights import check_predicts
from tutti.outputs.folder import output_folder
from tutti.outputs.submission.predictions import Shards, check_out
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.metrics import METRICS
from tutti.tasks.task import Task

MOOD = Task("mood", ("calm", 'a,"b"', "好"), pair=False, metric="macro_f1", submission="csv")
LIKE = Task("like", (), pair=False, metric="pearson", submission="csv")


def votes(members: int, rows: int, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet([1.0] * 3, size=(members, rows)).astype(np.float32)


def elected(method: str, *, offsets: bool = False):
    probabilities, labels = votes(3, 60), np.random.default_rng(1).integers(3, size=60)

    @of_classes
    def score(truth: np.ndarray, decided: np.ndarray) -> float:
        return METRICS["macro_f1"].score(truth, decided, outputs=3)

    tune = KINDS["classes"].tuner("macro_f1") if offsets else None
    procedure = Procedure(Selection(top=3), np.array([0.1, 0.3, 0.2]), share=1, methods=(method,), tune=tune)
    return procedure.fit(Ballot(probabilities, labels, score, np.arange(60)))


@pytest.mark.parametrize("method", list(METHODS))
def test_rows_are_answered_as_the_ensemble_answers_by_every_method(method: str) -> None:
    ensemble = elected(method, offsets=True)
    probabilities = votes(3, 9, seed=2)
    places = ensemble.needed
    vote = TaskVote(MOOD, {member: [place] for place, member in enumerate(places)}, ensemble, calibrated=True)
    table = vote.table([f"r{row}" for row in range(9)], [probabilities[member] for member in places])
    combined = ensemble.combine(probabilities)
    shown = np.stack([table[f"p_{name}"].to_numpy() for name in MOOD.names], axis=1)
    np.testing.assert_array_equal(shown, ensemble.calibrated(combined).astype(np.float32))
    classes = ensemble.decide(combined)
    assert table["label"].to_pylist() == [MOOD.names[index] for index in classes]
    np.testing.assert_array_equal(table["confidence"].to_numpy(), shown[np.arange(9), classes])
    assert table.column_names == ["id", "label", "confidence", "p_calm", 'p_a,"b"', "p_好"]


def test_a_member_without_weight_need_not_predict() -> None:
    lone = replace(elected("uniform"), combiner=Weighted(np.array([0.0, 1.0, 0.0])))
    assert lone.needed == [1]
    assert len(elected("rank").needed) == 3


def test_a_member_with_folds_says_the_mean_of_them_and_one_alone_what_it_says() -> None:
    probabilities = votes(2, 4)
    table = TaskVote(MOOD, {0: [0, 1]}).table(list("abcd"), list(probabilities))
    np.testing.assert_allclose(table["p_calm"].to_numpy(), probabilities.mean(axis=0)[:, 0], rtol=1e-6)
    assert table["label"].to_pylist() == [MOOD.names[index] for index in probabilities.mean(axis=0).argmax(axis=1)]


MANIFEST = {"input": "abc", "members": ("t0", "t1")}


def test_a_checkpoint_of_several_labels_alone_decides_at_its_thresholds() -> None:
    tags = Task("tags", ("joy", "fear"), pair=False, metric="macro_f1", submission="csv", kind_name="labels")
    outputs = np.array([[0.4, 0.6], [0.2, 0.9]], dtype=np.float32)
    table = TaskVote(tags, {0: [0]}, decision=np.array([0.3, 0.7])).table(["a", "b"], [outputs])
    assert table["labels"].to_pylist() == ["joy", "fear"]
    assert table["confidence"].to_pylist() == pytest.approx([0.4, 0.8])
    assert TaskVote(tags, {0: [0]}).table(["a", "b"], [outputs])["labels"].to_pylist() == ["fear", "fear"]


def shards_of(out: Path, **changes: Any) -> Shards:
    return Shards(out, rows=5, size=2, manifest={**MANIFEST, **changes})


def table(number: int) -> pa.Table:
    rows = [row for row in (2 * number, 2 * number + 1) if row < 5]
    probabilities = np.array([[0.1, 0.2, 0.7]] * len(rows), dtype=np.float32)
    return TaskVote(MOOD, {0: [0]}).table([f'r,"{row}"\nx' for row in rows], [probabilities])


def write(shards: Shards, *numbers: int) -> None:
    for number in numbers:
        shards.write(number, table(number))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json", ".parquet"])
def test_the_file_has_all_rows_in_order_whatever_order_they_came_in(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"out{suffix}"
    out.write_text("of an earlier day")
    shards = shards_of(out)
    with shards.locked():
        shards.begin("float32")
        write(shards, 2, 0, 1)
        assert shards.done() == {0, 1, 2}
        assert out.read_text() == "of an earlier day"
        shards.finish()
    if suffix == ".csv":
        with out.open(newline="", encoding="utf8") as file:
            rows = list(csv.DictReader(file))
    elif suffix == ".parquet":
        rows = pq.read_table(out).to_pylist()
    else:
        rows = [json.loads(line) for line in out.read_text(encoding="utf8").splitlines()]
    assert [row["id"] for row in rows] == [f'r,"{row}"\nx' for row in range(5)]
    assert {row["label"] for row in rows} == {"好"}
    # As many digits as it takes to read the float32 back.
    assert {np.float32(row["p_calm"]) for row in rows} == {np.float32(0.1)}
    if suffix != ".parquet":
        assert {str(row["p_calm"]) for row in rows} == {"0.1"}
    assert list(tmp_path.iterdir()) == [out]


def test_what_a_killed_run_left_is_kept_for_the_same_run_alone(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    first = shards_of(out)
    with first.locked():
        assert first.precision is None
        first.begin("bf16")
        write(first, 0, 2)
    (first.folder / ".000001.parquet.abcdefgh.tmp").write_bytes(b"cut off")
    (first.folder / "000002.parquet").write_bytes(b"PAR1 damaged")
    again = shards_of(out)
    with again.locked():
        assert again.precision == "bf16"  # it goes on in this one, wherever it goes on
        assert again.done() == {0}
        assert not list(again.folder.glob("*.tmp"))
    other = shards_of(out, members=("t0",))
    with other.locked():
        assert other.precision is None
        assert other.done() == set()


def test_a_run_that_was_killed_before_its_manifest_was_whole_begins_anew(tmp_path: Path) -> None:
    shards = shards_of(tmp_path / "out.csv")
    shards.folder.mkdir()
    (shards.folder / ".manifest.json.abcdefgh.tmp").write_text("{")
    (shards.folder / "lock").touch()
    with shards.locked():
        assert [path.name for path in shards.folder.iterdir()] == ["lock"]
        assert shards.precision is None
        shards.begin("bf16")
        write(shards, 0, 1, 2)
        shards.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_what_a_run_left_that_was_killed_while_it_wrote_the_output_is_removed(tmp_path: Path) -> None:
    for name in (".out.csv.abcdefgh.tmp", ".other.csv.abcdefgh.tmp"):
        (tmp_path / name).write_text("cut off")
    shards = shards_of(tmp_path / "out.csv")
    with shards.locked():
        shards.begin("float32")
        write(shards, 0, 1, 2)
        shards.finish()
    assert {path.name for path in tmp_path.iterdir()} == {"out.csv", ".other.csv.abcdefgh.tmp"}


def test_a_shard_with_other_rows_than_were_counted_is_not_written(tmp_path: Path) -> None:
    shards = shards_of(tmp_path / "out.csv")
    with shards.locked():
        for number, rows in ((0, table(2)), (2, table(0)), (3, table(0))):
            message = rf"--input must have . rows in shard {number}.*; got {len(rows)}; leave"
            with pytest.raises(StudyError, match=message):
                shards.write(number, rows)
        assert not shards.done()


def test_a_folder_that_is_not_of_shards_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    thesis = tmp_path / "out.csv.shards" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    with pytest.raises(StudyError, match=r"must be new, or hold the shards of an earlier run; got thesis.txt"):
        shards_of(out).locked().__enter__()
    assert thesis.read_text() == "years of work"


@pytest.mark.parametrize("manifest", ['{"name": "my data set"}', "[1, 2]", "not JSON"])
@pytest.mark.parametrize("other", ["thesis.txt", "000000.parquet"])
def test_a_folder_with_the_manifest_of_another_program_is_left_alone(tmp_path: Path, manifest: str, other: str) -> None:
    folder = tmp_path / "out.csv.shards"
    folder.mkdir()
    (folder / "manifest.json").write_text(manifest)
    (folder / other).write_text("years of work")
    with pytest.raises(StudyError, match=r"must be new, or hold the shards of an earlier run; got "):
        shards_of(tmp_path / "out.csv").locked().__enter__()
    assert {path.name for path in folder.iterdir()} == {"manifest.json", other}


def test_a_clean_up_that_is_interrupted_leaves_a_folder_that_a_later_run_takes(tmp_path: Path, monkeypatch) -> None:
    shards = shards_of(tmp_path / "out.csv")
    unlink = Path.unlink

    def interrupted(path: Path, **options: bool) -> None:
        unlink(path, **options)
        if path.suffix == ".parquet":
            raise KeyboardInterrupt

    with shards.locked():
        shards.begin("fp32")
        write(shards, *range(shards.count))
        monkeypatch.setattr(Path, "unlink", interrupted)
        with pytest.raises(KeyboardInterrupt):
            shards.finish()
        monkeypatch.undo()
    assert (tmp_path / "out.csv").is_file()
    with shards_of(tmp_path / "out.csv", input="another").locked():
        assert {path.name for path in shards.folder.iterdir()} == {"lock"}


def test_two_runs_do_not_write_one_file_together(tmp_path: Path) -> None:
    first, second = shards_of(tmp_path / "out.csv"), shards_of(tmp_path / "out.csv")
    with first.locked(), pytest.raises(StudyError, match="must be written by one process at a time"):
        second.locked().__enter__()


def test_shards_that_nobody_may_hold_are_said_in_one_sentence(tmp_path: Path) -> None:
    shards = shards_of(tmp_path / "out.csv")
    (shards.folder / "lock").mkdir(parents=True)  # root may write to any folder, and to no folder as to a file
    with pytest.raises(StorageError, match=r"out.csv.shards must be written whole; got Is a directory"):
        shards.locked().__enter__()


def test_the_ending_says_what_is_written(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    check_out(tmp_path / "new" / "out.CSV", rows)
    rows.touch()
    with pytest.raises(StudyError, match=r"must be in a folder; got the file .*rows.csv; name another folder"):
        check_out(rows / "new" / "out.csv", tmp_path / "others.csv")


def test_a_run_that_failed_before_its_first_shard_leaves_nothing(tmp_path: Path) -> None:
    shards = shards_of(tmp_path / "out.csv")
    with pytest.raises(ValueError, match="no weights"), shards.locked():
        raise ValueError("no weights")
    assert not shards.folder.exists()


def test_a_name_too_long_for_the_file_system_is_said_in_one_sentence(tmp_path: Path) -> None:
    long = tmp_path / ("a" * 300 + ".csv")
    with pytest.raises(StorageError, match="must be written whole; got File name too long; check whether"):
        check_out(long, tmp_path / "rows.csv")
    with pytest.raises(StorageError, match="must be written whole; got File name too long"), output_folder(long):
        pass
    with pytest.raises(StudyError, match=r"--checkpoint must have weights, .* got File name too long; name another"):
        check_predicts(long, [MOOD], what="--checkpoint", remedy="name another")
