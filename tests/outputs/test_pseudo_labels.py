from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from polls import write_pseudo_labels

from tutti.config.load import load_recipe
from tutti.config.names import shipped_names
from tutti.config.recipe import PseudoLabels
from tutti.errors import StudyError
from tutti.outputs.election.poll import Rule
from tutti.outputs.pseudo.pool import Pool
from tutti.outputs.pseudo.report import FOLDED
from tutti.tasks.layouts.competition import Competition
from tutti.tasks.layouts.glue import Glue
from tutti.tasks.layouts.soft import PROBABILITY, SoftLabels


def arguments(study, out, *, labelling=None, **changes):
    plain = {"study": "demo", "recipe_name": "baseline", "tasks": study.tasks, "bank": study.bank, "rule": Rule(top=3)}
    plain |= {
        "validation": study.validation(),
        "pools": {name: pool(study, name) for name in ("emotion", "CoLA")},
    }
    plain["labelling"] = PseudoLabels(**{"threshold": 0.8, "max_drift": None, **(labelling or {})})
    return {**plain, "out": out, **changes}


def pool(study, task, **changes):
    classes = next(len(each.names) for each in study.tasks if each.name == task)
    rows = study.unlabelled("emotion" if task == "topic" else task)
    layout, suffix = (Glue("CoLA"), ".tsv") if task == "CoLA" else (Competition(), ".csv")
    plain = Pool(rows, np.zeros(len(rows), dtype=bool), np.full(classes, 1 / classes), layout, suffix, "5" * 64, 1)
    return replace(plain, **changes)


def ledger(out, task):
    return pq.read_table(out / f"{task}.ledger.parquet").to_pylist()


def mean_of(study, report, task):
    members = next(each.members for each in report.tasks if each.task == task)
    single = [study.bank.predictions(each.key, task, "unlabeled").outputs for each in members]
    return np.mean(single, axis=0), single


def test_the_rows_at_the_threshold_become_a_training_file_that_the_layout_reads(make_finished, tmp_path):
    study = make_finished()
    report = write_pseudo_labels(**arguments(study, tmp_path / "out"))
    mean, _ = mean_of(study, report, "emotion")
    sure = np.flatnonzero(mean.max(axis=1) >= 0.8)
    back = Competition().read(str(tmp_path / "out" / "emotion.csv"), labelled=True)
    expected = study.unlabelled("emotion").iloc[sure]
    assert 0 < len(sure) < 150
    assert back["id"].tolist() == expected["id"].tolist()
    assert back["text"].tolist() == expected["text"].tolist()
    assert back["label"].tolist() == [study.tasks[0].names[index] for index in mean[sure].argmax(axis=1)]
    assert len(Glue("CoLA").read(str(tmp_path / "out" / "CoLA.tsv"), labelled=True)) == report.tasks[1].labelled


@pytest.mark.parametrize("folded", [True, False])
def test_a_report_of_folds_says_that_unlabelled_rows_are_not_like_validation_rows(make_finished, tmp_path, folded):
    report = write_pseudo_labels(**arguments(make_finished(), tmp_path / "out", folded=folded))
    assert (FOLDED in report.remarks) == folded


@pytest.mark.parametrize("recipe", shipped_names("ensembles"))
def test_a_shipped_recipe_labels_rows_as_it_says(recipe, make_finished, tmp_path):
    _, given = load_recipe(recipe)
    wanted = given.pseudo_labels.model_dump()
    # members so good that even their mean is sure of some rows, and no method of all
    report = write_pseudo_labels(
        **arguments(
            make_finished(12, skill=4.5), tmp_path / "out", rule=Rule.of(given), labelling=wanted | {"max_drift": None}
        )
    )
    for task in report.tasks:
        if wanted["select"] == "all":
            assert task.labelled == task.unlabelled
        else:
            assert task.labelled < task.unlabelled
        assert task.file is None or task.file.endswith(".soft.parquet") == (wanted["labels"] == "soft")
    assert any(task.file is not None and task.labelled > 0 for task in report.tasks)


