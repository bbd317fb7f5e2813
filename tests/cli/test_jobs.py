"""What ``tutti submit`` hands to the job."""

from __future__ import annotations

import pytest
from bad_input_run import run

from tutti.cli.tune import command_to_go_on
from tutti.cluster import submit as jobs
from tutti.cluster.shipped import SUBMITTED


@pytest.mark.parametrize(
    ("given", "trials", "options"), [("3", 3, []), ("+3", 2, ["--trials", "+3"])], ids=["a total", "so many more"]
)
def test_a_job_counts_how_many_more_trials_a_study_gets(make_study, tmp_path, monkeypatch, given, trials, options):
    submitted = {}
    monkeypatch.setattr(jobs, "submit_study", lambda study, **more: submitted.update(more, study=study) or "job-1")
    study = make_study(tmp_path, search__trials=2)
    run(tmp_path, f"submit {study.file} --trials {given}", code=0)
    assert submitted["study"].search.trials == trials
    assert submitted["options"] == options


def test_a_job_names_the_command_that_submitted_it_as_the_one_to_go_on(make_study, tmp_path, monkeypatch):
    submitted = {}
    monkeypatch.setattr(jobs, "submit_study", lambda study, **more: submitted.update(more) or "job-1")
    study = make_study(tmp_path)
    settings = "--set search.max_hours=2 --set storage.database=postgresql://me:secret@host/optuna"
    run(tmp_path, f"submit {study.file} --address http://head:8265 {settings}", code=0)
    assert "secret" not in submitted["submitted"]  # Ray's dashboard shows it
    monkeypatch.setenv(SUBMITTED, submitted["submitted"])
    started = f"tutti submit {study.file} --address http://head:8265 --resume"
    database = "--set storage.database=postgresql://me@host/optuna"
    assert command_to_go_on("study.json").endswith(f"{started} --set search.max_hours=2 {database}")
    assert command_to_go_on("study.json", but="search.max_hours").endswith(f"{started} {database}")
