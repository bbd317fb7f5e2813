"""The page that a study is reported on."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from tutti.config.recipe import PseudoLabels
from tutti.errors import StudyError
from tutti.outputs.election.members import Rule
from tutti.outputs.pseudo.pool import Pool
from tutti.outputs.report.report import vote, write_report
from tutti.records import TrialRecord, TrialState
from tutti.tasks.kinds.registry import KINDS

HOSTILE = "<script>alert('x')</script> & \"more\""


def trials() -> list[TrialRecord]:
    scores = {"emotion": 0.8, "CoLA": 0.7, "topic": 0.6}
    done = [
        TrialRecord(f"t{n:04d}", n, TrialState.FINISHED, 0.7 + n / 100, scores, {"learning_rate": 1e-4}, seconds=90.0)
        for n in range(3)
    ]
    return [*done, TrialRecord("t0003", 3, TrialState.FAILED, reason="a <b>bold</b> reason")]


def pool_of(study, task) -> Pool:
    classes = len(task.names)
    return Pool(
        rows=study.unlabelled(task.name),
        seen=np.zeros(len(study.ids[task.name]["unlabeled"]), dtype=bool),
        prior=np.full(classes, 1 / classes),
        layout=None,
        suffix=".csv",
        source="",
    )


SURE = PseudoLabels(threshold=0.9, max_drift=None)
BEST = Rule(top=3)


def section(study, *, tasks: int = 1, labelling: PseudoLabels = SURE, rule: Rule = BEST):
    """The ensemble's part, of the first tasks alone."""
    chosen = study.tasks[:tasks]
    validation = {
        task.name: pd.DataFrame(
            {
                "id": study.ids[task.name]["validation"],
                "text": [f"{HOSTILE} {n}" for n in range(len(study.ids[task.name]["validation"]))],
            }
        )
        for task in chosen
    }
    return vote(
        study="demo",
        recipe_name="baseline",
        tasks=chosen,
        bank=study.bank,
        rule=rule,
        labelling=labelling,
        pools={task.name: pool_of(study, task) for task in chosen if "unlabeled" in study.ids[task.name]},
        validation=validation,
    )


def page_of(study, tmp_path, **changes) -> str:
    plain = {
        "study": "demo",
        "tasks": study.tasks,
        "trials": trials(),
        "objective": "score",
        "search": {},
        "vote": None,
    }
    files = write_report(**{**plain, **changes}, out=tmp_path / "report")
    assert all(file.is_file() for file in files)
    return files[0].read_text(encoding="utf8")


