"""Faults of training keys that have no effect on a study's tasks."""

from __future__ import annotations

import pytest

from tutti.config.task_keys import task_key_faults

MOOD, SCORE = {"metric": "macro_f1"}, {"metric": "pearson"}
LABELS, VALUES = {"columns": {"labels": ["a", "b"]}}, {"columns": {"values": ["x", "y"]}, "metric": "rmse"}
GRADES = {"ordered": True, "metric": "quadratic_kappa"}


def faults(tasks, training):
    return [str(fault) for fault in task_key_faults({"tasks": tasks, "training": training}, what=str)]


@pytest.mark.parametrize(
    ("key", "value", "off"),
    [("class_weights", "balanced", None), ("focal_gamma", 2.0, 0.0), ("label_smoothing_factor", 0.1, 0)],
)
def test_a_loss_of_classes_needs_a_task_that_has_some(key, value, off):
    assert faults({"a": SCORE, "b": SCORE}, {key: value}) == [
        f"training.{key} must be left out where no task has classes or labels; got {value!r}; take it out."
    ]
    assert not faults({"a": SCORE, "b": MOOD}, {key: value})
    assert not faults({"a": SCORE, "b": {}}, {key: value})  # macro-F1 by default
    assert not faults({"a": SCORE, "b": SCORE}, {key: off})


@pytest.mark.parametrize("key", ["class_weights", "focal_gamma", "label_smoothing_factor"])
def test_a_loss_of_classes_is_one_of_several_labels_too_and_none_of_several_numbers(key):
    value = {"class_weights": "balanced"}.get(key, 0.1)
    assert not faults({"a": LABELS}, {key: value})
    assert faults({"a": VALUES}, {key: value})


def test_a_head_of_ordered_classes_needs_a_task_that_has_some():
    rule = "must be left out where no task has ordered classes (`ordered: true`)"
    assert faults({"a": MOOD, "b": LABELS}, {"ordered_head": "corn"}) == [
        f"training.ordered_head {rule}; got 'corn'; take it out."
    ]
    assert not faults({"a": MOOD, "b": GRADES}, {"ordered_head": "corn"})
    assert not faults({"a": MOOD}, {"ordered_head": "softmax"})


@pytest.mark.parametrize("key", ["focal_gamma", "label_smoothing_factor"])
def test_ordered_classes_that_are_learnt_as_one_number_have_no_probabilities_to_smooth(key):
    training = {key: 0.1, "ordered_head": "regression"}
    (message,) = faults({"a": GRADES, "b": SCORE}, training)
    assert message.startswith(f"training.{key} must be left out with ordered_head: regression")
    assert not faults({"a": GRADES}, training | {"ordered_head": "corn"})
    assert not faults({"a": GRADES, "b": MOOD}, training)
    assert not faults({"a": GRADES}, {"ordered_head": "regression", "class_weights": "balanced"})


@pytest.mark.parametrize(("key", "value"), [("task_sampling", "temperature"), ("loss_balancing", "dynamic")])
def test_what_shares_out_over_tasks_needs_several(key, value):
    stages = [{}, {key: value}]
    (message,) = faults({"a": MOOD}, {"stages": stages})
    assert message.startswith(f"training.stages.1.{key} must be left out of a study of one task")
    assert not faults({"a": MOOD, "b": SCORE}, {"stages": stages})


def test_of_one_task_what_is_on_by_default_or_scales_the_loss_may_stand():
    assert not faults({"a": MOOD}, {"task_sampling": "proportional", "loss_balancing": "uncertainty"})


def test_a_search_space_varies_the_weights_of_the_study_s_own_tasks():
    space = {"task_weights.a.b": {}, "sampling_weights.A.b": {}, "learning_rate": {}}
    (fault,) = task_key_faults({"tasks": {"a.b": MOOD, "c": MOOD}, "search_space": space}, what=str)
    assert str(fault).startswith("search_space.sampling_weights.A.b must name a task of the study; got 'A.b'; did you")


@pytest.mark.parametrize("odd", [None, [], "text", {"a": None}, {}])
def test_what_is_no_mapping_of_tasks_is_left_to_the_schema(odd):
    assert not faults(odd, {"class_weights": "balanced", "stages": "text"})
    assert not faults({"a": MOOD}, odd)
