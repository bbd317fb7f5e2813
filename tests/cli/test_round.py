"""``tutti round`` on a real Ray, killed once on the way; and what it refuses before anything is trained."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from bad_input_run import run
from voting_study import make_study as make_voting_study
from voting_study import write_files

from tutti.bank.bank import Bank
from tutti.cli import study as cli_study
from tutti.cli.demo import demo
from tutti.config.folder import StudyFolder
from tutti.config.load import parse_study
from tutti.config.recipe import Recipe
from tutti.config.study import ExtraTrain
from tutti.ensembling.nested import Estimate
from tutti.errors import Fault, TrialError
from tutti.outputs.pseudo import rounds
from tutti.outputs.pseudo.rounds import Round
from tutti.workflows import demo as demo_
from tutti.workflows import round as round_

STUDENT = "members: {top: 3}\npseudo_labels: {select: all, labels: soft, max_drift: null}\n"


@pytest.mark.slow
@pytest.mark.ray
def test_a_round_that_was_killed_goes_on_and_is_judged_against_its_control(finished, tutti_command, tutti, tmp_path):
    study = finished.copy(tmp_path)
    recipe, place = tmp_path / "student.yaml", study.folder.path / "rounds" / "1"
    recipe.write_text(STUDENT)
    ours = StudyFolder(study.folder.path.parent / "tiny-round-1")
    control = StudyFolder(study.folder.path.parent / "tiny-round-1-control")
    command = ("round", study.folder.path, "--recipe", recipe, "--trials", "1")

    killed = tutti_command(*command)
    killed.wait_for(lambda: Bank(ours.bank).records(), what="a trial of the round")
    os.killpg(killed.process.pid, signal.SIGKILL)
    killed.kill()
    labels = {file.name: file.stat().st_mtime_ns for file in (place / "labels").iterdir()}
    result = tutti(*command)
    assert "Continuing round 1" in result
    assert labels == {file.name: file.stat().st_mtime_ns for file in (place / "labels").iterdir()}

    with_labels, without = parse_study(ours.study_file), parse_study(control.study_file)
    # 37 soft rows for each of two tasks of 90 rows: 8 batches of 16 each, 2 epochs
    assert with_labels.training["max_steps"] == without.training["max_steps"] == 32
    # of 2 epochs 6 in all, of 32 steps at 12 an epoch 6 too
    assert (with_labels.evals_per_epoch, without.evals_per_epoch) == (3, 2)
    assert with_labels.search == without.search
    assert [str(extra.path) for extra in with_labels.tasks["mood"].extra_train] == [
        str(place / "labels" / "mood.soft.parquet")
    ]
    assert without.tasks["mood"].extra_train == ()
    ended = json.loads((place / "round.json").read_text(encoding="utf8"))
    assert (ended["number"], ended["recipe"], ended["teachers"]) == (1, "student", ["tiny"])
    gain = ended["objective"]["round"]["score"] - ended["objective"]["control"]["score"]
    assert ended["objective"]["gain"]["score"] == pytest.approx(gain)
    assert ended["kept"] <= (gain > ended["objective"]["gain"]["error"])
    assert ended["kept"] == ("Round 1 is kept" in result)
    assert (place / "ensemble" / "card.json").is_file() == ended["kept"]
    for folder in (ours, control):
        assert len(Bank(folder.bank).records()) == 1

    again = tutti(*command, code=2)  # all rows are labelled by now, or the recipe is known to gain nothing
    assert ("have seen each row of task mood with a label" if ended["kept"] else "which was not kept") in again


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rounds")
    write_files(folder / "data")
    file = make_voting_study(folder, "moods", trials=7).study_file
    document = json.loads(file.read_text(encoding="utf8"))
    file.write_text(json.dumps({**document, "split": {"validation": 0.5}}), encoding="utf8")  # as it was prepared
    return folder


def test_a_round_without_a_single_label_is_refused_and_leaves_nothing_behind(place):
    (place / "none.yaml").write_text("pseudo_labels: {threshold: 1.0}\n")
    result = run(place, "round studies/moods --recipe none.yaml", code=2)
    assert "No row of task mood reached 1: no file was written for it." in result.out
    assert "round 1 must have pseudo-labels; got none, for the reasons above; do what they say." in result.err
    assert not (place / "studies/moods/rounds").exists() or not any((place / "studies/moods/rounds").iterdir())


@pytest.mark.parametrize(("recipe", "code"), [("same", 0), ("another", 2)])
def test_rounds_that_were_cut_off_between_two_end_as_without_that(place, monkeypatch, recipe, code):
    (place / "none.yaml").write_text("pseudo_labels: {threshold: 1.0}\n")
    monkeypatch.setattr(Recipe, "sha256", "same")
    ended = [Round(1, "none", recipe, "moods", ("moods",), kept=True)]
    monkeypatch.setattr(rounds, "ended_rounds", lambda _: ended)
    result = run(place, "round studies/moods --recipe none.yaml --until-no-gain", code=code)
    assert ("Round 2 has no pseudo-labels: rounds end here." in result.out) == (code == 0)


@pytest.mark.parametrize("refused", [True, False])
def test_a_recipe_that_gained_nothing_is_tried_again_only_with_other_teachers(place, monkeypatch, refused):
    (place / "none.yaml").write_text("pseudo_labels: {threshold: 1.0}\n")
    monkeypatch.setattr(Recipe, "sha256", "same")
    ended = [
        Round(1, "r", "same", "moods-round-1", ("moods",), kept=False),
        Round(2, "r", "another", "moods-round-2", ("moods",), kept=not refused),
    ]
    monkeypatch.setattr(rounds, "ended_rounds", lambda _: ended)
    monkeypatch.setattr(round_, "_plan", lambda *_, **__: pytest.fail("it goes on") if refused else sys.exit(7))
    result = run(place, "round studies/moods --recipe none.yaml", code=2 if refused else 7)
    assert ("must differ from that of round 1, which was not kept; got the same" in result.err) == refused


def test_labels_that_drift_end_a_round_before_anything_is_trained(place):
    (place / "drift.yaml").write_text("pseudo_labels: {select: quantile, max_drift: 0.001}\n")
    result = run(place, "round studies/moods --recipe drift.yaml", code=2)
    assert "points above that among the training rows" in result.out or "points below that" in result.out
    assert "max_drift allows 0.1: no file was written for it" in result.out


def test_a_round_goes_on_only_with_the_recipe_it_was_begun_with(place):
    folder = place / "studies/moods/rounds/1"
    folder.mkdir(parents=True, exist_ok=True)
    plan = {"recipe": "other", "recipe_sha256": "0", "teachers": ["moods"], "finished": 7, "trials": 1}
    (folder / "plan.json").write_text(json.dumps(plan))
    result = run(place, "round studies/moods --recipe baseline", code=2)
    assert "the recipe baseline must be that which round 1 was begun with; got another one than other" in result.err
    (folder / "plan.json").write_text("{")
    result = run(place, "round studies/moods --recipe baseline", code=1)
    assert "rounds/1/plan.json must be as `tutti round` wrote it" in result.err
    shutil.rmtree(folder)


def test_a_round_has_no_more_trials_than_the_study_has_points(place):
    (place / "student.yaml").write_text(STUDENT)
    result = run(place, "round studies/moods --recipe student.yaml --trials 9", code=2)
    assert "--trials must be at most the 7 points of finished trials, to train each once; got 9" in result.err
    assert not (place / "studies/moods/rounds/1").exists()


def test_a_round_goes_on_only_with_as_many_trials_as_it_was_begun_with(place, monkeypatch):
    monkeypatch.setattr(round_, "_run", lambda *_: False)
    (place / "student.yaml").write_text(STUDENT)
    command = "round studies/moods --recipe student.yaml"
    assert "Round 1: pseudo-labels of moods" in run(place, f"{command} --trials 2", code=0).out
    result = run(place, f"{command} --trials 3", code=2)
    assert (
        "--trials 3 must be that which round 1 was begun with; got another one than 2; leave it out, or" in result.err
    )
    for given in ("--trials 2", ""):
        assert "Continuing round 1" in run(place, f"{command} {given}", code=0).out
    shutil.rmtree(place / "studies/moods/rounds")


def test_a_round_trains_on_hard_labels_of_a_task_that_is_called_soft(place, monkeypatch):
    def report(name, soft):
        return SimpleNamespace(task=name, file=f"{name}.parquet", soft=soft, written=1)

    labels: dict[str, list[ExtraTrain]] = {}
    tasks = [report("mood.soft", soft=False), report("mood", soft=True)]
    labelled = SimpleNamespace(files=1, tasks=tasks)
    monkeypatch.setattr(round_, "show_pseudo_labels", lambda *_: None)
    made = SimpleNamespace(write=lambda: labelled, folder=place / "labels")
    monkeypatch.setattr(round_.pseudo, "make_pseudo_labels", lambda *_, **__: made)
    monkeypatch.setattr(
        "tutti.orchestration.after.rounds.studies_with_labels",
        lambda *_, **given: labels.update(given["labels"]) or sys.exit(7),
    )
    (place / "student.yaml").write_text(STUDENT)
    run(place, "round studies/moods --recipe student.yaml", code=7)
    assert [extra.labels for files in labels.values() for extra in files] == ["hard", "soft"]


def test_a_round_that_is_interrupted_names_the_command_that_goes_on_with_it(place, monkeypatch):
    def interrupted(study, **__):
        raise TrialError(Fault("the study", "go on", "Ctrl-C", study.again(but="search.max_hours")))

    monkeypatch.setattr(round_.tune, "run", interrupted)
    monkeypatch.setattr(cli_study, "program", lambda: "tutti")
    (place / "student.yaml").write_text(STUDENT)
    for options in (" --recipe student.yaml --trials 2 --until-no-gain", " --recipe student.yaml"):
        result = run(place, f"round studies/moods{options}", code=1)
        assert f"tutti round studies/moods{options}." in result.err
    shutil.rmtree(place / "studies/moods/rounds")


@pytest.mark.parametrize(
    ("gain", "error", "why"),
    [
        (-0.01, 0.02, "it gains nothing over its control (-0.0100)"),
        (0.01, 0.02, "it gains +0.0100 over its control, not more than one standard error, 0.0200"),
        (0.03, 0.02, "it gains +0.0300 over its control, but scores below the ensemble without either"),
    ],
)
def test_a_round_that_is_not_kept_says_what_it_lacks(gain, error, why):
    assert round_._why_not(Estimate(gain, error)) == why


def test_a_demo_that_is_interrupted_names_the_command_that_goes_on_with_it(tmp_path, monkeypatch):
    def interrupted(study, **__):
        raise TrialError(Fault("the study", "go on", "Ctrl-C", study.again()))

    (tmp_path / "my demo/data/backbone").mkdir(parents=True)
    (tmp_path / "my demo/data/seed.txt").write_text("3")
    monkeypatch.setattr(demo_, "_study_in", lambda _: (None, None))
    monkeypatch.setattr(demo_.tune, "run", interrupted)
    monkeypatch.setattr("tutti.cli.demo.program", lambda: "tutti")
    with pytest.raises(TrialError, match=f"tutti demo --out '{tmp_path}/my demo' --seed 3"):
        demo(tmp_path / "my demo", seed=3)
