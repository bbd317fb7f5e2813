"""The two studies of a round."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tutti.config.folder import StudyFolder
from tutti.config.load import dump_study, load_recipe, parse_study
from tutti.config.study import ExtraTrain, StudyConfig
from tutti.errors import StudyError
from tutti.orchestration.after import rounds
from tutti.orchestration.after.rounds import (
    best_points,
    check_rounds,
    epoch_steps,
    round_studies,
    steps_of,
    studies_with_labels,
)
from tutti.orchestration.before.kept_backbone import keep_backbone
from tutti.records import TrialRecord, TrialState
from tutti.tasks.kinds.classes import Classes

LABELS = {"mood": [ExtraTrain(path=Path("/labels/mood.soft.parquet"), labels="soft")]}


def study(**changes) -> StudyConfig:
    plain = {
        "study": "moods",
        "backbone": "b",
        "tasks": {"mood": {"layout": "competition", "train": "/m", "extra_train": [{"path": "/older.tsv"}]}},
        "training": {"num_train_epochs": 3, "per_device_train_batch_size": 8},
        "search_space": {"learning_rate": {"type": "log_uniform", "low": 1e-4, "high": 1e-3}},
        "search": {"trials": 9, "scheduler": "asha", "max_hours": 1, "sampler": "grid", "seed": 4},
    }
    return StudyConfig.model_validate(plain | changes)


def long_rows(*rows: int):
    """Rows of each task: of 20 tokens where ``max_length`` has its default of 128, and otherwise in proportion."""
    return lambda options: [np.full(count, 20 * options.max_length // 128) for count in rows]


def both(config: StudyConfig, points, *, rows=(100,), longer=1.0):
    steps = [steps_of(config, point, long_rows(*rows)) for point in points]
    known = {name: task.extra_train for name, task in config.tasks.items()}
    return round_studies(
        config, name="moods-round-1", known=known, labels=LABELS, points=points, steps=steps, longer=longer
    )


def test_they_differ_in_name_and_pseudo_labels_alone_and_begin_with_the_same_points():
    points = [{"learning_rate": 3e-4}, {"learning_rate": 5e-4}]
    ours, control = both(study(), points)
    assert (ours.study, control.study) == ("moods-round-1", "moods-round-1-control")
    assert [str(extra.path) for extra in ours.tasks["mood"].extra_train] == ["/older.tsv", "/labels/mood.soft.parquet"]
    assert ours.model_copy(update={"study": control.study, "tasks": control.tasks}) == control
    assert control.tasks == study().tasks
    assert ours.search.enqueue == tuple(points)
    assert (ours.search.trials, ours.search.scheduler, ours.search.max_hours) == (2, "none", None)
    assert ours.search.seed == 4
    assert ours.training["max_steps"] == 3 * 13
    assert parse_study(dump_study(ours)) == ours


def check(config: StudyConfig, folder: StudyFolder, *, texts: int) -> None:
    """Checks a study of nine finished trials and 60 validation rows of so many different texts."""
    rows = pd.DataFrame({"id": range(60), "text": [f"text {row % texts}" for row in range(60)]})
    prepared = SimpleNamespace(
        tasks=[SimpleNamespace(name="mood", kind=Classes())],
        parts={"mood": {"unlabeled": None}},
        settings={"split": {}},
        validation_rows=lambda: {"mood": rows},
    )
    records = [SimpleNamespace(state=TrialState.FINISHED, score=0.5) for _ in range(9)]
    recipe = load_recipe("self_training")[1]
    check_rounds(config, folder, prepared, records, seconds=0.0, recipe=recipe, recipe_name="self_training")


def test_validation_rows_with_equal_texts_are_too_few_for_a_round(tmp_path):
    message = "must have 25 validation rows of different texts or more, to tell whether a round gains; got 6"
    with pytest.raises(StudyError, match=message):
        check(study(), StudyFolder(tmp_path), texts=6)


def test_each_point_is_trained_once():
    ours, control = both(study(), [{"learning_rate": 3e-4}])
    assert ours.search.trials == control.search.trials == 1


def test_another_backbone_than_the_study_began_with_makes_no_round(tmp_path, monkeypatch):
    backbone = tmp_path / "model"
    backbone.mkdir()
    (backbone / "config.json").write_text("{}")
    config, folder = study(backbone=str(backbone)), StudyFolder(tmp_path / "study")
    folder.data.mkdir(parents=True)
    keep_backbone(config, folder)
    (backbone / "config.json").write_text('{"layers": 3}')
    monkeypatch.setattr(rounds, "prepare_rows", lambda *_: None)
    with pytest.raises(StudyError, match=r"when the study 'moods' began; got another config\.json"):
        check(config, folder, texts=60)


@pytest.mark.parametrize(
    ("longer", "least", "stages"),
    [
        (1.0, 1, [3]),
        (1.2, 1, [3]),
        (1.4, 1, [3]),
        (1.5, 1, [1]),
        (1.6, 1, [3]),
        (1.7, 2, [1, 4]),
        (2.4, 3, [3]),
        (2.5, 1, [3]),
        (10.7, 1, [3]),
    ],
)
def test_both_are_evaluated_about_as_often_in_as_many_steps(longer, least, stages):
    training = {"per_device_train_batch_size": 8, "evals_per_epoch": least}
    training["stages"] = [{"num_train_epochs": epochs} for epochs in stages]
    config = study(training=training)
    ours, control = both(config, [{"learning_rate": 3e-4}], rows=(int(8000 * longer),), longer=longer)
    assert {**ours.training, "evals_per_epoch": 0} == {**control.training, "evals_per_epoch": 0}
    counts = [
        # as the trainer counts them
        sum(math.ceil(stage["max_steps"] / an_epoch * arm.evals_per_epoch) for stage in arm.training["stages"])
        for arm, an_epoch in ((ours, int(1000 * longer)), (control, 1000))
    ]
    assert abs(counts[0] - counts[1]) <= max(1, 0.1 * counts[0])
    assert least <= control.evals_per_epoch <= 3 * least


def test_no_more_evaluations_than_it_takes_are_made_of_both():
    for least, longer, expected in ((1, 1.0, (1, 1)), (1, 1.4, (3, 2)), (4, 1.3, (5, 4)), (1, 10.7, (11, 1))):
        config = study(training={**study().training, "evals_per_epoch": least})
        ours, control = both(config, [{"learning_rate": 3e-4}], longer=longer)
        assert (ours.evals_per_epoch, control.evals_per_epoch) == expected


def test_points_of_different_lengths_bring_their_own_steps():
    space = {"num_train_epochs": {"type": "int", "low": 1, "high": 4}}
    ours, _ = both(study(search_space=space), [{"num_train_epochs": 1}, {"num_train_epochs": 4}])
    assert ours.search_space.root["max_steps"].choices == (13, 52)
    assert ours.search.enqueue == ({"num_train_epochs": 1, "max_steps": 13}, {"num_train_epochs": 4, "max_steps": 52})
    assert "max_steps" not in ours.training


def test_every_stage_has_its_own_steps():
    stages = [{"freeze_encoder": True, "num_train_epochs": 1}, {"per_device_train_batch_size": 50}]
    ours, _ = both(study(training={**study().training, "stages": stages}), [{"learning_rate": 3e-4}])
    assert [stage["max_steps"] for stage in ours.training["stages"]] == [13, 6]


def test_what_counts_epochs_takes_as_many_steps_in_the_control_whose_epochs_are_shorter():
    stages = [{"swa_epochs": 2}, {"adversarial": "fgm", "adversarial_start": 1.5}]
    ours, control = both(study(training={**study().training, "stages": stages}), [{"learning_rate": 3e-4}], longer=2.0)
    assert [stage.get("swa_epochs") for stage in ours.training["stages"]] == [2, None]
    assert [stage.get("swa_epochs") for stage in control.training["stages"]] == [4, None]
    assert control.training["stages"][1]["adversarial_start"] == 3.0

    space = {"swa_epochs": {"type": "int", "low": 0, "high": 3}}
    ours, control = both(study(search_space=space), [{"swa_epochs": 0}, {"swa_epochs": 3}], longer=1.5)
    assert ours.search.enqueue == ({"swa_epochs": 0}, {"swa_epochs": 3})
    assert control.search.enqueue == ({"swa_epochs": 0}, {"swa_epochs": 4})
    assert control.search_space.root["swa_epochs"].choices == (0, 4)
    assert parse_study(dump_study(control)) == control


def test_an_attack_begins_after_as_many_steps_in_the_control_and_conditions_on_epochs_still_hold():
    config = study(training={**study().training, "adversarial": "fgm", "adversarial_start": 1})
    ours, control = both(config, [{"learning_rate": 3e-4}], longer=1.4)
    assert (ours.training["adversarial_start"], control.training["adversarial_start"]) == (1, 1.4)
    space = {
        "swa_epochs": {"type": "categorical", "choices": [0, 2]},
        "weight_decay": {"type": "uniform", "low": 0.0, "high": 1.0, "when": {"swa_epochs": 2}},
    }
    _, control = both(study(search_space=space), [{"swa_epochs": 2, "weight_decay": 0.5}], longer=1.5)
    assert control.search_space.root["weight_decay"].when == {"swa_epochs": (3,)}
    assert control.search.enqueue == ({"swa_epochs": 3, "weight_decay": 0.5},)


def test_steps_that_the_study_itself_names_stay():
    ours, control = both(study(training={"max_steps": 77}), [{"learning_rate": 3e-4}])
    assert ours.training == control.training == {"max_steps": 77}


@pytest.mark.parametrize(
    ("training", "steps"),
    [
        ({"num_train_epochs": 1, "per_device_train_batch_size": 8}, 13 + 7),
        ({"num_train_epochs": 1, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}, 5),
        ({"num_train_epochs": 0.5, "per_device_train_batch_size": 8}, 10),
        ({"num_train_epochs": 1, "max_tokens_per_batch": 200}, 10 + 5),  # ten rows of 20 tokens
    ],
)
def test_steps_are_counted_as_batches_are_cut(training, steps):
    assert steps_of(study(training=training), {}, long_rows(100, 50)) == (steps,)


def test_batches_of_a_token_budget_have_as_many_rows_as_the_point_s_max_length_allows():
    config = study(training={"num_train_epochs": 1, "max_tokens_per_batch": 200, "max_length": 64})
    assert steps_of(config, {"max_length": 256}, long_rows(100)) == (20,)  # five rows of 40 tokens
    assert steps_of(config, {}, long_rows(100)) == (5,)


def test_batches_of_a_token_budget_are_counted_by_the_lengths_of_each_task_s_rows():
    config = study(training={"num_train_epochs": 1, "max_tokens_per_batch": 200})
    rows = [np.array([10] * 40), np.array([100] * 4)]  # of which 20, and 2, are a batch
    assert epoch_steps(config, {}, lambda options: rows) == [2 + 2]
    ungrouped = study(training={"num_train_epochs": 1, "max_tokens_per_batch": 200, "group_by_length": False})
    assert epoch_steps(ungrouped, {}, lambda options: [np.array([10] * 38 + [100] * 2)]) == [20]


def test_a_round_has_the_steps_of_its_own_rows_and_its_control_as_many_with_shorter_epochs(monkeypatch):
    def part(*lengths: int) -> SimpleNamespace:
        return SimpleNamespace(batch_lengths=lambda *, apart: np.array(lengths))

    parts = {"mood": {"train": part(*[20] * 80), "unlabeled": part(*[100] * 10, *[10] * 30)}}
    monkeypatch.setattr("tutti.data.encode.load_parts", lambda *_, **__: parts)
    prepared = SimpleNamespace(tasks=[SimpleNamespace(name="mood", pair=False)])
    config = study(training={"num_train_epochs": 2, "max_tokens_per_batch": 200, "swa_epochs": 4})
    ours, control = studies_with_labels(
        config,
        StudyFolder(Path("studies/moods")),
        name="moods-round-1",
        latest=config,
        prepared=prepared,
        labels=LABELS,
        counts={"mood": 4},
        points=[{"learning_rate": 3e-4}],
    )
    # A batch of 200 tokens holds ten rows of 20; nine where a row of 100 follows, as long as the noise may make it.
    assert ours.training["max_steps"] == control.training["max_steps"] == 2 * 11
    assert (ours.training["swa_epochs"], control.training["swa_epochs"]) == (4, round(4 * 11 / 8))


def test_points_that_name_their_steps_and_others_take_as_many_in_the_round_and_its_control():
    space = {"max_steps": {"type": "categorical", "choices": [-1, 500]}}
    ours, control = both(study(search_space=space), [{"max_steps": 500}, {"max_steps": -1}], longer=2.0)
    assert ours.search.enqueue == control.search.enqueue == ({"max_steps": 500}, {"max_steps": 3 * 13})


def test_a_batch_of_several_workers_is_one():
    config = study(training={"num_train_epochs": 1, "per_device_train_batch_size": 8}, resources={"workers": 2})
    assert steps_of(config, {}, long_rows(100, 50)) == (7 + 4,)


def test_the_best_points_are_those_of_finished_trials_each_once():
    def record(number: int, score: float | None, point: float, state=TrialState.FINISHED) -> TrialRecord:
        return TrialRecord(f"t{number}", number, state, score=score, parameters={"learning_rate": point})

    records = [record(0, 0.5, 1), record(1, 0.9, 2), record(2, 0.95, 3, TrialState.STOPPED), record(3, 0.8, 2)]
    assert best_points(records, count=3) == [{"learning_rate": 2}, {"learning_rate": 1}]
    assert best_points(records, count=1) == [{"learning_rate": 2}]
