"""``tutti predict`` on a study that was really run: new rows, a kill in the middle, the same file in the end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from tutti.bank.bank import Bank
from tutti.data.encode import encode_rows, load_tokenizer
from tutti.data.flat_rows import SHARD
from tutti.orchestration.after.inference import Predictor
from tutti.records import TextLimit
from tutti.workflows.study import open_study

pytestmark = [pytest.mark.ray, pytest.mark.slow]
SHARDS = 60


@pytest.fixture
def many_rows(tiny_data, tmp_path) -> Path:
    """The study's own test rows, followed by enough others to kill a run among them."""
    rng = np.random.default_rng(0)
    file = tmp_path / "new.tsv"
    lines = (tiny_data / "mood_test.tsv").read_text(encoding="utf8").splitlines()
    for row in range(SHARDS * SHARD - len(lines) - 7):
        lines.append(f"n{row}\t" + " ".join(f"w{word}" for word in rng.integers(0, 60, size=rng.integers(0, 14))))
    file.write_text("\n".join(lines) + "\n", encoding="utf8")
    return file


def test_a_run_that_was_cut_off_twice_gives_the_bytes_of_one_that_was_not(
    finished, tutti, tutti_command, many_rows, tmp_path
):
    out, whole = tmp_path / "killed.csv", tmp_path / "whole.csv"
    command = ["predict", finished.study.folder.path, "--task", "mood", "--input", many_rows, "--out"]
    running = tutti_command(*command, out)
    shards = tmp_path / "killed.csv.shards"
    running.wait_for(lambda: len(list(shards.glob("*.parquet"))) > 2, what="some shards")
    running.kill()
    there = len(list(shards.glob("*.parquet")))
    assert there < SHARDS, "it was over before it could be killed"
    assert not out.exists()
    running = tutti_command(*command, out)
    running.wait_for(lambda: len(list(shards.glob("*.parquet"))) > there + 2, what="further shards")
    running.process.terminate()
    assert running.wait() == 130
    assert "Interrupted; run the same command again" in running.output
    output = tutti(*command, out)
    assert f"of {SHARDS} shards are done" in output
    assert not shards.exists()
    tutti(*command, whole)
    assert out.read_bytes() == whole.read_bytes()

    table = pa.csv.read_csv(whole, convert_options=pa.csv.ConvertOptions(column_types={"id": pa.string()}))
    ids = [line.split("\t")[0] for line in many_rows.read_text(encoding="utf8").splitlines()]
    assert table["id"].to_pylist() == ids
    bank = Bank(finished.study.folder.bank)
    predictions = [
        bank.predictions(key, "mood", "test") for key in ("t0000", "t0001")
    ]  # its recipe takes the two alike
    expected = np.mean([each.outputs for each in predictions], axis=0)
    rows = len(predictions[0].ids)
    assert predictions[0].ids.tolist() == ids[:rows]
    found = np.stack([table[f"p_{name}"].to_numpy() for name in predictions[0].names], axis=1)
    np.testing.assert_allclose(found[:rows], expected, atol=1e-5)
    np.testing.assert_array_equal(table["confidence"].to_numpy(), found.max(axis=1))
    assert table["label"].to_pylist() == [predictions[0].names[index] for index in found.argmax(axis=1)]


def test_a_soup_is_a_checkpoint_that_predicts_pairs_of_a_table(finished, tutti, tiny_data, tmp_path):
    study = finished.copy(tmp_path)
    (tmp_path / "mixed.yaml").write_text("members: {top: 2}\nsoup: {within: 1}\n")  # however good the vote is
    output = tutti("soup", study.folder.path, "--recipe", tmp_path / "mixed.yaml")
    soup = study.folder.soups / "mixed" / "checkpoint"
    card = json.loads((soup.parent / "card.json").read_text(encoding="utf8"))
    assert f"wrote {soup}" in output
    assert card["kept"]
    scores = {record.key: record.score for record in Bank(study.folder.bank).records()}
    assert [tried["key"] for tried in card["tried"]] == sorted(scores, key=scores.__getitem__, reverse=True)
    best = card["tried"][0]
    assert best["score"] == pytest.approx(scores[best["key"]])  # the first one is as good as it was when it was trained
    assert card["files"].keys() == {path.relative_to(soup.parent).as_posix() for path in soup.iterdir()}

    rows = [line.split("\t") for line in (tiny_data / "same_test.tsv").read_text(encoding="utf8").splitlines()]
    table = pa.table({"text_b": [row[2] for row in rows], "extra": [1] * len(rows), "text": [row[1] for row in rows]})
    pa.parquet.write_table(table, tmp_path / "pairs.parquet")
    out = tmp_path / "out.parquet"
    out.write_bytes(b"of an earlier day")
    command = ["--input", tmp_path / "pairs.parquet", "--out", out, "--checkpoint", soup]
    tutti("predict", study.folder.path, "--task", "same", *command)
    found = pa.parquet.read_table(out)
    assert found["id"].to_pylist() == [str(row) for row in range(len(rows))]
    encoded = encode_rows(table, tokenizer=load_tokenizer(str(soup)), limit=TextLimit(16))
    worker = Predictor({0: soup}, 1)
    expected = worker.predict(0, "same", encoded, 0, worker.load({}))
    np.testing.assert_allclose(np.stack([found["p_0"], found["p_1"]], axis=1), expected, atol=1e-5)


