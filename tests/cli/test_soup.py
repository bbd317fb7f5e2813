"""Who may go into a soup, and into those that judge it; the soup itself is made by ``training/soup.py``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from bad_input_run import run
from voting_study import make_study, write_files

from tutti.errors import Fault, StudyError
from tutti.training.tricks.soup import Ingredient, Soup


@pytest.fixture
def soup_call(tmp_path, monkeypatch) -> SimpleNamespace:
    """A study whose trials have weights, except those in ``gone``, and the last call of the worker."""
    write_files(tmp_path / "data")
    make_study(tmp_path, "moods", trials=12)
    (tmp_path / "two.yaml").write_text("members: {top: 2}\nsoup: {within: 1}\n")
    seen = SimpleNamespace(place=tmp_path, gone=(), score=0.5)

    def weights_of(folder, keys: Sequence[str], **_) -> dict[str, list[Path]]:
        if lacking := [key for key in keys if key in seen.gone]:
            raise StudyError(*(Fault(f"trial {key}", "have weights", "none", "do without") for key in lacking))
        return {key: [folder.trial(key).best] for key in keys}

    def compute_soup(folder, candidates, *, weights, folds, into, **_) -> Soup:
        into.mkdir()
        seen.candidates, seen.weights, seen.folds = candidates, weights, folds
        ingredients = [Ingredient(candidates[0], seen.score, {"mood": seen.score, "warmth": seen.score}, kept=True)]
        return Soup(ingredients, folds and {"mood": np.zeros((1, 200), dtype=int), "warmth": np.ones((1, 200))})

    monkeypatch.setattr("tutti.orchestration.after.weights.weights_of", weights_of)
    monkeypatch.setattr("tutti.orchestration.after.soup.averageable", dict)
    monkeypatch.setattr("tutti.orchestration.after.soup.compute_soup", compute_soup)
    monkeypatch.setattr("tutti.cluster.connect.connected", lambda *_, **__: nullcontext(1))
    return seen


def soup(soup_call: SimpleNamespace) -> tuple[str, dict]:
    result = run(soup_call.place, "soup studies/moods --recipe two.yaml", code=0)
    card = soup_call.place / "studies/moods/soups/two/card.json"
    return result.out, json.loads(card.read_text(encoding="utf8"))


def test_soups_that_judge_may_be_of_trials_that_do_not_vote_by_all_rows(soup_call):
    result, card = soup(soup_call)
    voters = {key for fold in soup_call.folds for key in fold.voters}
    assert len(soup_call.folds) == 5
    assert len(soup_call.candidates) == 2
    assert voters - set(soup_call.candidates)
    assert soup_call.weights.keys() == voters | set(soup_call.candidates)
    assert card["estimates"].keys() == {"mood", "warmth"}
    assert "on rows that had no part in choosing what went into them" in result


def test_where_the_weights_of_such_trials_are_gone_the_rows_that_chose_judge_and_that_is_said(soup_call):
    soup(soup_call)
    soup_call.gone = tuple({key for fold in soup_call.folds for key in fold.voters} - set(soup_call.candidates))
    result, card = soup(soup_call)
    assert soup_call.folds is None
    assert soup_call.weights.keys() == set(soup_call.candidates)
    assert card["estimates"] is None
    assert "Without weights of trial t00" in result
    assert "These are scores on the rows that chose them, which flatter both." in result


def test_a_soup_that_is_not_kept_leaves_an_earlier_one_in_place(soup_call):
    _, kept = soup(soup_call)
    soup_call.score = -9.0
    soup_call.gone = tuple({key for fold in soup_call.folds for key in fold.voters} - set(soup_call.candidates))
    result = run(soup_call.place, "soup studies/moods --recipe two.yaml", code=1)
    folder = soup_call.place / "studies/moods/soups/two"
    assert f"{folder} keeps the soup of an earlier run." in result.out
    assert (folder / "checkpoint").is_dir()
    assert json.loads((folder / "card.json").read_text(encoding="utf8")) == kept