def test_a_row_with_an_empty_text_gets_no_pseudo_label(make_finished, tmp_path):
    study = make_finished()
    rows = study.unlabelled("emotion")
    mean, _ = mean_of(study, write_pseudo_labels(**arguments(study, tmp_path / "all")), "emotion")
    sure = np.flatnonzero(mean.max(axis=1) >= 0.8)
    rows.loc[sure[0], "text"] = " "
    report = write_pseudo_labels(
        **arguments(study, tmp_path / "out", pools={"emotion": pool(study, "emotion", rows=rows)})
    )
    back = Competition().read(str(tmp_path / "out" / "emotion.csv"), labelled=True)
    assert back["id"].tolist() == rows["id"].iloc[sure[1:]].tolist()
    assert report.tasks[0].labelled == len(sure) - 1


@pytest.mark.parametrize("labelling", [{"select": "all"}, {"select": "all", "agreement": 0.8}, {"threshold": 0.8}])
def test_where_no_row_has_a_text_the_advice_can_be_followed(make_finished, tmp_path, labelling):
    study = make_finished()
    blank = {"emotion": pool(study, "emotion", rows=study.unlabelled("emotion").assign(text=" "))}
    report = write_pseudo_labels(**arguments(study, tmp_path / "out", pools=blank, labelling=labelling))
    assert report.tasks[0].file is None
    assert any("have no text: no file was written for it. Name rows with text." in each for each in report.remarks)


def test_the_ledger_says_of_each_label_where_it_comes_from(make_finished, tmp_path):
    study = make_finished()
    pools = {"emotion": pool(study, "emotion", round=3)}
    report = write_pseudo_labels(**arguments(study, tmp_path / "out", pools=pools))
    mean, single = mean_of(study, report, "emotion")
    rows = ledger(tmp_path / "out", "emotion")
    assert len(rows) == report.tasks[0].labelled
    for row in rows:
        place = int(row["id"].removeprefix("unlabeled "))
        assert row["confidence"] == pytest.approx(mean[place].max(), abs=1e-6)
        assert row["agreement"] == pytest.approx(
            np.mean([probabilities[place].argmax() == mean[place].argmax() for probabilities in single])
        )
        assert row["members"] == [member.key for member in report.tasks[0].members]
        assert row["label"] == study.tasks[0].names[mean[place].argmax()]
        assert (row["round"], row["source_sha256"]) == (3, "5" * 64)


def test_rows_that_the_trials_know_a_label_of_get_none(make_finished, tmp_path):
    study = make_finished()
    seen = np.arange(150) < 40
    pools = {"emotion": pool(study, "emotion", seen=seen), "CoLA": pool(study, "CoLA", seen=np.ones(150, dtype=bool))}
    report = write_pseudo_labels(**arguments(study, tmp_path / "out", pools=pools))
    assert min(int(row["id"].removeprefix("unlabeled ")) for row in ledger(tmp_path / "out", "emotion")) >= 40
    assert "Left out of task emotion: 40 rows, seen with a label by the trials." in report.remarks
    assert report.tasks[1].file is None
    assert any("have seen each row of task CoLA with a label: no file" in remark for remark in report.remarks)


def test_distillation_labels_rows_that_the_trials_know_too(make_finished, tmp_path):
    study = make_finished()
    pools = {name: pool(study, name, seen=np.ones(150, dtype=bool)) for name in ("emotion", "CoLA")}
    given = arguments(study, tmp_path / "out", pools=pools, labelling={"select": "all", "known_rows": True})
    report = write_pseudo_labels(**given)
    assert len(ledger(tmp_path / "out", "emotion")) == 150
    assert not any("seen" in remark for remark in report.remarks)


