"""A study whose trials and runs a PostgreSQL server keeps."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from tutti.config.folder import StudyFolder

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_a_study_kept_by_a_server_has_no_password_in_its_folder(make_study, tutti, postgres, tmp_path):
    database, store = postgres.new_database(), postgres.new_database()
    secret = database.split("tutti:")[1].split("@")[0]
    study = make_study(
        tmp_path,
        training__num_train_epochs=1,
        search__trials=1,
        storage={"path": str(tmp_path / "studies"), "database": database},
        tracking={"uri": store},
    )
    output = tutti("tune", study.file)
    assert "1 of 1 trial done" in output
    shutil.copytree(study.folder.path.parent, tmp_path / "elsewhere")

    output += tutti("tune", study.file, "--trials", "+1", "--resume")
    assert "2 of 2 trials done" in output
    runs = study.runs(store)
    assert {key: run.info.status for key, run in runs.items()} == dict.fromkeys(["", "t0000", "t0001"], "FINISHED")
    assert runs[""].info.artifact_uri.startswith(study.folder.mlflow_artifacts.as_uri())

    listed = tutti("trials", study.folder.path, "--json", env={"TUTTI_DATABASE": database})
    assert [trial["state"] for trial in json.loads(listed)] == ["finished", "finished"]
    output += tutti("trials", study.folder.path, code=1)
    assert "no password supplied; give the password in $PGPASSWORD, in ~/.pgpass" in output
    assert "healthy" in tutti(
        "doctor", study.folder.path, env={"TUTTI_DATABASE": database, "MLFLOW_TRACKING_URI": store}
    )

    for file in (path for path in study.folder.path.rglob("*") if path.is_file()):
        content = file.read_bytes()
        assert secret.encode() not in content, file
        assert postgres.password.encode() not in content, file
    assert secret not in output
    assert postgres.password not in output

    for file in ("database.json", "owner"):  # as of a study that has not begun
        (tmp_path / "elsewhere" / "tiny" / file).unlink()
    for part in ("trials", "bank"):
        shutil.rmtree(tmp_path / "elsewhere" / "tiny" / part)
    text = study.file.read_text().replace(str(tmp_path / "studies"), str(tmp_path / "elsewhere"))
    theirs = replace(study, file=tmp_path / "theirs.yaml", folder=StudyFolder(tmp_path / "elsewhere" / "tiny"))
    theirs.file.write_text(text)
    refused = tutti("tune", theirs.file, "--resume", code=2)
    assert "the study 'tiny' must be new in its database; got one of that name, of another folder" in refused
