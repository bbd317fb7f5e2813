"""Pairs of which one text is better: read from tables, kept together, scored, and voted on at one scale."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tutti.config.study import TaskConfig
from tutti.data.clean import can_be_apart, text_groups_of
from tutti.ensembling.methods.registry import METHODS, method_of
from tutti.errors import TaskFileError
from tutti.tasks.build import task_spec
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.metrics import METRICS
from tutti.tasks.scorer import Scorer
from tutti.tasks.task import Task

TASK = Task("t", ("better", "worse"), False, "pairwise_accuracy", "csv", "preference")


def layout(columns: dict[str, str]):
    return task_spec("t", TaskConfig(layout="table", train="train.csv", columns=columns)).layout


def test_a_table_has_pairs_to_train_on_and_pairs_or_single_texts_to_predict(tmp_path):
    (tmp_path / "train.csv").write_text("good,bad\nyes,no\nfine,poor\n")
    (tmp_path / "test.csv").write_text("id,text\n7,maybe\n")
    (tmp_path / "pairs.csv").write_text("id,good,bad\n8,this,that\n")
    own = layout({"better": "good", "worse": "bad"})
    rows = own.read(str(tmp_path / "train.csv"), labelled=True)
    assert rows[["text", "text_b", "label"]].to_numpy().tolist() == [
        ["yes", "no", "better"],
        ["fine", "poor", "better"],
    ]
    single = own.read(str(tmp_path / "test.csv"), labelled=False)
    assert single.to_dict("list") == {"id": ["7"], "text": ["maybe"]}
    assert own.read(str(tmp_path / "pairs.csv"), labelled=False)["text_b"].tolist() == ["that"]


def test_a_prompt_stands_before_both_texts(tmp_path):
    (tmp_path / "train.csv").write_text("ask,good,bad\nWhy?,so,no\n")
    (tmp_path / "test.jsonl").write_text('{"id": "7", "ask": "How?", "text": "well"}\n')
    own = layout({"better": "good", "worse": "bad", "prompt": "ask"})
    (row,) = own.read(str(tmp_path / "train.csv"), labelled=True).to_dict("records")
    assert (row["text"], row["text_b"]) == ("Why? [SEP] so", "Why? [SEP] no")
    assert own.read(str(tmp_path / "test.jsonl"), labelled=False)["text"].tolist() == ["How? [SEP] well"]


def test_a_pair_without_one_of_its_texts_is_refused(tmp_path):
    (tmp_path / "train.csv").write_text("good,bad\nyes,\n")
    with pytest.raises(TaskFileError, match=r"line 2 must have a text_b that is not empty"):
        layout({"better": "good", "worse": "bad"}).read(str(tmp_path / "train.csv"), labelled=True)
    with pytest.raises(TaskFileError, match=r"have the column 'bed' \(columns.worse\)"):
        layout({"better": "good", "worse": "bed"}).read(str(tmp_path / "train.csv"), labelled=True)


def test_pairs_that_share_a_text_are_held_out_together_unless_all_would_be():
    rows = pd.DataFrame({"text": [*"abcdefgh"], "text_b": [*"bxyzuvwt"]})
    groups = text_groups_of({"t": rows}, apart=["t"])["t"]
    assert groups.tolist() == [0, 0, 1, 2, 3, 4, 5, 6]
    chain = pd.DataFrame({"text": [f"x{row}" for row in range(40)], "text_b": [f"x{row + 1}" for row in range(40)]})
    assert not can_be_apart(chain)
    assert len(np.unique(text_groups_of({"t": chain}, apart=["t"])["t"])) == 40


def test_equal_values_count_half_for_the_accuracy_of_pairs():
    values = np.array([[2, 1], [0, 3], [1, 1], [5, 4]], dtype=np.float32)
    assert METRICS["pairwise_accuracy"].score(np.zeros(4), values, outputs=2) == 0.625


@pytest.mark.parametrize("name", [name for name, entry in METHODS.items() if entry.values])
def test_the_unit_and_the_zero_of_a_members_values_do_not_matter_for_the_vote(name):
    rng = np.random.default_rng(0)
    votes = rng.normal([1, 0], size=(3, 60, 2)).astype(np.float32)
    new = rng.normal(size=(3, 20, 2)).astype(np.float32)
    new[:, 10:, 1] = np.nan  # single texts
    labels, method = np.zeros(60, dtype=np.int64), method_of(name, Scorer.of(TASK))
    plain = method.fit(votes, labels).combine(new)
    factors, shifts = np.array([1, 50, 0.02])[:, None, None], np.array([0, 300, -2])[:, None, None]
    moved = method.fit((votes * factors + shifts).astype(np.float32), labels)
    combined = moved.combine((new * factors + shifts).astype(np.float32))
    np.testing.assert_array_equal(np.isnan(combined), np.isnan(new[0]))
    order, expected = np.argsort(combined[:, 0]), np.argsort(plain[:, 0])
    np.testing.assert_array_equal(order, expected)


def test_stacking_gives_the_member_that_is_right_more_weight():
    rng = np.random.default_rng(0)
    good, poor = rng.normal([2, 0], size=(400, 2)), rng.normal([0.1, 0], size=(400, 2))
    votes, labels = np.stack([good, 30 * poor]).astype(np.float32), np.zeros(400, dtype=np.int64)
    for name in ("stacking", "greedy"):
        weights = method_of(name, Scorer.of(TASK)).fit(votes, labels).weights
        assert weights[0] > weights[1]


def test_a_row_with_a_single_text_is_spelled_by_its_value_alone():
    values = np.array([[1.5, np.nan], [0.25, -1]], dtype=np.float32)
    assert KINDS["preference"].spell(values, TASK.names) == [1.5, {"better": 0.25, "worse": -1.0}]
