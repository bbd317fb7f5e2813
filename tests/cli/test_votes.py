"""What is made of finished studies: who votes."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest
from bad_input_run import run
from mlflow import MlflowClient
from voting_study import MOODS, make_study, write_files

import tutti
from tutti.orchestration.upkeep.lock import study_lock
from tutti.records import TextLimit
from tutti.tracking.store import experiment_id

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with the studies ``moods``, of two tasks, and ``second``, of the same."""
    folder = tmp_path_factory.mktemp("voting")
    write_files(folder / "data")
    make_study(folder, "moods")
    make_study(folder, "second", trials=2)
    return folder


def members(folder: Path) -> set[str]:
    card = json.loads((folder / "card.json").read_text(encoding="utf8"))
    return {member["key"] for member in card["tasks"][0]["members"]}


def test_two_studies_vote_together_from_the_command_line_and_from_a_recipe(place, tmp_path):
    (place / "own.yaml").write_text("members: {top: 5}\n")
    run(place, f"ensemble studies/moods --recipe own.yaml --with second --out {tmp_path / 'one'}", code=0)
    (place / "both.yaml").write_text("members: {studies: [second]}\n")
    result = run(place, f"ensemble studies/moods --recipe both.yaml --out {tmp_path / 'two'}", code=0)
    assert members(tmp_path / "one") == members(tmp_path / "two")
    assert {key.split("/")[0] for key in members(tmp_path / "one")} == {"moods", "second"}
    assert "The trials of the studies moods and second may vote together." in result.out
    result = run(place, f"pseudo-label studies/moods --with studies/second --out {tmp_path / 'three'}")
    assert "The trials of the studies moods and second may vote together." in result.out


def test_labels_that_an_earlier_run_has_left_are_not_said_to_be_written(place, tmp_path):
    recipe, command = place / "all.yaml", f"pseudo-label studies/moods --recipe all.yaml --out {tmp_path / 'labels'}"
    recipe.write_text("pseudo_labels: {select: all, max_drift: null}\n")
    assert f"wrote {tmp_path / 'labels/mood.tsv'}" in run(place, command, code=0).out
    recipe.write_text("pseudo_labels: {select: all, max_drift: 0.0001}\n")
    again = run(place, command).out
    assert "Task mood keeps its labels of an earlier run." in again
    assert f"wrote {tmp_path / 'labels/warmth.tsv'}" in again
    assert f"wrote {tmp_path / 'labels/mood.tsv'}" not in again


def test_a_trial_that_was_tagged_in_mlflow_votes_and_no_other(place, tmp_path):
    uri = f"sqlite:///{place / 'studies/second/mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    found = client.search_runs([experiment_id(uri, "second")], "tags.`tutti.trial` = 't0001'")
    client.set_tag(found[0].info.run_id, "vote", "yes")
    (place / "tagged.yaml").write_text("members: {filter: tags.vote = 'yes', studies: [second]}\n")
    run(place, f"ensemble studies/moods --recipe tagged.yaml --out {tmp_path / 'tagged'}", code=0)
    assert members(tmp_path / "tagged") == {"second/t0001"}


def test_a_recipe_s_template_lies_beside_the_recipe(place, tmp_path):
    (tmp_path / "sample.csv").write_text("row,mood\n" + "".join(f"t{row},?\n" for row in reversed(range(40))))
    (tmp_path / "own.yaml").write_text("submission: {format: csv, templates: {mood: sample.csv}}\n")
    run(place, f"ensemble studies/moods --recipe {tmp_path / 'own.yaml'} --out {tmp_path / 'out'}", code=0)
    head, first, *_ = (tmp_path / "out" / "mood.csv").read_text(encoding="utf8").splitlines()
    assert head == "row,mood"
    assert first.startswith("t39,")
    assert (tmp_path / "out" / "warmth.csv").read_text(encoding="utf8").startswith("id,label")


def test_a_report_is_one_page_in_the_study_and_in_mlflow(place):
    result = run(place, "report studies/moods --recipe auto", code=0)
    page = place / "studies/moods/report/report.html"
    assert f"wrote {page}" in result.out
    text = page.read_text(encoding="utf8")
    for part in ("The score of each trial", "The best trial and the vote of each task", "Accuracy by confidence"):
        assert f'aria-label="{part}"' in text
    assert re.search(r'href="http://127\.0\.0\.1:5000/tutti/\d+#\w+">t0000<', text)
    assert "5 trials: 4 finished, 1 stopped early" in text
    assert MOODS["sad"] in text  # of a row that is wrong or disputed
    uri = f"sqlite:///{place / 'studies/moods/mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    study = client.search_runs([experiment_id(uri, "moods")], "tags.`tutti.study` = 'moods'")[0]
    stored = {file.path for file in client.list_artifacts(study.info.run_id, "report")}
    assert stored == {f"report/{file.name}" for file in page.parent.iterdir()}