def test_labels_that_drift_from_the_training_rows_are_refused_by_name(make_finished, tmp_path):
    study = make_finished()
    pools = {
        "emotion": pool(study, "emotion", prior=np.array([0.1, 0.1, 0.8])),
        "CoLA": pool(study, "CoLA"),
    }
    given = arguments(study, tmp_path / "out", pools=pools, labelling={"max_drift": 0.2})
    report = write_pseudo_labels(**given)
    assert [task.file for task in report.tasks] == [None, "CoLA.tsv"]
    assert report.tasks[0].labelled > 0
    assert set(report.files) == {"CoLA.tsv", "CoLA.ledger.parquet"}
    assert any(
        "the class angry has a share that is" in remark and "points below" in remark and "max_drift allows 20" in remark
        for remark in report.remarks
    )
    assert report.tasks[0].labelled > report.tasks[0].written == 0
    unlimited = write_pseudo_labels(**given | {"labelling": given["labelling"].model_copy(update={"max_drift": None})})
    assert unlimited.tasks[0].drift == report.tasks[0].drift
    assert unlimited.tasks[0].written == unlimited.tasks[0].labelled
    assert unlimited.tasks[0].file == "emotion.csv"


def test_labels_matched_to_the_prior_do_not_drift(make_finished, tmp_path):
    study = make_finished()
    settings = {"select": "prior", "share": 0.3, "max_drift": 0.05}
    report = write_pseudo_labels(**arguments(study, tmp_path / "out", labelling=settings))
    assert [task.labelled for task in report.tasks] == [45, 44]  # 22.5 rows of each class are rounded to 22
    assert all(abs(task.drift) < 0.01 for task in report.tasks)


@pytest.mark.parametrize(
    ("labelling", "advice"),
    [
        ({"max_drift": 1e-9, "threshold": 0.5}, "Set `select: prior` in the recipe, or a larger"),
        ({"max_drift": 1e-9, "select": "prior", "share": 0.99}, "Set a smaller `share` in the recipe, or a larger"),
        (
            {"max_drift": 1e-9, "select": "prior", "share": 0.99, "agreement": 0.1},
            "Set a smaller `share` or `agreement` in the recipe, or a larger",
        ),
        ({"select": "quantile", "share": 1e-9}, "In the recipe, raise `share`."),
        ({"threshold": 1.0, "agreement": 1.0}, "In the recipe, lower `agreement` or lower the threshold."),
        ({"threshold": 1.0}, "`calibration: temperature` where it is not set, or"),
    ],
)
def test_a_refusal_advises_what_the_recipe_does_not_do_already(make_finished, tmp_path, labelling, advice):
    report = write_pseudo_labels(**arguments(make_finished(skill=0.5), tmp_path / "out", labelling=labelling))
    assert report.tasks[0].file is None
    assert any(advice in remark for remark in report.remarks), report.remarks


def test_soft_labels_are_the_ensemble_s_probabilities(make_finished, tmp_path):
    study = make_finished()
    report = write_pseudo_labels(
        **arguments(study, tmp_path / "out", labelling={"select": "all", "labels": "soft", "max_drift": 0.3})
    )
    mean, _ = mean_of(study, report, "emotion")
    assert [task.file for task in report.tasks] == ["emotion.soft.parquet", "CoLA.soft.parquet"]
    back = SoftLabels().read(str(tmp_path / "out" / "emotion.soft.parquet"), labelled=True)
    assert back["id"].tolist() == study.unlabelled("emotion")["id"].tolist()
    names = [PROBABILITY + name for name in study.tasks[0].names]
    np.testing.assert_allclose(back[names].to_numpy(), mean, atol=1e-6)
    assert "{path: emotion.soft.parquet, labels: soft}" in (tmp_path / "out" / "card.md").read_text()


def test_expected_precision_comes_near_the_precision_of_the_labels(make_finished, tmp_path):
    """The unlabelled rows are as hard as the validation rows here, and their truth is known."""
    study = make_finished(skill=1.0, validation=2000)
    report = write_pseudo_labels(**arguments(study, tmp_path / "out", labelling={"threshold": 0.5}))
    truth = study.truth["emotion", "unlabeled"]
    right = [
        study.tasks[0].names[truth[int(row["id"].removeprefix("unlabeled "))]] == row["label"]
        for row in ledger(tmp_path / "out", "emotion")
    ]
    assert report.tasks[0].expected_precision == pytest.approx(np.mean(right), abs=0.1)
    for class_ in report.tasks[0].coverage:
        assert class_.judged_rows > 100
        assert (
            f"{class_.expected_precision:.3f} ({class_.interval[0]:.2f} to {class_.interval[1]:.2f}) "
            f"of {class_.judged_rows} rows" in (tmp_path / "out" / "card.md").read_text()
        )


