"""``tutti ensemble`` and ``tutti pseudo-label`` on a study that was really run, once its weights are gone."""

from __future__ import annotations

import json
import shutil
import zipfile

import pytest

from tutti.files import sha256_of

pytestmark = pytest.mark.ray
TASKS = {"mood": {"calm", "glad", "sad"}, "same": {"0", "1"}}


@pytest.fixture(scope="module")
def pruned(finished, tmp_path_factory):
    """The finished study without any weights."""
    study = finished.copy(tmp_path_factory.mktemp("pruned"))
    shutil.rmtree(study.folder.path / "trials")
    return study


def column(file, index: int) -> list[str]:
    return [line.split("\t")[index] for line in file.read_text(encoding="utf8").splitlines()]


def test_an_ensemble_needs_no_weights_and_predicts_the_test_file_row_by_row(pruned, tutti, tiny_data, tmp_path):
    out = tmp_path / "submission"
    output = tutti("ensemble", pruned.folder.path, "--out", out)
    for task, classes in TASKS.items():
        rows = [json.loads(line) for line in (out / f"{task}_predict.json").read_text(encoding="utf8").splitlines()]
        assert [row["id"] for row in rows] == column(tiny_data / f"{task}_test.tsv", 0)
        assert {row["label"] for row in rows} <= classes
        assert f"wrote {out / f'{task}_predict.json'}" in output
    with zipfile.ZipFile(out / "submission.zip") as archive:
        assert sorted(archive.namelist()) == [f"{task}_predict.json" for task in TASKS]
    card = json.loads((out / "card.json").read_text(encoding="utf8"))
    assert card["files"] == {
        path.name: sha256_of(path) for path in out.iterdir() if path.name not in ("card.json", "card.md")
    }
    assert {member["key"] for task in card["tasks"] for member in task["members"]} == {"t0000", "t0001"}
    assert (out / "card.md").read_text(encoding="utf8").startswith("# Ensemble `recipe` of study `tiny`")


def test_pseudo_labels_are_training_rows_of_the_next_study(pruned, tutti, tiny_data, make_study, tmp_path):
    from tutti.workflows import stores
    from tutti.workflows.base import StudyBase
    from tutti.workflows.preparation import prepare_study

    out = tmp_path / "pseudo"
    output = tutti("pseudo-label", pruned.folder.path, "--out", out)
    files = {task: out / f"{task}.tsv" for task in TASKS}
    for task, file in files.items():
        assert f"wrote {file}" in output
        assert set(column(file, 0)) <= set(column(tiny_data / f"{task}_unlabeled.tsv", 0))
        assert set(column(file, -1)) <= TASKS[task]
        assert column(file, 0)
    extra = {f"tasks__{task}__extra_train": [{"path": str(file), "weight": 0.5}] for task, file in files.items()}
    second = make_study(tmp_path, study="round2", **extra)
    config, folder = stores.read_study_file(second.file, overrides=[])
    prepared = prepare_study(StudyBase(config, folder), resume=False)
    for task, file in files.items():
        assert prepared.parts[task]["train"].rows == 90 + len(column(file, 0))
        added = [row for row in prepared.ids(task, "train").tolist() if row.startswith("extra0/")]
        assert added == [f"extra0/{row}" for row in column(file, 0)]