def test_the_rows_that_the_vote_has_wrong_are_written_for_relabelling(place, tmp_path):
    errors = tmp_path / "errors.csv"
    result = run(place, f"report studies/moods --errors {errors} --out {tmp_path / 'page'}", code=0)
    assert f"wrote {errors}" in result.out
    table = pandas.read_csv(errors, dtype=str, keep_default_na=False)
    assert {*table["task"]} == {"mood", "warmth"}
    mood = table[table["task"] == "mood"]
    assert (mood["label"] != mood["vote"]).all()
    assert mood["label_share"].astype(float).is_monotonic_increasing
    assert (table["new_label"] == "").all()
    assert {"t0000", "t0001"} & {*table.columns}
    run(place, f"report studies/moods --errors {errors} --out {tmp_path / 'page'}", code=0)
    table.assign(new_label="glad").to_csv(errors, index=False)
    result = run(place, f"report studies/moods --errors {errors} --out {tmp_path / 'page'}", code=2)
    assert "got one with labels in the column new_label" in result.message


def test_a_study_with_folds_says_everywhere_that_new_rows_differ_from_validation_rows(place, tmp_path):
    made = make_study(place, "folded", tasks=("mood",), trials=2)
    document = json.loads(made.study_file.read_text(encoding="utf8"))
    for split, times in (({"validation": 0.5}, 0), ({"folds": 5}, 1)):
        made.study_file.write_text(json.dumps({**document, "split": split}), encoding="utf8")
        for command in ("ensemble", "pseudo-label", "report"):
            result = run(place, f"{command} studies/folded --out {tmp_path / command}")
            shown = (tmp_path / "report/report.html").read_text(encoding="utf8") if command == "report" else result.out
            assert shown.count("With folds a validation row has") == times


def test_a_report_labels_no_row_that_a_voter_of_another_study_was_trained_on(place, tmp_path):
    pool = (place / "data/mood_pool.tsv").read_text(encoding="utf8").splitlines()
    extra = tmp_path / "extra.tsv"
    extra.write_text("".join(f"{row}\tcalm\n" for row in pool[:25]), encoding="utf8")
    make_study(place, "third", trials=1, extra_moods=extra)
    (place / "all.yaml").write_text("pseudo_labels: {threshold: 0.34, max_drift: 1.0}\n")
    labelled = {}
    for other in ("second", "third"):
        run(place, f"report studies/moods --recipe all.yaml --with {other} --out {tmp_path / other}", code=0)
        text = (tmp_path / other / "report.html").read_text(encoding="utf8")
        labelled[other] = int(re.search(r"(\d+) of 60 unlabelled rows", text)[1])
    assert 0 < labelled["third"] <= 60 - 25 < labelled["second"]


def test_a_study_without_a_finished_trial_is_reported_as_far_as_it_is(place, tmp_path):
    make_study(tmp_path, "early", trials=0, tasks=("mood",), data=place / "data")
    run(tmp_path, "report studies/early", code=0)
    text = (tmp_path / "studies/early/report/report.html").read_text(encoding="utf8")
    assert "No trial has finished yet" in text
    assert "1 stopped early" in text


def test_a_watched_report_reloads_itself_until_the_study_has_ended(place, tmp_path):
    make_study(tmp_path, "early", trials=0, tasks=("mood",), data=place / "data")
    study, page = tutti.open(tmp_path / "studies/early"), tmp_path / "page/report.html"
    with ThreadPoolExecutor() as pool:
        with study_lock(study.folder):  # it runs
            written = pool.submit(study.report, out=page.parent, watch=True)
            while not page.exists():
                assert not written.done()
                time.sleep(0.1)
            assert 'http-equiv="refresh" content="30"' in page.read_text(encoding="utf8")
        assert written.result(60)[0] == page
    assert 'http-equiv="refresh"' not in page.read_text(encoding="utf8")


def test_the_leaderboard_keeps_public_scores_beside_local_ones_and_in_mlflow(place, tmp_path):
    result = run(place, "leaderboard show studies/moods", code=0)
    assert "has no submissions with public scores" in result.out
    for number, (top, score) in enumerate([(1, 0.71), (2, 0.74), (4, 0.78)]):
        (tmp_path / f"top{top}.yaml").write_text(f"members: {{top: {top}}}\n")
        out = tmp_path / str(number)
        run(place, f"ensemble studies/moods --recipe {tmp_path / f'top{top}.yaml'} --out {out}", code=0)
        result = run(place, f"leaderboard add studies/moods {out} --score {score}", code=0)
    assert "Public and local scores of 3 submissions: Pearson" in result.out
    shown = run(place, "leaderboard show studies/moods", code=0).out
    assert [line for line in result.out.splitlines() if "top" in line] == [
        line for line in shown.splitlines() if "top" in line
    ]
    assert shown.index("0.7800") < shown.index("0.7400") < shown.index("0.7100")
    uri = f"sqlite:///{place / 'studies/moods/mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    study = client.search_runs([experiment_id(uri, "moods")], "tags.`tutti.study` = 'moods'")[0]
    history = client.get_metric_history(study.info.run_id, "leaderboard/public")
    assert [(point.step, point.value) for point in history] == [(1, 0.71), (2, 0.74), (3, 0.78)]
    assert len(client.get_metric_history(study.info.run_id, "leaderboard/local")) == 3
    assert [file.path for file in client.list_artifacts(study.info.run_id, "leaderboard")] == [
        "leaderboard/leaderboard.json"
    ]
    before = client.get_run(study.info.run_id).data.metrics["leaderboard/pearson"]
    run(place, f"leaderboard add studies/moods {tmp_path / '0'} --score 0.79", code=0)
    assert client.get_run(study.info.run_id).data.metrics["leaderboard/pearson"] != before


