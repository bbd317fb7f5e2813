"""A whole study on object storage, gone on with and read by machines that have nothing of it."""

from __future__ import annotations

import csv
import json

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_a_study_on_object_storage_goes_on_and_is_read_from_machines_without_any_of_it(
    make_study, tutti, tutti_command, interrupt, postgres, s3, tmp_path, tiny_data
):
    database, store = postgres.new_database(), postgres.new_database()
    study = make_study(
        tmp_path,
        training__num_train_epochs=3,
        search={"trials": 2, "scheduler": "none"},
        resources__concurrent_trials=1,
        storage={"path": s3.address, "database": database},
        tracking={"uri": store},
    )
    s3.fail(0.05)
    address, secrets = f"{s3.address}/tiny", {"TUTTI_DATABASE": database, "MLFLOW_TRACKING_URI": store}

    def machine(name: str) -> dict[str, str]:
        return {"TUTTI_CACHE": str(tmp_path / name), **secrets}

    first = tutti_command("tune", study.file, env=machine("first"))
    first.wait_for(lambda: "t0001" in first.output, what="a second trial", seconds=900)
    interrupt(first)
    assert first.wait() == 130, first.output

    output = tutti("tune", study.file, "--resume", env=machine("second"))
    assert "2 of 2 trials done" in output
    assert f"ensemble {address}" in output

    third = machine("third")
    listed = json.loads(tutti("trials", address, "--json", env=third))
    assert [trial["state"] for trial in listed] == ["finished"] * 2
    assert all(sorted(map(int, trial["scores_by_epoch"])) == [1, 2, 3] for trial in listed)
    told = tutti("ensemble", address, env=third)
    assert "wrote " in told
    copy = tmp_path / "third" / address.replace("://", "/")
    assert not (copy / "trials").exists()  # a vote needs no weights
    told = tutti("ensemble", "tiny", "--out", tmp_path / "vote", env={**machine("fourth"), "TUTTI_STUDIES": s3.address})
    assert (tmp_path / "vote" / "card.json").is_file()
    fourth = tmp_path / "fourth" / address.replace("://", "/")
    assert (fourth / "ensembles" / "recipe" / "card.md").is_file()  # that of the third machine

    rows = ["--task", "mood", "--input", tiny_data / "mood_test.tsv", "--out", tmp_path / "new.csv"]
    tutti("predict", address, *rows, env=machine("fifth"))
    assert len(list(csv.reader((tmp_path / "new.csv").open()))) == 24
    assert "healthy" in tutti("doctor", address, env=machine("sixth"))
    unknown = tutti("trials", f"{s3.address}/tny", env=machine("sixth"), code=2)
    assert f"or the name of one in {s3.address}; got an unknown name (studies there: tiny)" in unknown
    assert "did you mean 'tiny'" in unknown

    everything = first.output + output + told + unknown
    assert s3.env["AWS_SECRET_ACCESS_KEY"] not in everything
    for file in (path for path in tmp_path.rglob("*") if path.is_file() and path != study.file):
        content = file.read_bytes()
        assert s3.env["AWS_SECRET_ACCESS_KEY"].encode() not in content, file
        assert postgres.password.encode() not in content, file
