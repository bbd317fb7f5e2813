"""What ``tutti submit`` hands to the job."""

from __future__ import annotations

import pytest
from bad_input_run import run

from tutti.cluster import submit as jobs


@pytest.mark.parametrize(
    ("given", "trials", "options"), [("3", 3, []), ("+3", 2, ["--trials", "+3"])], ids=["a total", "so many more"]
)
def test_how_many_more_trials_a_study_gets_is_counted_by_the_job(
    make_study, tmp_path, monkeypatch, given, trials, options
):
    submitted = {}
    monkeypatch.setattr(jobs, "submit_study", lambda study, **more: submitted.update(more, study=study) or "job-1")
    study = make_study(tmp_path, search__trials=2)
    run(tmp_path, f"submit {study.file} --trials {given}", code=0)
    assert submitted["study"].search.trials == trials
    assert submitted["options"] == options