class Checked(HTMLParser):
    """Balanced elements, and every address that the page names."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_holds_all_it_shows_and_loads_nothing(make_finished, tmp_path):
    study = make_finished(4)
    page = page_of(study, tmp_path, vote=section(study, tasks=3), search={"search_history": b"\x89PNG"})
    read = Checked()
    read.feed(page)
    assert read.open == []
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in read.addresses)
    assert "<script" not in page
    assert "url(" not in page
    assert 'name="viewport" content="width=device-width' in page
    assert "prefers-color-scheme: dark" in page
    pictures = {path.stem for path in (tmp_path / "report").glob("*.png")}
    matrices = {f"confusion_matrix_{task.name}" for task in study.tasks}
    assert pictures == {"search_history", "cost", "ensemble", "reliability"} | matrices
    assert page.count("data:image/png") == len(pictures)
    listing = json.loads((tmp_path / "report" / "report.json").read_text())
    assert set(listing["files"]) == {f"{name}.png" for name in pictures} | {"report.html"}


def test_texts_and_reasons_are_shown_as_they_are(make_finished, tmp_path):
    study = make_finished(4)
    page = page_of(study, tmp_path, vote=section(study))
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#34;more&#34;" in page
    assert "a &lt;b&gt;bold&lt;/b&gt; reason" in page


def test_the_best_trial_is_one_that_finished(make_finished, tmp_path):
    stopped = TrialRecord("t0004", 4, TrialState.STOPPED, 0.9, {"emotion": 0.9})
    page = page_of(make_finished(4), tmp_path, trials=[*trials(), stopped])
    assert "<b>0.7200</b>best trial, t0002" in page
    assert '<tr class="best"><td>t0002</td>' in page


def test_every_duration_has_the_same_form(make_finished, tmp_path):
    slow = TrialRecord("t0004", 4, TrialState.FINISHED, 0.5, seconds=7385.4)
    page = page_of(make_finished(1), tmp_path, trials=[*trials(), slow])
    assert page.count('<td class="n">0:01:30</td>') == 3
    assert page.count('<td class="n">2:03:05</td>') == 1
    assert "<b>2:07:35</b>of all trials together" in page


def test_the_searchs_pictures_are_said_to_show_the_first_objective(make_finished, tmp_path):
    drawn = {"search_history": b"\x89PNG", "importances": b"\x89PNG"}
    page = page_of(make_finished(4), tmp_path, objective="gain", search=drawn)
    assert "The gain of each finished trial" in page
    assert "variance of the gain" in page


def test_a_trial_s_exchanges_follow_its_parameters_and_pictures_say_that_they_show_none(make_finished, tmp_path):
    exchanges = tuple(
        {"epoch": epoch, "donor": "t0001", "parameters": {"pooling": "<mean>", "learning_rate": 0.002 * epoch}}
        for epoch in (2, 4)
    )
    said = "Parameters are as sampled, before any exchange."
    before, *others = trials()
    records, drawn = [replace(before, exchanges=exchanges), *others], {"importances": b"", "parallel_coordinates": b""}
    page = page_of(make_finished(1), tmp_path, trials=records, search=drawn)
    first, second = (
        f"from t0001 after epoch {epoch}: learning_rate={rate} pooling=&lt;mean&gt;"
        for epoch, rate in ((2, 0.004), (4, 0.008))
    )
    assert f"learning_rate=0.0001; {first}; {second}</td>" in page
    assert page.count(f"{said}</figcaption>") == 2
    assert said not in page_of(make_finished(1), tmp_path, search=drawn)


def test_the_page_has_trials_members_gains_and_classes(make_finished, tmp_path):
    study = make_finished(4)
    part = section(study)
    page = page_of(study, tmp_path, vote=part)
    assert "4 trials: 3 finished, 1 failed" in page
    for task in part.card.tasks:
        assert str(task.score) in page
        assert all(f"<td>{member.key}</td>" in page for member in task.members)
    emotion = part.tasks[0]
    assert [each.label for each in emotion.classes] == ["happy", "sad", "angry"]
    assert all(f"<td>{each.label}</td>" in page for each in emotion.classes)
    assert f"at least 0.9: {emotion.pseudo.labelled} of 150 unlabelled rows." in page


def test_classes_have_precision_recall_and_what_a_pseudo_label_can_be_expected_to_be(make_finished):
    study = make_finished(4)
    emotion, _, topic = section(study, tasks=3).tasks
    assert sum(each.rows for each in emotion.classes) == 200
    assert all(0.5 < each.recall <= 1 for each in emotion.classes)
    for each, given in zip(emotion.classes, emotion.pseudo.coverage, strict=True):
        assert given.label == each.label
        assert given.expected_precision >= each.precision - 0.05  # the surer, the righter
        assert given.interval[0] <= given.expected_precision <= given.interval[1]
    assert sum(each.rows for each in emotion.pseudo.coverage) == emotion.pseudo.labelled
    assert topic.pseudo is None  # it has no unlabelled rows


def test_classes_that_nobody_can_know_are_told_apart_by_chance_alone(make_finished):
    """Stacking so many members learns validation rows by heart: of those that it saw, it is right in 0.7."""
    study = make_finished(30, skill=0, growth=0, validation=100)
    emotion = section(study, rule=Rule(top=30, method="stacking")).tasks[0]
    assert np.mean([each.precision for each in emotion.classes]) == pytest.approx(1 / 3, abs=0.15)
    assert np.mean([each.recall for each in emotion.classes]) == pytest.approx(1 / 3, abs=0.15)


@pytest.mark.parametrize(
    ("labelling", "sentence"),
    [
        (PseudoLabels(select="all", max_drift=None), "Every row is labelled: 150 of 150 unlabelled rows."),
        (
            PseudoLabels(select="quantile", share=0.1, max_drift=None),
            "Of each class the surest 0.1 of the eligible rows are labelled: 1",
        ),
        (PseudoLabels(select="all", max_drift=1e-9), "no file is written of them"),
    ],
)
def test_the_page_says_what_the_recipe_labels(make_finished, tmp_path, labelling, sentence):
    study = make_finished(4)
    part = section(study, labelling=labelling)
    assert sentence in page_of(study, tmp_path, vote=part)


def test_the_most_disputed_rows_come_first_with_everybody_s_vote(make_finished):
    study = make_finished(4)
    shown = section(study).tasks[0]
    rows = shown.disputed
    assert len(rows) == 10
    members = [study.bank.predictions(each.key, "emotion", "validation") for each in shown.card.members]
    disagreements = KINDS["classes"].disagreement(np.stack([each.outputs for each in members]))
    places = [members[0].ids.tolist().index(row.id) for row in rows]
    assert disagreements[places].tolist() == sorted(disagreements, reverse=True)[:10]
    place = places[0]
    votes = [("happy", "sad", "angry")[each.outputs[place].argmax()] for each in members]
    assert sorted(votes) == sorted(
        name for part in rows[0].votes.split(", ") for name in [part.split()[0]] * int(part.split()[1])
    )
    assert len(set(votes)) > 1
    assert rows[0].label == ("happy", "sad", "angry")[study.labels["emotion"][place]]


@pytest.mark.parametrize(("skill", "disputed"), [(5, 7), (9, 0)])
def test_a_row_on_which_all_choose_the_same_class_is_not_disputed(make_finished, tmp_path, skill, disputed):
    study = make_finished(4, skill=skill)
    part = section(study)
    [task] = part.tasks
    assert len(task.disputed) == disputed
    assert all(len(row.votes.split(", ")) > 1 for row in task.disputed)
    assert ("All members vote alike" in page_of(study, tmp_path, vote=part)) == (not disputed)


def test_one_trial_that_votes_alone_disputes_nothing(make_finished, tmp_path):
    study = make_finished(1)
    part = section(study)
    assert [task.disputed for task in part.tasks] == [()]
    assert "One trial votes alone" in page_of(study, tmp_path, vote=part)


def test_keys_in_a_remark_are_shown_as_code(make_finished, tmp_path):
    study = make_finished(2)
    part = section(study)
    noted = replace(part, card=replace(part.card, notes=("Set `top: <1>`, or leave it.",)))
    assert "Set <code>top: &lt;1&gt;</code>, or leave it.</blockquote>" in page_of(study, tmp_path, vote=noted)


def test_who_has_no_weight_disputes_nothing(make_finished, tmp_path):
    part = section(make_finished(3, skill=0, growth=8), rule=Rule(method="greedy"))  # one knows everything
    assert all(len(task.card.members) == 3 and task.disputed == () for task in part.tasks)
    assert part.card.to_markdown().count(" ●") == 1  # who has no weight does not vote


def test_a_temperature_that_cannot_be_fitted_costs_the_page_nothing_but_the_pseudo_labels(make_finished, tmp_path):
    study, soft = make_finished(3, validation=15), SURE.model_copy(update={"labels": "soft"})
    part = section(study, labelling=soft, rule=BEST.model_copy(update={"calibration": "temperature"}))
    assert part.tasks[0].pseudo is None
    assert "Too few validation rows of different texts or groups (15 in all)" in page_of(study, tmp_path, vote=part)


def test_what_is_not_there_yet_is_said(make_finished, tmp_path):
    page = page_of(make_finished(1), tmp_path, trials=[])
    assert "No trial has finished yet, so nobody can vote." in page
    assert "Two finished trials at least are needed" in page
    assert "0 trials" in page
    assert "data:image/png" not in page


def test_too_few_validation_rows_are_said(make_finished, tmp_path):
    study = make_finished(3, validation=15)
    page = page_of(study, tmp_path, vote=section(study))
    assert page.count("Too few validation rows of different texts or groups (15 in all) to judge on.") == 1
    assert "confusion_matrix" not in " ".join(path.name for path in (tmp_path / "report").iterdir())


def test_a_folder_with_other_files_is_left_alone_and_an_earlier_report_replaced(make_finished, tmp_path):
    study = make_finished(2)
    page_of(study, tmp_path, vote=section(study))
    page_of(study, tmp_path)
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"report.html", "report.json", "cost.png"}
    (tmp_path / "report" / "thesis.tex").write_text("years of work")
    with pytest.raises(StudyError, match=r"got thesis.tex"):
        page_of(study, tmp_path)


def regression(tmp_path, truth):
    """A task whose labels are numbers, and its part of the page."""
    from tutti.bank.bank import Bank
    from tutti.records import CheckpointRecord
    from tutti.tasks.predictions import Predictions
    from tutti.tasks.task import Task

    task, bank, rng = Task("warmth", (), False, "pearson", "csv"), Bank(tmp_path / "bank"), np.random.default_rng(0)
    ids = np.array([f"r{row}" for row in range(len(truth))])
    for number in range(3):
        values = (truth + rng.normal(size=len(truth))).astype(np.float32)
        record = CheckpointRecord(f"t{number:04d}", number, 1, 0.5, {"warmth": 0.5}, None)
        bank.put(record, {"warmth": {"validation": Predictions(ids=ids, outputs=values, labels=truth)}})
    part = vote(
        study="demo",
        recipe_name="baseline",
        tasks=[task],
        bank=bank,
        rule=Rule(top=3),
        labelling=PseudoLabels(),
        pools={},
        validation={"warmth": pd.DataFrame({"id": ids, "text": "a", "text_b": [f"b {n}" for n in range(len(ids))]})},
    )
    return task, part


def test_numbers_have_no_classes_but_their_disputed_rows(tmp_path):
    task, part = regression(tmp_path, np.random.default_rng(1).normal(size=60).astype(np.float32))
    assert part.tasks[0].classes == ()
    assert set(part.pictures) == {"ensemble", "predicted_and_true_warmth"}
    assert re.fullmatch(r"-?[\d.e-]+ to -?[\d.e-]+", part.tasks[0].disputed[0].votes)
    assert part.tasks[0].disputed[0].text.startswith("a ‖ b ")
    page = write_report(
        study="demo", tasks=[task], trials=[], objective="score", search={}, vote=part, out=tmp_path / "out"
    )[0]
    assert "Class by class" not in page.read_text(encoding="utf8")


def test_disputed_numbers_have_the_label_of_the_file_and_enough_digits_to_be_compared_with_it(tmp_path):
    labels = ["1987", "2001.5", "1234567", "0.1"]
    _, part = regression(tmp_path, np.array(labels * 15, dtype=np.float32))
    rows = part.tasks[0].disputed
    assert {row.label for row in rows} <= set(labels)
    years = [row for row in rows if row.label in ("1987", "2001.5")]
    assert years
    for row in years:
        low, high = map(float, row.votes.split(" to "))
        assert all(re.fullmatch(r"\d{4}(\.\d{1,2})?", each) for each in (row.predicted, *row.votes.split(" to ")))
        assert low < high
