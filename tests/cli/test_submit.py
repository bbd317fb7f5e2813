"""``tutti submit`` to a Ray cluster that was started by itself, with a token."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import requests

from tutti.config.load import parse_study
from tutti.records import TrialState

pytestmark = [pytest.mark.ray, pytest.mark.slow]
WORKER = "ray::RayTrainWorker"


def test_a_job_is_followed_to_its_end_and_its_study_is_where_the_file_says(cluster, make_study, tutti, tmp_path):
    study = make_study(tmp_path, search__trials=1)
    at = ("--address", cluster.address)
    output = tutti("submit", study.file, *at, "--wait", env=cluster.env)
    job = re.search(r"^Job (\S+), study folder (\S+)$", output, re.MULTILINE)
    assert job[2] == str(study.folder.path)
    assert "t0000 finished, epoch 2" in output
    assert "Training on CPUs; to use the 1 GPU, set resources.gpus_per_worker" in output
    assert f"Job {job[1]}: SUCCEEDED" in output
    assert [record.state for record in study.records()] == [TrialState.FINISHED]
    assert study.runs()["t0000"].info.status == "FINISHED"
    assert Path(parse_study(study.folder.study_file).backbone).is_relative_to(study.folder.shipped)  # not Ray's folder
    assert tutti("submit", "--status", job[1], *at, env=cluster.env).startswith("SUCCEEDED")
    assert "ended already" in tutti("submit", "--stop", job[1], *at, env=cluster.env)
    (listed,) = (each for each in json.loads(tutti("jobs", *at, "--json", env=cluster.env)) if each["id"] == job[1])
    assert (listed["study"], listed["state"]) == ("tiny", "SUCCEEDED")
    assert listed["progress"].startswith("1 of 1 trial done")
    assert 0 < listed["hours"] < 1
    assert "tiny" in tutti("jobs", *at, env=cluster.env)

    output = tutti("submit", study.file, *at, "--wait", env=cluster.env, code=1)  # the study is there already
    assert "error: the study 'tiny' must be new" in output
    assert re.search(r"error: the job \S+ must succeed", output)


def test_a_job_that_is_stopped_leaves_no_trial_running(cluster, make_study, tutti, tmp_path):
    study = make_study(tmp_path, search__trials=1, training__num_train_epochs=2000)
    at = ("--address", cluster.address)
    output = tutti("submit", study.file, *at, env=cluster.env)
    job = re.search(r"^Job (\S+), ", output, re.MULTILINE)[1]
    assert f"tutti submit --status {job} --address {cluster.address}" in output
    running = cluster.running
    running.wait_for(lambda: max(study.resume_epochs("t0000"), default=0) >= 2, what="a trial under way")
    assert tutti("submit", "--status", job, *at, env=cluster.env).startswith("RUNNING")
    assert len(running.descendants(WORKER)) == 1
    assert tutti("submit", "--stop", job, *at, env=cluster.env) == "stopped\n"
    running.wait_for(lambda: not running.descendants(WORKER), what="the worker's end", seconds=30)
    assert tutti("submit", "--status", job, *at, env=cluster.env).startswith("STOPPED")
    assert study.resume_epochs("t0000")  # a --resume goes on from here
    assert study.runs()["t0000"].info.status == "KILLED"  # it ended in order
    header = {"Authorization": f"Bearer {cluster.env['RAY_AUTH_TOKEN']}"}
    log = requests.get(f"{cluster.address}/api/jobs/{job}/logs", headers=header, timeout=30).json()["logs"]
    assert f"tutti submit {study.file} --address {cluster.address} --resume`" in log


def test_a_job_that_the_cluster_does_not_know_is_told(cluster, tutti):
    output = tutti("submit", "--status", "raysubmit_none", "--address", cluster.address, env=cluster.env, code=1)
    assert f"error: the Ray cluster at {cluster.address} must answer and know the job" in output
    assert "raysubmit_none" in output


def test_a_pretraining_file_is_submitted_with_its_texts_and_tuned_where_it_has_a_search_space(
    cluster, tiny_data, tutti, tmp_path
):
    from transformers import AutoModel, AutoTokenizer

    mine, shared = tmp_path / "mine", tmp_path / "shared"
    AutoModel.from_pretrained(tiny_data / "backbone").save_pretrained(mine / "bert")
    AutoTokenizer.from_pretrained(tiny_data / "backbone", mask_token="w59").save_pretrained(mine / "bert")
    lines = [" ".join(f"w{(row * step) % 59}" for step in range(1, 9)) for row in range(1, 60)]
    (mine / "texts.txt").write_text("\n".join(lines))
    shared.mkdir()
    file = mine / "pretraining.yaml"
    file.write_text(
        f"backbone: bert\ntexts: texts.txt\nout: {shared}/made\nsteps: 20\nbatch_size: 4\nmax_length: 16\n"
        "processes: 1\ngpus_per_worker: 0\n"
    )
    at = ("--address", cluster.address, "--wait")
    output = tutti("submit", file, *at, "--set", "keep_every=10", env=cluster.env)
    assert "SUCCEEDED" in output
    assert f"wrote {shared}/made: 59 different texts" in output
    AutoModel.from_pretrained(shared / "made")
    assert sorted(each.name for each in (shared / "made.kept").iterdir()) == ["step-0", "step-10", "step-20"]
    file.write_text(
        file.read_text().replace("made", "best")
        + "search_space: {learning_rate: {type: log_uniform, low: 1.0e-4, high: 1.0e-2}}\nsearch: {trials: 2}\n"
    )
    output = tutti("submit", file, *at, "--trials", "1", env=cluster.env)
    assert "1 of 1 trial done" in output
    assert f"wrote {shared}/best: the backbone of t0000" in output
