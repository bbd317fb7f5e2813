"""A study with folds through Ray: each fold has its run in MLflow, and a hopeless trial ends after one."""

from __future__ import annotations

import json

import pytest

from tutti.bank.bank import Bank
from tutti.records import TrialState
from tutti.tracking.protocol import readable

pytestmark = [pytest.mark.ray, pytest.mark.slow]
GOOD, HOPELESS = 5e-3, 1e-12
FOLDS = 3


def test_a_study_with_folds_from_its_file_to_its_ensemble(make_study, tutti, seed_that_gives, tmp_path):
    study = make_study(
        tmp_path,
        split={"folds": FOLDS},
        training__num_train_epochs=4,
        search_space={"learning_rate": {"type": "categorical", "choices": [GOOD, HOPELESS]}},
        search={
            "trials": 2, "sampler": "random", "scheduler": "asha", "seed": seed_that_gives([GOOD, HOPELESS]),
        },
        resources={"workers": 1, "cpus_per_worker": 1, "concurrent_trials": 1},
    )  # fmt: skip
    output = tutti("tune", study.file)
    good, hopeless = study.records()
    assert (good.state, hopeless.state) == (TrialState.FINISHED, TrialState.STOPPED)
    assert sorted(good.scores_by_epoch) == [1, 2, 3]
    assert hopeless.reason == "fell behind the others after 1 fold"
    assert hopeless.reason in output

    bank = Bank(study.folder.bank)
    [record] = bank.records()
    assert record.key == "t0000"
    assert (good.score, good.task_scores) == (pytest.approx(record.score), pytest.approx(record.task_scores))
    assert len(bank.predictions("t0000", "mood", "validation").ids) == 120

    runs = study.runs()
    folds = [f"t0000/fold-{fold}" for fold in range(FOLDS)]
    assert sorted(runs) == ["", "t0000", *folds, "t0001", "t0001/fold-0"]
    assert {key: run.info.status for key, run in runs.items()} == dict.fromkeys(runs, "FINISHED")
    for key in folds:
        assert runs[key].data.tags["mlflow.parentRunId"] == runs["t0000"].info.run_id
        assert runs[key].data.tags["tutti.fold"] == key[-1]
        assert runs[key].info.run_name == key
        assert "train_loss" in runs[key].data.metrics
        assert "score" not in runs[key].data.metrics
    assert runs["t0000"].data.metrics["score"] == readable(good.score)
    assert runs["t0000"].data.metrics["folds"] == FOLDS
    assert runs["t0000"].data.tags["tutti.checkpoint"] == record.path == str(study.folder.trial("t0000").path)

    assert sorted(path.name for path in study.folder.trial("t0000").path.iterdir()) == ["fold-0", "fold-1", "fold-2"]
    assert [path.name for path in study.folder.trial("t0001").fold(0).path.iterdir()] == ["best"]
    listed = json.loads(tutti("trials", study.folder.path, "--json"))
    assert [each["state"] for each in listed] == ["finished", "stopped early"]
    assert listed[0]["score"] == pytest.approx(record.score)
    tutti("ensemble", study.folder.path, "--out", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "card.json").read_text())["objective"]["score"] == pytest.approx(record.score)