def test_labels_that_nobody_can_know_are_expected_to_be_right_by_chance_alone(make_finished, tmp_path):
    """Stacking so many members learns validation rows by heart: of those that it saw, it is right in 0.7."""
    study = make_finished(30, skill=0, growth=0, validation=100)
    rule = Rule(top=30, method="stacking")
    report = write_pseudo_labels(**arguments(study, tmp_path / "out", rule=rule, labelling={"select": "all"}))
    emotion, binary = report.tasks
    assert emotion.expected_precision == pytest.approx(1 / 3, abs=0.15)
    assert binary.expected_precision == pytest.approx(1 / 2, abs=0.15)


def test_too_few_validation_rows_give_no_expected_precision(make_finished, tmp_path):
    report = write_pseudo_labels(**arguments(make_finished(validation=19), tmp_path / "out"))
    assert {class_.expected_precision for task in report.tasks for class_ in task.coverage} == {None}
    assert report.tasks[0].expected_precision is None


@pytest.mark.parametrize("method", ["rank", "uniform"])
def test_soft_labels_at_a_temperature_are_refused_where_none_can_be_fitted(make_finished, tmp_path, method):
    study, rule = make_finished(validation=19), Rule(top=5, method=method, calibration="temperature")
    labelling = {"select": "all", "labels": "soft"}
    message = "must have at least 20 different texts for the temperature of soft labels; got 19; set `labels: hard`"
    with pytest.raises(StudyError, match=message):
        write_pseudo_labels(**arguments(study, tmp_path / "out", rule=rule, labelling=labelling))
    hard = write_pseudo_labels(**arguments(study, tmp_path / "out", rule=rule))
    assert any("too few validation rows with different texts for a temperature: 19" in each for each in hard.remarks)


def test_validation_rows_with_equal_texts_tell_the_expected_precision_once(make_finished, tmp_path):
    study = make_finished(validation=400)
    validation = {
        task: rows.assign(text=[f"text {row % 40}" for row in range(len(rows))])
        for task, rows in study.validation().items()
    }
    report = write_pseudo_labels(
        **arguments(study, tmp_path / "out", validation=validation, labelling={"threshold": 0.3})
    )
    for task in report.tasks:  # a text less sure than all that were labelled does not count
        assert 35 <= sum(class_.judged_rows for class_ in task.coverage) <= 40


def test_coverage_adds_up_and_stands_on_the_page(make_finished, tmp_path):
    report = write_pseudo_labels(**arguments(make_finished(), tmp_path / "out"))
    page = (tmp_path / "out" / "card.md").read_text()
    for each in report.tasks:
        assert sum(class_.rows for class_ in each.coverage) == each.labelled
        assert [class_.share for class_ in each.coverage] == pytest.approx(
            [class_.rows / 150 for class_ in each.coverage]
        )
        assert each.mean_confidence >= 0.8
        assert f"{each.labelled} of 150 rows" in page
    assert "> Task topic has no unlabelled rows and was passed over." in page
    assert report.passed_over == ("topic",)


def test_no_row_at_the_threshold_writes_no_file_and_says_so_plainly(make_finished, tmp_path):
    report = write_pseudo_labels(**arguments(make_finished(skill=0.0), tmp_path / "out", labelling={"threshold": 1.0}))
    sentence = "No row of task emotion reached 1: no file was written for it."
    assert [each.file for each in report.tasks] == [None, None]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"card.json", "card.md"}
    assert any(remark.startswith(sentence) for remark in report.remarks)
    assert sentence in (tmp_path / "out" / "card.md").read_text()
    assert any(
        remark.startswith(sentence) for remark in json.loads((tmp_path / "out" / "card.json").read_text())["remarks"]
    )
    assert [class_.mean_confidence for class_ in report.tasks[0].coverage] == [None] * 3


