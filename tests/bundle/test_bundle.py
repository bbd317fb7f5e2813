"""A bundle predicts as Tutti does, without Tutti."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kind_studies import EXAMPLES, contract, study_with_weights

import tutti
from tutti.bundle.carried import imports, modules
from tutti.bundle.predict import Bundle
from tutti.errors import StudyError, TaskFileError
from tutti.records import TextLimit

RECIPE = "members: {top: 3, by: task}\nmethod: stacking\ndecision: offsets\ncalibration: temperature\n"
NEEDED = {"torch", "transformers", "tokenizers", "safetensors", "numpy", "regex"}  # the last by transformers
KINDS = [name for name in EXAMPLES if name != "text"]
BLOCKED = """
import runpy, sys

NOT_THERE = ("tutti", "ray", "mlflow", "optuna", "pandas", "pyarrow", "datasets", "pydantic", "sklearn", "scipy",
             "peft", "accelerate")

class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in NOT_THERE else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
for place in sys.argv[1:]:
    folder, rows, out = place.split("=")
    sys.argv = ["predict.py", "--input", rows, "--out", out]
    sys.path.insert(0, folder)
    runpy.run_path(folder + "/predict.py", run_name="__main__")
    sys.path.remove(folder)
"""


def recipe(folder: Path, text: str = RECIPE) -> str:
    file = folder / "own.yaml"
    file.write_text(text)
    return str(file)


def plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def assert_equal_tables(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    assert list(found) == list(expected)
    for name in expected:
        if expected[name].dtype.kind == "f":
            np.testing.assert_allclose(found[name].to_numpy(float), expected[name], atol=1e-5)
        else:
            assert found[name].tolist() == expected[name].tolist()


def test_bundles_of_every_kind_predict_as_the_vote_does_where_tutti_is_not_installed(tmp_path):
    expected, places = {}, []
    for name in KINDS:
        folder = tmp_path / name.replace(" ", "_")
        folder.mkdir()
        more = "cleaning: {emoji: en}" if name == "classes" else ""
        study = study_with_weights(folder, name, limit=TextLimit(16, swap=name.startswith("pairs")), more=more)
        rows = (folder / "test.csv").read_text()
        if name == "classes":
            rows += "last,text 1 \U0001f602 test 2\n"
        (folder / "new.csv").write_text(rows)
        vote = study.ensemble(recipe(folder))
        vote.export(folder / "bundle")
        frame = pd.read_csv(folder / "new.csv", dtype=str, keep_default_na=False)
        expected[name] = vote.predict(frame)
        places.append(f"{folder / 'bundle'}={folder / 'new.csv'}={folder / 'out.jsonl'}")
    script = tmp_path / "blocked.py"
    script.write_text(BLOCKED)
    done = subprocess.run(
        [sys.executable, str(script), *places], capture_output=True, text=True, env=plain_environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    for name, table in expected.items():
        lines = (tmp_path / name.replace(" ", "_") / "out.jsonl").read_text(encoding="utf8").splitlines()
        assert_equal_tables(pd.DataFrame(map(json.loads, lines)), table)


def test_what_a_bundle_carries_imports_only_what_it_may():
    others = {name.partition(".")[0] for file in modules().values() for name in imports(file)} - {"tutti", "__future__"}
    assert others - set(sys.stdlib_module_names) <= NEEDED | {"pyarrow"}  # which Parquet alone needs


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return study_with_weights(tmp_path_factory.mktemp("study"), "classes")


@pytest.fixture(scope="module")
def bundle(study, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    study.export(folder / "bundle", recipe=recipe(folder), members=2, quantize="int8")
    return folder / "bundle"


def test_a_bundle_has_a_card_an_example_and_no_pickle(bundle):
    names = {file.relative_to(bundle).as_posix() for file in bundle.rglob("*") if file.is_file()}
    assert {"README.md", "predict.py", "example.json", "bundle.json", "MLmodel", "requirements.txt"} <= names
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".bin", ".pt"))]
    card = (bundle / "README.md").read_text()
    assert "| the vote |" in card
    assert "int8 changes" in card
    rows = json.loads((bundle / "example.json").read_text())
    assert Bundle(bundle).predict(rows)["label"][0] in ("calm", "glad", "sad")


def test_members_limits_the_vote_and_quantised_layers_change_little(bundle):
    assert len(json.loads((bundle / "bundle.json").read_text())["members"]) == 2
    rows = [{"id": "a", "text": f"text {number} test"} for number in range(40)]
    quantised, exact = Bundle(bundle), Bundle(bundle, quantize="none")
    assert quantised.precision == "int8"
    found, plain = (each.predict(rows)["p_calm"] for each in (quantised, exact))
    assert 0 < np.abs(found - plain).max() < 0.2


def test_weights_of_8_bits_are_what_the_folder_holds_and_predict_as_those_quantised_when_it_is_loaded(
    study, bundle, tmp_path
):
    study.export(tmp_path / "exact", recipe=recipe(tmp_path), members=2)
    rows = [{"id": "a", "text": f"text {number} test"} for number in range(40)]
    stored, at_load = Bundle(bundle), Bundle(tmp_path / "exact", quantize="int8")
    np.testing.assert_array_equal(stored.predict(rows)["p_calm"], at_load.predict(rows)["p_calm"])
    sizes = [sum(file.stat().st_size for file in each.rglob("members/*/*.safetensors")) for each in (bundle, tmp_path)]
    assert sizes[0] < 0.75 * sizes[1]  # embeddings stay as they are


def test_a_vote_predicts_without_its_guests_and_tells_what_it_then_scores(study, tmp_path, capsys):
    tables = {file.stem: file for file in study.export_predictions("t0001", tmp_path / "given")}
    study.import_predictions("lgbm", **tables)
    try:
        tutti.open(study.folder.path).export(
            tmp_path / "bundle", recipe=recipe(tmp_path, "members: {top: 5, by: task}\n")
        )
    finally:
        study.bank.remove("lgbm")
    members = json.loads((tmp_path / "bundle" / "bundle.json").read_text())["members"]
    assert sorted(each["folder"] for each in members) == [f"members/t000{number}" for number in range(4)]
    told = " ".join(capsys.readouterr().out.split())
    assert re.search(r"Guests \(lgbm\) have no weights, .* without them the vote scores \S+ [01]\.\d+", told)


@pytest.mark.parametrize(
    ("rows", "message"),
    [([{"id": "1"}], "have the column 'text'"), ([], "no rows"), ("text", "be a list of objects")],
)
def test_rows_that_do_not_fit_are_told_in_a_sentence(bundle, rows, message):
    with pytest.raises(TaskFileError, match=message):
        Bundle(bundle).predict(rows)


def test_a_damaged_bundle_names_the_file(study, tmp_path):
    study.export(tmp_path / "bundle", recipe=recipe(tmp_path, "members: {top: 1}\n"))
    weights = next((tmp_path / "bundle" / "members").glob("*/model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-4] + b"oops")
    with pytest.raises(Exception, match=r"model\.safetensors must be what it was"):
        Bundle(tmp_path / "bundle")


def test_one_checkpoint_such_as_a_soup_is_exported_alike(study, tmp_path):
    checkpoint = study.folder.trial("t0002").best
    study.export(tmp_path / "bundle", checkpoint=checkpoint)
    rows = study.folder.path.parents[1] / "test.csv"
    blocks = list(Bundle(tmp_path / "bundle").predict_file(rows))
    from tutti.workflows.predict import FramePredictor, single_checkpoint

    task = study.prepared.tasks[0]
    predictor = FramePredictor(study.stored, task, single_checkpoint(study.stored, task, checkpoint))
    frame = pd.read_csv(rows, dtype=str)
    assert_equal_tables(pd.concat(map(pd.DataFrame, blocks)).reset_index(drop=True), predictor(frame))


def test_members_that_fit_into_the_hours_are_kept_by_their_worth(study, tmp_path):
    file = recipe(tmp_path)
    slow = study.export(tmp_path / "all", recipe=file).speed
    hours = 1.2 * max(slow.members.values()) / 3600
    study.export(tmp_path / "some", recipe=file, max_hours=hours, rows=1000)
    kept = json.loads((tmp_path / "some" / "bundle.json").read_text())["members"]
    assert 1 <= len(kept) < 3
    with pytest.raises(StudyError, match="leave a member that takes"):
        study.export(tmp_path / "none", recipe=file, max_hours=1e-9, rows=10**9)
    assert not (tmp_path / "none").exists()


def test_texts_are_refused_with_the_reason(tmp_path):
    study = study_with_texts(tmp_path)
    with pytest.raises(StudyError, match="have labels or numbers to predict"):
        study.export(tmp_path / "bundle")


def study_with_texts(folder: Path):
    from tutti.config.folder import StudyFolder
    from tutti.config.load import dump_study
    from tutti.files import write_whole
    from tutti.workflows.study import Study

    made = contract.make(folder, contract.EXAMPLES["text"])
    place = StudyFolder(folder / "studies" / "kinds")
    place.path.mkdir(parents=True)
    (folder / "data").rename(place.data)
    write_whole(place.study_file, dump_study(made.config))
    return Study(place, quiet=True)


def test_two_bundles_predict_side_by_side(study, bundle, tmp_path):
    import importlib.util

    loaded = []
    for number in range(2):
        spec = importlib.util.spec_from_file_location(f"predict{number}", bundle / "predict.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        loaded.append(module.load(quantize="none"))
    first, second = (each.predict([{"text": "text 1"}])["p_calm"] for each in loaded)
    np.testing.assert_array_equal(first, second)