def test_a_study_of_one_task_votes_in_it_beside_one_of_several(place, tmp_path, monkeypatch):
    data = shutil.copytree(place / "data", tmp_path / "apart")
    warmth = data / "warmth_train.tsv"  # with texts of its own: tasks that share texts are split together
    warmth.write_text(re.sub(r"(?m)^(\w+\t)", r"\1as warm as ", warmth.read_text(encoding="utf8")), encoding="utf8")
    make_study(place, "several", data=data)
    make_study(place, "single", tasks=("mood",), trials=2, data=data)
    (place / "by_task.yaml").write_text("members: {top: 9, by: task}\npseudo_labels: {threshold: 0.5, max_drift: 1}\n")
    voters = {"mood": {"several", "single"}, "warmth": {"several"}}

    def studies_in(card: Path) -> dict[str, set[str]]:
        tasks = json.loads(card.read_text(encoding="utf8"))["tasks"]
        return {task["task"]: {member["key"].split("/")[0] for member in task["members"]} for task in tasks}

    options = "--recipe by_task.yaml --with single --out"
    result = run(place, f"ensemble studies/several {options} {tmp_path / 'vote'}", code=0)
    assert "Those of single may vote in mood alone." in result.out
    assert studies_in(tmp_path / "vote/card.json") == voters
    run(place, f"pseudo-label studies/several {options} {tmp_path / 'labels'}", code=0)
    assert studies_in(tmp_path / "labels/card.json") == {"mood": {"several", "single"}}
    run(place, f"report studies/several {options} {tmp_path / 'page'}", code=0)
    page = (tmp_path / "page/report.html").read_text(encoding="utf8")
    assert page.count("<td>single/t0000</td>") == 1  # in the table of members
    run(place, f"ensemble studies/single {options.replace('single', 'several')} {tmp_path / 'other'}", code=0)
    assert studies_in(tmp_path / "other/card.json") == {"mood": {"several", "single"}}

    asked = {}

    def weights_of(folder, keys, *, tasks, **_):
        asked[folder.path.name, tasks[0].name] = len(keys)
        return {key: [folder.trial(key).best] for key in keys}

    monkeypatch.setattr("tutti.orchestration.after.weights.weights_of", weights_of)
    monkeypatch.setattr("tutti.modeling.checkpoint.read_metadata", lambda _: SimpleNamespace(limit=TextLimit(8)))
    monkeypatch.setattr("tutti.workflows.predict._fingerprints", lambda _: sys.exit(7))
    for task in voters:
        command = f"predict studies/several --task {task} --input data/{task}_test.tsv"
        result = run(place, f"{command} {options} {tmp_path / 'new.csv'}", code=7)
        assert f"by recipe by_task: {6 if task == 'mood' else 4} trials" in result.out
    assert asked == {("several", "mood"): 4, ("single", "mood"): 2, ("several", "warmth"): 4}


def test_the_pair_of_submissions_with_the_best_expected_score_is_chosen(place):
    with_one = run(place, "leaderboard choose studies/second", code=2)
    assert "have two submissions to choose; got " in with_one.message
    for recipe in ("baseline", "stacking"):
        run(place, f"ensemble studies/second --recipe {recipe}", code=0)
    run(place, "leaderboard add studies/second studies/second/ensembles/baseline --score 0.3", code=0)
    result = run(place, "leaderboard choose studies/second --public-share 0.5", code=0)
    assert re.search(r"Choose (baseline and stacking|stacking and baseline)\.", result.out)
    assert "Beware: Public scores are" in result.out
    (place / "baseline.yaml").write_text("members: {top: 1}\n")
    run(place, "ensemble studies/second --recipe baseline.yaml --out studies/second/ensembles/baseline", code=0)
    result = run(place, "leaderboard choose studies/second --public-share 0.5", code=0)
    assert "baseline was written anew since its public score was added" in result.out
    assert "No public score is known" in result.out