@pytest.mark.strain
def test_members_of_two_studies_predict_each_with_its_own_tokenizer(finished, make_study, tutti, tiny_data, tmp_path):
    own = tmp_path / "backbone"
    shutil.copytree(tiny_data / "backbone", own)
    tokenizer = json.loads((own / "tokenizer.json").read_text(encoding="utf8"))
    words = tokenizer["model"]["vocab"]
    words |= {f"w{number}": words["w59"] - number for number in range(60)}  # the same words, other numbers
    (own / "tokenizer.json").write_text(json.dumps(tokenizer))
    twin = make_study(tmp_path, study="twin", backbone=str(own), search__trials=1, training__bf16=False)
    tutti("tune", twin.file)
    out, file = tmp_path / "both.parquet", tiny_data / "mood_test.tsv"
    given = ["--task", "mood", "--input", file, "--out", out, "--with", twin.folder.path]
    (tmp_path / "all.yaml").write_text("members: {top: 3}\n")
    output = tutti("predict", finished.study.folder.path, "--recipe", tmp_path / "all.yaml", *given)
    assert "3 trials" in output
    assert "twin/t0000" in output
    assert "in float32" in output  # which the twin alone asks for
    voters = [(finished.study, "t0000"), (finished.study, "t0001"), (twin, "t0000")]
    expected = np.mean(
        [Bank(study.folder.bank).predictions(key, "mood", "test").outputs for study, key in voters], axis=0
    )
    table = pa.parquet.read_table(out)
    found = np.stack([table[f"p_{name}"].to_numpy() for name in ("calm", "glad", "sad")], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_later_test_files_of_all_tasks_become_the_submission_that_the_ensemble_writes(
    finished, tutti, tiny_data, tmp_path
):
    study, own = finished.study.folder.path, tmp_path / "own"
    tutti("ensemble", study, "--out", own)
    files = {task: shutil.copy(tiny_data / f"{task}_test.tsv", tmp_path / f"{task}_b.tsv") for task in ("mood", "same")}
    given = ["--inputs", f"mood={files['mood']}", f"same={files['same']}", "--submission", "competition"]
    output = tutti("predict", study, *given, "--out", tmp_path / "later")
    assert "submission.zip" in output
    names = ["mood_predict.json", "same_predict.json", "submission.zip"]
    assert [(own / name).read_bytes() == (tmp_path / "later" / name).read_bytes() for name in names] == [True] * 3
    card = json.loads((tmp_path / "later" / "card.json").read_text(encoding="utf8"))
    assert card["kind"] == "ensemble"
    assert card["tasks"][0]["rows"]["test"] == 23


def test_later_test_files_are_predicted_without_guests_which_know_those_of_the_study_alone(
    finished, tutti, tiny_data, tmp_path
):
    study = finished.copy(tmp_path)
    opened = open_study(study.folder.path)
    tables = {file.stem: file for file in opened.export_predictions("t0000", tmp_path / "given", task="mood")}
    opened.import_predictions("lgbm", task="mood", **tables)
    recipe = tmp_path / "all.yaml"
    recipe.write_text("members: {top: 9, by: task}\n", encoding="utf8")
    tutti("ensemble", study.folder.path, "--recipe", recipe, "--out", tmp_path / "own")
    given = ["--inputs", f"mood={tiny_data / 'mood_test.tsv'}", "--submission", "competition", "--recipe", recipe]
    assert "Guests (lgbm) have no weights" in tutti("predict", study.folder.path, *given, "--out", tmp_path / "later")
    cards = [json.loads((tmp_path / place / "card.json").read_text(encoding="utf8")) for place in ("own", "later")]
    voters = [{each["key"] for each in card["tasks"][0]["members"]} for card in cards]
    assert voters[0] - voters[1] == {"lgbm"}


def test_a_set_that_a_resumed_study_is_given_is_predicted_into_the_bank(finished, tutti, tiny_data, tmp_path):
    study = finished.copy(tmp_path)
    later = tmp_path / "mood_b.tsv"
    later.write_text((tiny_data / "mood_test.tsv").read_text(encoding="utf8").replace("t", "b", 1), encoding="utf8")
    added = ["--resume", "--set", f"tasks.mood.test.B={later}"]
    tutti("tune", study.file, *added, "--set", f"storage.path={study.folder.path.parent}")
    command = ["ensemble", study.folder.path, "--out", tmp_path / "out"]
    assert f"run `tutti predict {study.folder.name}`" in tutti(*command, code=2)
    assert "mood/test-B" in tutti("predict", study.folder.path)
    bank = Bank(study.folder.bank)
    one, other = (bank.predictions("t0000", "mood", part) for part in ("test", "test-B"))
    np.testing.assert_allclose(one.outputs, other.outputs, atol=0.02)  # it may be bfloat16
    tutti(*command)
    assert {path.name for path in (tmp_path / "out" / "B").iterdir()} == {"mood_predict.json", "submission.zip"}
    assert "every test set" in tutti("predict", study.folder.path)
