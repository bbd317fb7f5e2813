"""Checks of conditions, grids, enqueued points and objectives in a study file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tutti.config.conditions import drawing_order, without_undrawn
from tutti.config.load import dump_study, load_study, parse_study
from tutti.config.points import grid, value_fault
from tutti.config.space import SearchSpace
from tutti.errors import ConfigError

Changed = Callable[..., Path]
ADAPTER = "  adapter: {type: categorical, choices: [null, lora]}\n"
RANK = "  lora_r: {type: int, low: 4, high: 16, step: 4, when: {adapter: lora}}\n"
FINITE = "search_space:\n  pooling: {type: categorical, choices: [cls, mean]}\n"
INLINE = "search_space:\n  learning_rate: {type: log_uniform, low: 1e-5, high: 1e-3}\n"


def faults(path: Path, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load_study(path, **options)
    return [str(fault).removeprefix(f"{path}: ") for fault in raised.value.faults]


def space(**distributions: Any) -> dict[str, Any]:
    return SearchSpace.model_validate(distributions).root


def test_one_value_of_a_condition_is_a_list_of_one_and_a_stored_study_keeps_it(changed: Changed) -> None:
    path = changed(add=f"{ADAPTER}{RANK}  lora_alpha: {{type: int, low: 1, high: 9, when: {{adapter: [lora]}}}}\n")
    config = load_study(path)
    assert config.search_space.root["lora_r"].when == config.search_space.root["lora_alpha"].when
    assert config.search_space.root["lora_r"].when == {"adapter": ("lora",)}
    assert parse_study(dump_study(config)) == config


@pytest.mark.parametrize(
    ("training", "added"),
    [
        ("num_train_epochs: 2\n  adapter: lora", RANK),
        ("stages: [{bits: 4}]", "  lora_r: {type: int, low: 4, high: 16, when: {stages.0.bits: 4}}\n"),
        ("num_train_epochs: 2", RANK + ADAPTER),
    ],
)
def test_a_condition_may_name_what_training_sets_a_stage_sets_or_the_space_varies(changed, training, added):
    assert "lora_r" in load_study(changed("num_train_epochs: 2", training, add=added)).search_space.root


@pytest.mark.parametrize(
    ("added", "sentence"),
    [
        (
            ADAPTER + RANK.replace("adapter: lora", "adapter: [lroa, null]"),
            "search_space.lora_r.when.adapter must be of the choices of adapter: null, lora; got 'lroa'; did you mean ",
        ),
        (
            RANK.replace("adapter: lora", "learning_rate: 1e-4"),
            "search_space.lora_r.when.learning_rate must name a key of the type categorical, or one under training:; "
            "got learning_rate of the type log_uniform; ",
        ),
        (
            ADAPTER.replace("}", ", when: {pooling: cls}}")
            + "  pooling: {type: categorical, choices: [cls], when: {adapter: lora}}\n",
            "search_space.adapter.when must not lead back to the key itself; got adapter -> pooling -> adapter; take ",
        ),
        (ADAPTER + RANK.replace("{adapter: lora}", "lora"), "search_space.lora_r.when must hold keys of its own; got"),
        (ADAPTER + RANK.replace("lora}", "[]}"), "search_space.lora_r.when.adapter must hold at least one entry; got "),
    ],
)
def test_each_kind_of_wrong_condition_has_its_sentence(changed: Changed, added: str, sentence: str) -> None:
    messages = faults(changed(add=added))
    assert [text[: len(sentence)] for text in messages] == [sentence]


def test_keys_are_drawn_after_those_that_their_conditions_name_and_else_as_in_the_file() -> None:
    kind = {"type": "categorical", "choices": ["x", "y"]}
    keys = space(c={**kind, "when": {"b": "x"}}, a=kind, b={**kind, "when": {"d": "x"}}, d=kind)
    assert drawing_order(keys) == ["a", "d", "b", "c"]


def test_a_key_below_one_that_is_not_drawn_goes_by_what_training_sets() -> None:
    kind = {"type": "categorical", "choices": ["x", "y"]}
    keys = space(a=kind, b={**kind, "when": {"a": "x"}}, c={**kind, "when": {"b": "x"}})
    drawn = {"a": "y", "b": "x", "c": "x"}
    assert without_undrawn(drawn, keys, {}) == {"a": "y"}
    assert without_undrawn(drawn, keys, {"b": "x"}) == {"a": "y", "c": "x"}
    assert without_undrawn({**drawn, "a": "x"}, keys, {}) == {**drawn, "a": "x"}


@pytest.mark.parametrize(
    ("distribution", "good", "bad"),
    [
        ({"type": "categorical", "choices": [1, "a", None]}, [1, 1.0, "a", None], [True, "1", 2]),
        ({"type": "int", "low": 1, "high": 8, "step": 3}, [1, 4, 7], [0, 2, 8, 10, 4.0, True, "4"]),
        ({"type": "uniform", "low": 0, "high": 0.5, "step": 0.1}, [0, 0.1 + 0.2, 0.5], [0.25, 0.6, "0.1", None]),
        ({"type": "log_uniform", "low": 1e-5, "high": 1e-3}, [1e-5, 2e-4], [0, 0.01]),
    ],
)
def test_a_value_is_told_from_one_that_a_key_cannot_have(distribution: Any, good: list[Any], bad: list[Any]) -> None:
    kind = space(x=distribution)["x"]
    assert [value for value in good if value_fault(kind, value)] == []
    assert [value for value in bad if not value_fault(kind, value)] == []


def test_a_grid_has_each_point_once_and_only_keys_that_are_drawn() -> None:
    keys = space(
        r={"type": "int", "low": 4, "high": 9, "step": 4, "when": {"a": "lora"}},
        a={"type": "categorical", "choices": [None, "lora"]},
        d={"type": "uniform", "low": 0, "high": 0.3, "step": 0.1},
    )
    points = list(grid(keys, {}))
    assert len(points) == 4 * (1 + 2)
    assert sorted({point["d"] for point in points}) == [0.0, 0.1, 0.2, 0.3]
    assert {(point["a"], point.get("r")) for point in points} == {(None, None), ("lora", 4), ("lora", 8)}


@pytest.mark.parametrize(
    ("spaces", "search", "sentence"),
    [
        (
            INLINE,
            "{sampler: grid}",
            "search_space.learning_rate must have finitely many values for the sampler grid; got the type log_uniform ",
        ),
        (
            "search_space:\n  max_length: {type: int, low: 8, high: 12000}\n",
            "{sampler: grid}",
            "search.sampler must be another one where the grid has more than 10,000 points; got grid; name qmc or ",
        ),
        (INLINE, "{sampler: gird}", "search.sampler must be one of tpe, gp, cmaes, nsgaii, nsgaiii, qmc, random, grid"),
        (
            INLINE,
            "{enqueue: [{learning_rate: 1e-4}, {learning_rate: 0.1}]}",
            "search.enqueue.1.learning_rate must be from 1e-05 to 0.001, as the search space has it; got 0.1; choose",
        ),
        (
            FINITE,
            "{enqueue: [{pooling: maen}]}",
            "search.enqueue.0.pooling must be one of cls, mean; got 'maen'; did you mean 'mean'? Correct the name.",
        ),
        (
            f"{FINITE}{ADAPTER}{RANK}",
            "{enqueue: [{lora_r: 4, adapter: null}]}",
            "search.enqueue.0.lora_r must be used with adapter: lora, without which lora_r is not drawn; got a point ",
        ),
        (
            f"{FINITE}{ADAPTER}{RANK}",
            "{enqueue: [{lora_r: 5, adapter: lora}]}",
            "search.enqueue.0.lora_r must be 4 or ",
        ),
        (INLINE, "{objectives: []}", "search.objectives must hold at least one entry; got an empty list; add one."),
        (INLINE, "{objectives: [score, score]}", "search.objectives must name each objective once; got score, score; "),
        ("", "{}", "search.trials must be 1 without a search space, as all trials would be the same; got 8; "),
        (INLINE, "{scheduler: pbt, trials: 3.0}", "search.trials must be at least 4 with the scheduler pbt: all "),
        (INLINE, "{enqueue: [{}]}", "search.enqueue.0 must hold at least one entry; got an empty mapping; add one."),
        (INLINE, "{enqueue: {learning_rate: 1e-4}}", "search.enqueue must be a list; got a mapping with the keys "),
        (INLINE, "{enqueue: [1e-4]}", "search.enqueue.0 must hold keys of its own; got 0.0001; write its keys"),
    ],
)
def test_each_kind_of_fault_of_a_search_has_its_sentence(changed, spaces, search, sentence):
    messages = faults(changed(INLINE, spaces, add=f"search: {search}\n"))
    assert [text[: len(sentence)] for text in messages] == [sentence]


def test_a_population_is_evaluated_after_whole_epochs(changed: Changed) -> None:
    path = changed("training:\n", "training:\n  evals_per_epoch: 2\n", add="search: {scheduler: pbt}\n")
    (message,) = faults(path)
    assert message.startswith(
        "training.evals_per_epoch must be left out with the scheduler pbt: a trial meets the others "
    )


def test_a_fault_of_the_search_space_is_not_told_again_of_a_point(changed: Changed) -> None:
    path = changed("low: 1e-5", "low: x", add="search: {enqueue: [{learning_rate: 1e-4}], sampler: grid}\n")
    assert [text.split(" must ")[0] for text in faults(path)] == ["search_space.learning_rate.low"]


def test_sound_points_and_a_sound_grid_are_taken(changed: Changed) -> None:
    path = changed(
        INLINE,
        f"{FINITE}{ADAPTER}{RANK}",
        add="search: {sampler: grid, trials: 10, enqueue: [{lora_r: 8, adapter: lora}, {pooling: cls}]}\n",
    )
    search = load_study(path).search
    assert search.enqueue == ({"lora_r": 8, "adapter": "lora"}, {"pooling": "cls"})
    assert load_study(path, overrides=["search.sampler=qmc", "search.trials=11"]).search.trials == 11


def test_a_study_of_other_objectives_than_the_score_has_no_scheduler(changed: Changed) -> None:
    path = changed(add="search: {trials: 2}\n")
    assert load_study(path).search.scheduler == "asha"
    assert load_study(path, overrides=["search.objectives=[score]"]).search.scheduler == "asha"
    for objectives in ("[score, seconds]", "[gain]"):
        study = load_study(path, overrides=[f"search.objectives={objectives}"])
        assert study.search.scheduler == "none"
        assert parse_study(dump_study(study)) == study


def test_a_point_relies_on_no_fixed_value_that_the_search_space_replaces(changed: Changed) -> None:
    add = ADAPTER + RANK + "search: {enqueue: [{lora_r: 4}]}\n"
    path = changed("num_train_epochs: 2", "num_train_epochs: 2\n  adapter: lora", add=add)
    (fault,) = faults(path)
    assert fault.startswith(
        "search.enqueue.0.lora_r must be used with adapter: lora, without which lora_r is not drawn"
    )
    assert load_study(path, overrides=["search_space.adapter=null"]).search.enqueue
