"""The page that a study is reported on."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import screenshots
from PIL import Image

from tutti.config.recipe import PseudoLabels
from tutti.errors import StudyError
from tutti.outputs.election.poll import Poll, Rule
from tutti.outputs.pseudo.pool import Pool
from tutti.outputs.report.report import Search, vote, write_report
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
    pools = {task.name: pool_of(study, task) for task in chosen if "unlabeled" in study.ids[task.name]}
    return vote(Poll("demo", chosen, validation, study.bank, rule, "baseline"), labelling=labelling, pools=pools)


def page_of(study, tmp_path, **changes) -> str:
    """The page; ``changes`` are those of ``write_report``, or of its ``Search``."""
    of_search = {name: changes.pop(name) for name in [*changes] if name in Search.__dataclass_fields__}
    plain = {"study": "demo", "tasks": study.tasks, "search": Search(**{"trials": trials(), **of_search}), "vote": None}
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
        if tag not in ("meta", "input"):
            self.open.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_holds_all_it_shows_and_loads_nothing(make_finished, tmp_path):
    study = make_finished(4)
    page = page_of(study, tmp_path, vote=section(study, tasks=3), importances={"learning_rate": 1.0})
    read = Checked()
    read.feed(page)
    assert read.open == []
    assert all(address.startswith("#") for address in read.addresses)
    assert "url(" not in page
    assert "@import" not in page
    assert 'name="viewport" content="width=device-width' in page
    assert "prefers-color-scheme: dark" in page
    listing = json.loads((tmp_path / "report" / "report.json").read_text())
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"report.json", *listing["files"]}
    assert len(page) < 1_000_000


def test_trials_have_their_own_numbers_and_stopped_ones_are_drawn_hollow(make_finished, tmp_path):
    numbers = {2: TrialState.FINISHED, 5: TrialState.STOPPED, 7: TrialState.FINISHED}
    records = [
        TrialRecord(f"t{n:04d}", n, state, 0.5 + n / 100, scores_by_epoch={1: 0.4, 2: 0.5 + n / 100})
        for n, state in numbers.items()
    ]
    page = page_of(make_finished(1), tmp_path, trials=records)
    dots = re.findall(r'<circle class="(\w+)" data-k="(t\d+)" cx="([\d.]+)"', page)
    history = [(key, style, float(x)) for style, key, x in dots[:3]]
    assert [(key, style) for key, style, _ in history] == [
        ("t0002", "finished"),
        ("t0005", "stopped"),
        ("t0007", "finished"),
    ]
    first, second, third = (x for *_, x in history)
    assert (second - first) / (third - second) == pytest.approx(3 / 2, abs=0.01)
    assert '<polyline class="curve stopped" data-k="t0005"' in page


def test_trials_are_drawn_one_after_the_other_in_as_many_lanes_as_ran_at_once(make_finished, tmp_path):
    ends = {0: 100.0, 1: 60.0, 2: 130.0}
    records = [
        replace(trials()[n], seconds=seconds, ended=ended)
        for n, ended, seconds in ((0, 100.0, 100.0), (1, 60.0, 60.0), (2, 130.0, 70.0))
    ]
    assert ends.keys() == {record.number for record in records}
    page = page_of(make_finished(1), tmp_path, trials=records)
    bars = re.findall(r'<rect class="span finished" data-k="(t\d+)" x="[\d.]+" y="([\d.]+)"', page)
    lanes = dict(bars)
    assert lanes["t0001"] == lanes["t0002"] != lanes["t0000"]


def test_importances_of_few_trials_have_a_caution(make_finished, tmp_path):
    page = page_of(make_finished(1), tmp_path, importances={"learning_rate": 1.0})
    assert "Of 3 finished trials this is mostly chance: believe it from 20 on." in page


def test_trials_lead_to_their_pages_in_mlflow_and_the_page_says_what_must_run(make_finished, tmp_path):
    links = {"t0001": "http://127.0.0.1:5000/#/experiments/1/runs/abc"}
    page = page_of(make_finished(1), tmp_path, links=links, links_need="tutti ui demo --port 5000")
    assert f'<a href="{links["t0001"]}">t0001</a>' in page
    assert "while <code>tutti ui demo --port 5000</code> runs" in page


def test_a_page_that_is_watched_loads_itself_again(make_finished, tmp_path):
    assert '<meta http-equiv="refresh" content="30">' in page_of(make_finished(1), tmp_path, refresh=30)
    assert "<meta http-equiv" not in page_of(make_finished(1), tmp_path)


def test_the_page_leads_with_the_vote_and_the_best_trial_on_rows_that_chose_neither(make_finished, tmp_path):
    study = make_finished(4)
    part = section(study, tasks=3)
    page = page_of(study, tmp_path, vote=part)
    assert f'<p class="verdict">{part.card.verdict}</p>' in page
    assert f"<b>{part.card.single}</b>best trial of each task" in page
    assert f"<b>{part.card.objective}</b>vote" in page


def test_texts_and_reasons_are_shown_as_they_are(make_finished, tmp_path):
    study = make_finished(4)
    page = page_of(study, tmp_path, vote=section(study))
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#34;more&#34;" in page
    assert "a &lt;b&gt;bold&lt;/b&gt; reason" in page


def test_the_best_trial_is_one_that_finished(make_finished, tmp_path):
    stopped = TrialRecord("t0004", 4, TrialState.STOPPED, 0.9, {"emotion": 0.9})
    page = page_of(make_finished(4), tmp_path, trials=[*trials(), stopped])
    assert "<b>0.7200</b>t0002, on the rows that chose its epoch" in page
    assert '<tr class="best" data-k="t0002" data-f="finished"><td>t0002</td>' in page


def test_every_duration_has_the_same_form(make_finished, tmp_path):
    slow = TrialRecord("t0004", 4, TrialState.FINISHED, 0.5, seconds=7385.4)
    page = page_of(make_finished(1), tmp_path, trials=[*trials(), slow])
    assert page.count('<td class="n" data-v="90.0">0:01:30</td>') == 3
    assert page.count('<td class="n" data-v="7385.4">2:03:05</td>') == 1
    assert "<b>2:07:35</b>of all trials together" in page


def test_the_searchs_plots_show_the_first_objective(make_finished, tmp_path):
    records = [replace(record, measured={"gain": 0.1, "score": 0.7}) for record in trials()]
    page = page_of(make_finished(4), tmp_path, objectives=["gain", "score"], trials=records, importances={"a": 1.0})
    assert "The gain of each trial" in page
    assert "variance of the gain" in page


def test_a_trial_s_exchanges_are_noted_and_plots_say_that_they_show_none(make_finished, tmp_path):
    exchanges = tuple(
        {"epoch": epoch, "donor": "t0001", "parameters": {"pooling": "<mean>", "learning_rate": 0.002 * epoch}}
        for epoch in (2, 4)
    )
    said = "Parameters are as sampled, before any exchange."
    before, *others = trials()
    records = [replace(before, exchanges=exchanges), *others]
    page = page_of(make_finished(1), tmp_path, trials=records, importances={"learning_rate": 1.0})
    for epoch, rate in ((2, 0.004), (4, 0.008)):
        assert f"from t0001 after epoch {epoch}: learning_rate={rate} pooling=&lt;mean&gt;" in page
    assert said in page
    assert said not in page_of(make_finished(1), tmp_path, importances={"learning_rate": 1.0})


def test_the_page_has_trials_members_gains_and_classes(make_finished, tmp_path):
    study = make_finished(4)
    part = section(study)
    page = page_of(study, tmp_path, vote=part)
    assert "4 trials: 3 finished, 1 failed" in page
    for task in part.card.tasks:
        assert str(task.score) in page
        assert all(f'<tr data-k="{member.key}"><td>' in page for member in task.members)
    emotion = part.tasks[0]
    assert [each.label for each, _ in emotion.classes] == ["happy", "sad", "angry"]
    assert all(f"<td>{each.label}</td>" in page for each, _ in emotion.classes)
    assert f"at least 0.9: {emotion.pseudo.labelled} of 150 unlabelled rows." in page


def test_classes_have_precision_recall_and_what_a_pseudo_label_can_be_expected_to_be(make_finished):
    study = make_finished(4)
    emotion, _, topic = section(study, tasks=3).tasks
    for which in zip(*emotion.classes, strict=True):  # of the vote, and of the best trial
        assert sum(each.rows for each in which) == 200
        assert all(0.5 < each.recall <= 1 for each in which)
        assert all(min(each.precision, each.recall) <= each.f1 <= max(each.precision, each.recall) for each in which)
    vote_of = [each for each, _ in emotion.classes]
    for each, given in zip(vote_of, emotion.pseudo.coverage, strict=True):
        assert given.label == each.label
        assert given.expected_precision >= each.precision - 0.05  # the surer, the righter
        assert given.interval[0] <= given.expected_precision <= given.interval[1]
    assert sum(each.rows for each in emotion.pseudo.coverage) == emotion.pseudo.labelled
    assert topic.pseudo is None  # it has no unlabelled rows


def test_classes_that_nobody_can_know_are_told_apart_by_chance_alone(make_finished):
    """Stacking so many members learns validation rows by heart: of those that it saw, it is right in 0.7."""
    study = make_finished(30, skill=0, growth=0, validation=100)
    emotion = section(study, rule=Rule(top=30, method="stacking")).tasks[0]
    assert np.mean([each.precision for each, _ in emotion.classes]) == pytest.approx(1 / 3, abs=0.15)
    assert np.mean([each.recall for each, _ in emotion.classes]) == pytest.approx(1 / 3, abs=0.15)


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


def test_the_rows_that_the_vote_has_wrong_come_first_the_surest_first(make_finished):
    study = make_finished(4)
    part = section(study)
    [task] = part.tasks
    wrong = [row for row in task.opinions if row.wrong]
    assert task.opinions[: len(wrong)] == tuple(wrong)
    assert len(wrong) == task.wrong == task.listed_wrong == len(part.errors)
    assert all(row.label != row.predicted for row in wrong)
    assert [row.given for row in wrong] == sorted(row.given for row in wrong)
    cells = np.array(task.matrix.counts)
    assert cells.sum() == 200
    assert [sum(row.cell == (true, guess) for row in wrong) for true, guess in ((0, 1), (2, 0))] == [
        cells[0, 1],
        cells[2, 0],
    ]


def test_rows_that_members_dispute_follow_with_what_each_says(make_finished):
    study = make_finished(4)
    shown = section(study).tasks[0]
    members = [study.bank.predictions(each.key, "emotion", "validation") for each in shown.card.members]
    disagreements = KINDS["classes"].disagreement(np.stack([each.outputs for each in members]))
    rows = [row for row in shown.opinions if not row.wrong]
    assert [row.disagreement for row in rows] == sorted((row.disagreement for row in rows), reverse=True)
    for row in rows:
        place = members[0].ids.tolist().index(row.id)
        assert row.disagreement == pytest.approx(disagreements[place])
        names = ("happy", "sad", "angry")
        said = {
            member.key: names[each.outputs[place].argmax()]
            for member, each in zip(shown.card.members, members, strict=True)
        }
        assert row.by_member == said
        assert len(set(said.values())) > 1
        assert row.votes.startswith(f"{max(said.values(), key=[*said.values()].count)}: t")


def test_errors_are_a_table_for_relabelling(make_finished):
    study = make_finished(4)
    part = section(study, tasks=3)
    assert [*part.errors.columns[:7]] == ["task", "id", "text", "label", "vote", "label_share", "loss"]
    assert {*part.errors["task"]} == {"emotion", "CoLA", "topic"}
    assert {member.key for member in part.card.tasks[0].members} <= {*part.errors.columns}
    assert (part.errors["new_label"] == "").all()


@pytest.mark.parametrize(("skill", "disputed"), [(5, True), (9, False)])
def test_a_row_on_which_all_choose_the_same_class_is_not_disputed(make_finished, tmp_path, skill, disputed):
    study = make_finished(4, skill=skill)
    part = section(study)
    [task] = part.tasks
    assert any(row.disagreement > 0 for row in task.opinions) == disputed
    said = "No validation row is wrong or disputed." in page_of(study, tmp_path, vote=part)
    assert said == (not task.opinions)


def test_keys_in_a_remark_are_shown_as_code(make_finished, tmp_path):
    study = make_finished(2)
    part = section(study)
    noted = replace(part, card=replace(part.card, notes=("Set `top: <1>`, or leave it.",)))
    assert "Set <code>top: &lt;1&gt;</code>, or leave it.</blockquote>" in page_of(study, tmp_path, vote=noted)


def test_who_has_no_weight_disputes_nothing(make_finished, tmp_path):
    part = section(make_finished(3, skill=0, growth=8), rule=Rule(method="greedy"))  # one knows everything
    assert all(len(task.card.members) == 3 for task in part.tasks)
    assert all(row.disagreement == 0 for task in part.tasks for row in task.opinions)
    assert part.card.to_markdown().count(" ●") == 1  # who has no weight does not vote


def test_a_temperature_that_cannot_be_fitted_costs_the_page_nothing_but_the_pseudo_labels(make_finished, tmp_path):
    study, soft = make_finished(3, validation=15), SURE.model_copy(update={"labels": "soft"})
    part = section(study, labelling=soft, rule=BEST.model_copy(update={"calibration": "temperature"}))
    assert part.tasks[0].pseudo is None
    assert "Too few validation rows of different texts or groups (15 in all)" in page_of(study, tmp_path, vote=part)


def test_what_is_not_there_yet_is_said(make_finished, tmp_path):
    page = page_of(make_finished(1), tmp_path, trials=[])
    assert "No trial has finished yet, so nobody can vote." in page
    assert "No trial has reported a score yet." in page
    assert "0 trials" in page
    assert "<svg" not in page


def test_too_few_validation_rows_are_said(make_finished, tmp_path):
    study = make_finished(3, validation=15)
    page = page_of(study, tmp_path, vote=section(study))
    assert page.count("Too few validation rows of different texts or groups (15 in all) to judge on.") == 1
    assert 'class="matrix"' not in page


def test_a_folder_with_other_files_is_left_alone_and_an_earlier_report_replaced(make_finished, tmp_path):
    study = make_finished(2)
    page_of(study, tmp_path, vote=section(study))
    page_of(study, tmp_path)
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"report.html", "report.json"}
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
    rows = pd.DataFrame({"id": ids, "text": "a", "text_b": [f"b {n}" for n in range(len(ids))]})
    poll = Poll("demo", [task], {"warmth": rows}, bank, Rule(top=3), "baseline")
    part = vote(poll, labelling=PseudoLabels(), pools={})
    return task, part


def test_numbers_have_no_classes_but_the_rows_with_the_largest_errors(tmp_path):
    task, part = regression(tmp_path, np.random.default_rng(1).normal(size=60).astype(np.float32))
    assert part.tasks[0].classes == ()
    assert set(part.tasks[0].plots) == {"members", "decisions"}
    assert all(re.fullmatch(r"-?[\d.e-]+", said) for said in part.tasks[0].opinions[0].by_member.values())
    assert part.tasks[0].opinions[0].text.startswith("a ‖ b ")
    losses = [row.loss for row in part.tasks[0].opinions]
    assert losses == sorted(losses, reverse=True)
    page = write_report(study="demo", tasks=[task], search=Search([]), vote=part, out=tmp_path / "out")[0]
    assert "Class by class" not in page.read_text(encoding="utf8")


def test_numbers_have_the_label_of_the_file_and_enough_digits_to_be_compared_with_it(tmp_path):
    labels = ["1987", "2001.5", "1234567", "0.1"]
    _, part = regression(tmp_path, np.array(labels * 15, dtype=np.float32))
    rows = part.tasks[0].opinions
    assert {row.label for row in rows} == set(labels)
    for row in rows:
        if row.label in ("1987", "2001.5"):
            assert all(re.fullmatch(r"\d{4}(\.\d{1,2})?", each) for each in (row.predicted, *row.by_member.values()))


@pytest.fixture
def shown(make_finished, tmp_path) -> Path:
    """A page with something in each of its parts."""
    if screenshots.chromium() is None:
        pytest.skip("there is no Chromium to show the page: apt-get install chromium")
    study = make_finished(5)
    ended = [
        replace(record, ended=1000.0 + 50 * record.number, scores_by_epoch={1: 0.5, 2: 0.7}) for record in trials()[:3]
    ]
    page_of(study, tmp_path, vote=section(study, tasks=3), trials=[*ended, *trials()[3:]], importances={"a": 1.0})
    return tmp_path / "report" / "report.html"


@pytest.mark.slow
@pytest.mark.parametrize("width", screenshots.WIDTHS.values())
def test_nothing_is_wider_than_the_screen(shown, width):
    assert screenshots.extent(shown, width)[0] == width


@pytest.mark.slow
def test_tables_sort_and_filter_and_a_number_of_the_matrix_shows_its_rows(shown):
    script = """
      const rows = table => [...table.tBodies[0].rows].filter(row => !row.hidden);
      const trials = document.getElementById("of-trials"), errors = document.getElementById("errors-1");
      const names = () => rows(trials).map(row => row.cells[0].textContent);
      const first = names(), head = trials.querySelector("th");
      head.click(); const up = names(); head.click(); const down = names();
      document.querySelector("[data-table=of-trials] [data-f=failed]").click();
      const failed = names();
      const cell = [...document.querySelectorAll(".matrix td.wrong")].find(td => td.textContent);
      cell.click();
      const marks = document.querySelectorAll("[data-k=t0001][data-tip]");
      marks[0].dispatchEvent(new PointerEvent("pointermove", { bubbles: true }));
      const lit = [...marks].every(mark => mark.classList.contains("on"));
      return [first, up, down, failed, Number(cell.textContent) === rows(errors).length, lit, tip.textContent];
    """
    first, up, down, failed, shows_its_rows, lit, says = screenshots.evaluate(shown, script)
    assert first == ["t0002", "t0001", "t0000", "t0003"]
    assert (up, down) == (sorted(first), sorted(first, reverse=True))
    assert failed == ["t0003"]
    assert shows_its_rows
    assert lit
    assert says == "t0001: 0.7100, finished, 0:01:30\nlearning_rate = 0.0001"


@pytest.mark.slow
def test_in_a_frame_that_lets_no_link_out_trials_are_no_links(shown, tmp_path):
    shown.write_text(shown.read_text("utf-8").replace(">t0002</td>", '><a href="http://h/">t0002</a></td>'), "utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(f'<iframe sandbox="allow-scripts" src="{shown.absolute().as_uri()}">', "utf-8")
    with screenshots.browser() as new_page:
        page = new_page()
        page.goto(shown.absolute().as_uri())
        assert page.get_by_role("link", name="t0002").count() > 0
        page.goto(frame.as_uri())
        framed = page.frame_locator("iframe")
        framed.get_by_text("t0002").first.wait_for()
        assert framed.get_by_role("link", name="t0002").count() == 0


@pytest.mark.slow
def test_the_page_is_drawn_at_double_resolution_in_light_and_dark(shown, tmp_path):
    brightness = {}
    for file in screenshots.shoot_all(shown, tmp_path / "shots", height=900):
        with Image.open(file) as image:
            place, scheme = file.stem.split("-")[1:]
            assert image.size == (2 * screenshots.WIDTHS[place], 1800)
            brightness[place, scheme] = np.asarray(image.convert("L")).mean()
    assert all(brightness[place, "light"] > 200 and brightness[place, "dark"] < 60 for place in screenshots.WIDTHS)