def test_labels_of_an_earlier_run_stay_where_there_are_no_new_ones(make_finished, tmp_path):
    earlier = write_pseudo_labels(**arguments(make_finished(), tmp_path / "out"))
    assert earlier.files
    report = write_pseudo_labels(**arguments(make_finished(), tmp_path / "out", labelling={"threshold": 1.0}))
    assert not report.files
    assert report.remarks[-1] == f"{tmp_path / 'out'} keeps the labels of an earlier run."
    for name, digest in earlier.files.items():
        assert hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest() == digest


def test_labels_of_a_refused_task_stay_where_another_gets_new_ones(make_finished, tmp_path):
    study, out = make_finished(), tmp_path / "out"
    earlier = write_pseudo_labels(**arguments(study, out)).files
    pools = {"emotion": pool(study, "emotion", seen=np.ones(150, dtype=bool)), "CoLA": pool(study, "CoLA")}
    for _ in range(2):
        report = write_pseudo_labels(**arguments(study, out, pools=pools, labelling={"threshold": 0.9}))
        assert [each.file for each in report.tasks] == [None, "CoLA.tsv"]
        assert report.remarks[-1] == "Task emotion keeps its labels of an earlier run."
        assert report.files.keys() == earlier.keys()
        assert len(Competition().read(str(out / "emotion.csv"), labelled=True)) == len(ledger(out, "emotion"))
        kept = {name for name in earlier if report.files[name] == earlier[name]}
        assert kept == {"emotion.csv", "emotion.ledger.parquet"}


def test_rows_that_changed_since_the_study_are_refused(make_finished, tmp_path):
    study = make_finished()
    pools = {"emotion": pool(study, "emotion", rows=study.unlabelled("emotion").iloc[::-1])}
    with pytest.raises(StudyError, match="the unlabelled rows of emotion must be the 150 rows"):
        write_pseudo_labels(**arguments(study, tmp_path / "out", pools=pools))
    assert not (tmp_path / "out").exists()


def test_a_member_without_weight_does_not_count_as_agreeing(make_finished, tmp_path):
    study = make_finished(3, skill=0, growth=8)  # one knows everything
    arguments_ = arguments(study, tmp_path / "out", rule=Rule(method="greedy"), labelling={"threshold": 0.5})
    report = write_pseudo_labels(**arguments_)
    assert sorted(each.weight for each in report.tasks[0].members) == [0, 0, 1]
    rows = ledger(tmp_path / "out", "emotion")
    assert {(row["agreement"], len(row["members"])) for row in rows} == {(1, 1)}


@pytest.mark.parametrize("method", ["auto", "score", "rank", "hard", "greedy", "stacking"])
def test_every_method_labels_rows_with_what_it_says_and_how_sure_it_is(make_finished, tmp_path, method):
    study = make_finished()
    rule = Rule(top=4, method=method, calibration="temperature")
    report = write_pseudo_labels(**arguments(study, tmp_path / "out", rule=rule, labelling={"threshold": 0.7}))
    mean, _ = mean_of(study, report, "emotion")
    sure = {row: mean[row].argmax() for row in np.flatnonzero(mean.max(axis=1) > 0.7)}
    rows = ledger(tmp_path / "out", "emotion")
    assert rows
    assert all(row["confidence"] >= 0.7 - 1e-5 for row in rows)
    labels = {int(row["id"].removeprefix("unlabeled ")): row["label"] for row in rows}
    both = sure.keys() & labels.keys()
    same = sum(labels[row] == study.tasks[0].names[sure[row]] for row in both)
    assert same > 0.9 * len(both)


def test_calibrated_confidence_covers_what_averaging_left_too_unsure(make_finished, tmp_path):
    study = make_finished(skill=2.5)
    plain, calibrated = (
        write_pseudo_labels(
            **arguments(study, tmp_path / name, rule=Rule(top=5, calibration=name), labelling={"threshold": 0.95}),
        )
        for name in ("none", "temperature")
    )
    assert all(after.labelled > before.labelled for before, after in zip(plain.tasks, calibrated.tasks, strict=True))
    assert plain.remarks == ("Task topic has no unlabelled rows and was passed over.",)
    assert any("fitted to 200 validation rows with different texts" in remark for remark in calibrated.remarks)
    assert (
        "> Confidence in task emotion is that at temperature 0." in (tmp_path / "temperature" / "card.md").read_text()
    )
