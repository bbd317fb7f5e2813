"""``tutti refit`` on a study that was really run: members are trained again on all rows, and vote as before."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from tutti.bank.bank import Bank

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_members_are_trained_on_all_rows_for_the_epochs_that_were_found_and_vote_with_their_weights(
    finished, tutti, tmp_path
):
    study = finished.copy(tmp_path)
    before = json.loads(tutti("trials", study.folder.path, "--json"))
    output = tutti("refit", study.folder.path, "--seeds", "2")
    assert "Training 4 models on all rows: mood 120, same 120" in output
    place = study.folder.path / "refits" / "recipe"
    plan = {job["name"]: job for job in json.loads((place / "plan.json").read_text(encoding="utf8"))}
    bank, known = Bank(place / "bank"), {record.key: record for record in Bank(study.folder.bank).records()}
    for record in bank.records():
        trial = plan[record.key]["trial"]
        assert record.epoch == plan[record.key]["until"] == known[trial].epoch
        assert plan[record.key]["parameters"] == next(each for each in before if each["key"] == trial)["parameters"]
    assert study.runs()["t0000/refit-1"].info.status == "FINISHED"

    folder = study.folder.ensembles / "recipe-refit"
    rows = [json.loads(line) for line in (folder / "mood_predict.json").read_text(encoding="utf8").splitlines()]
    votes = np.mean([bank.predictions(name, "mood", "test").outputs for name in sorted(plan)], axis=0)
    names = bank.predictions("t0000-0", "mood", "test").names
    assert [row["label"] for row in rows] == [names[place] for place in votes.argmax(axis=1)]
    card = json.loads((folder / "card.json").read_text(encoding="utf8"))
    assert any("cannot be measured" in note for note in card["notes"])

    entry = bank.records()[0]
    kept = {
        task: {part: bank.predictions(entry.key, task, part) for part in parts}
        for task, parts in bank.parts(entry.key).items()
    }
    bank.put(entry, {**kept, "mood": {part: each for part, each in kept["mood"].items() if part != "test"}})
    assert "none of mood/test" in tutti("refit", study.folder.path, "--seeds", "2", code=2)
    bank.put(entry, kept)

    again = tutti("refit", study.folder.path, "--seeds", "2")
    assert "Training" not in again
    assert re.search("other members, seeds or epochs", tutti("refit", study.folder.path, "--seeds", "3", code=2))
    tutti("doctor", study.folder.path)  # the folder is a copy, which it tells of MLflow's artifacts
    assert "is healthy" in tutti("doctor", study.folder.path, "--dry-run")
