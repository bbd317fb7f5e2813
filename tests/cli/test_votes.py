"""What is made of finished studies: who votes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

sys.path.insert(0, str(Path(__file__).parent))

from bad_input_run import run
from voting_study import make_study, write_files

from tutti.tracking.store import experiment_id


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with the studies ``moods``, of two tasks, and ``second``, of the same."""
    folder = tmp_path_factory.mktemp("voting")
    write_files(folder / "data")
    make_study(folder, "moods")
    make_study(folder, "second", trials=2)
    return folder


def members(folder: Path) -> set[str]:
    card = json.loads((folder / "card.json").read_text(encoding="utf8"))
    return {member["key"] for member in card["tasks"][0]["members"]}


def test_two_studies_vote_together_from_the_command_line_and_from_a_recipe(place, tmp_path):
    run(place, f"ensemble studies/moods --with second --out {tmp_path / 'one'}", code=0)
    (place / "both.yaml").write_text("members: {studies: [second]}\n")
    said = run(place, f"ensemble studies/moods --recipe both.yaml --out {tmp_path / 'two'}", code=0)
    assert members(tmp_path / "one") == members(tmp_path / "two")
    assert {key.split("/")[0] for key in members(tmp_path / "one")} == {"moods", "second"}
    assert "The trials of the studies moods and second may vote together." in said.out
    said = run(place, f"pseudo-label studies/moods --with studies/second --out {tmp_path / 'three'}")
    assert "The trials of the studies moods and second may vote together." in said.out


def test_a_trial_that_was_tagged_in_mlflow_votes_and_no_other(place, tmp_path):
    uri = f"sqlite:///{place / 'studies/second/mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    found = client.search_runs([experiment_id(uri, "second")], "tags.`tutti.trial` = 't0001'")
    client.set_tag(found[0].info.run_id, "vote", "yes")
    (place / "tagged.yaml").write_text("members: {filter: tags.vote = 'yes', studies: [second]}\n")
    run(place, f"ensemble studies/moods --recipe tagged.yaml --out {tmp_path / 'tagged'}", code=0)
    assert members(tmp_path / "tagged") == {"second/t0001"}
