"""Who may go into a soup, and into those that judge it; the soup itself is made by ``training/soup.py``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers serve a script too, so they are no plugin

from bad_input_run import run
from voting_study import make_study, write_files

from tutti.errors import Fault, StudyError
from tutti.training.soup import Soup, Taste


@pytest.fixture
def stirred(tmp_path, monkeypatch) -> SimpleNamespace:
    """A study whose trials have weights, except those in ``gone``, and the last call of the worker."""
    write_files(tmp_path / "data")
    make_study(tmp_path, "moods", trials=12)
    (tmp_path / "two.yaml").write_text("members: {top: 2}\nsoup: {within: 1}\n")
    seen = SimpleNamespace(place=tmp_path, gone=())

    def weights_of(folder, keys: Sequence[str], **_) -> dict[str, list[Path]]:
        if lacking := [key for key in keys if key in seen.gone]:
            raise StudyError(*(Fault(f"trial {key}", "have weights", "none", "do without") for key in lacking))
        return {key: [folder.trial(key) / "best"] for key in keys}

    def stir(folder, candidates, *, weights, folds, into, **_) -> Soup:
        into.mkdir()
        seen.candidates, seen.weights, seen.folds = candidates, weights, folds
        tastes = [Taste(candidates[0], 0.5, {"mood": 0.5, "warmth": 0.5}, kept=True)]
        return Soup(tastes, folds and {"mood": np.zeros((1, 200), dtype=int), "warmth": np.ones((1, 200))})

    monkeypatch.setattr("tutti.orchestration.inference.weights_of", weights_of)
    monkeypatch.setattr("tutti.orchestration.soup.averageable", dict)
    monkeypatch.setattr("tutti.orchestration.soup.compute_soup", stir)
    monkeypatch.setattr("tutti.cluster.connect.connected", lambda **_: nullcontext())
    return seen


def soup(stirred: SimpleNamespace) -> tuple[str, dict]:
    result = run(stirred.place, "soup studies/moods --recipe two.yaml", code=0)
    card = stirred.place / "studies/moods/soups/two/card.json"
    return result.out, json.loads(card.read_text(encoding="utf8"))


def test_soups_that_judge_may_be_of_trials_that_do_not_vote_by_all_rows(stirred):
    result, card = soup(stirred)
    voters = {key for fold in stirred.folds for key in fold.voters}
    assert len(stirred.folds) == 5
    assert len(stirred.candidates) == 2
    assert voters - set(stirred.candidates)
    assert stirred.weights.keys() == voters | set(stirred.candidates)
    assert card["estimates"].keys() == {"mood", "warmth"}
    assert "on rows that had no part in choosing what went into them" in result


def test_where_the_weights_of_such_trials_are_gone_the_rows_that_chose_judge_and_that_is_said(stirred):
    soup(stirred)
    stirred.gone = tuple({key for fold in stirred.folds for key in fold.voters} - set(stirred.candidates))
    result, card = soup(stirred)
    assert stirred.folds is None
    assert stirred.weights.keys() == set(stirred.candidates)
    assert card["estimates"] is None
    assert "Without weights of trial t00" in result
    assert "These are scores on the rows that chose them, which flatter both." in result
