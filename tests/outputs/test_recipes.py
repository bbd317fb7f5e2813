from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from polls import write_ensemble

from tutti.config.load import load_recipe
from tutti.config.recipe import Method, Recipe
from tutti.ensembling.methods.registry import METHODS
from tutti.errors import ConfigError
from tutti.outputs.election.poll import Rule

RECIPES = sorted((Path(__file__).parents[2] / "ensembles").glob("*.yaml"))


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_a_shipped_recipe_is_valid_and_its_header_gives_the_command(file, make_finished, tmp_path):
    name, recipe = load_recipe(file.stem)
    study = make_finished(12)
    arguments = study.ensemble(tmp_path / "out", recipe_name=name, rule=Rule.of(recipe), tasks=study.tasks[:1])
    card = write_ensemble(**arguments)
    assert all(2 <= len(task.members) <= (recipe.members.top or 12) for task in card.tasks)
    assert all(task.gain.score > 0 for task in card.tasks)
    assert f"#   tutti ensemble STUDY --recipe {file.stem}\n" in file.read_text()


def test_the_recipes_that_the_documentation_names_are_shipped():
    page = (Path(__file__).parents[2] / "docs" / "ensembles.md").read_text(encoding="utf8")
    named = re.findall(r"^\| `(\w+)`", page.partition("| recipe | members |")[2].partition("\n\n")[0], re.MULTILINE)
    assert {file.stem for file in RECIPES} == {*named}


def test_the_baseline_is_the_plain_mean_of_the_five_best_with_a_threshold_of_99_percent():
    _, recipe = load_recipe("baseline")
    assert recipe == Recipe()
    assert (recipe.members.top, recipe.method, recipe.pseudo_labels.threshold) == (5, "uniform", 0.99)


def test_a_recipe_may_name_the_methods_that_there_are_and_no_other():
    assert get_args(Method) == ("auto", *METHODS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method: greddy", "method must be one of auto, uniform, .*; got 'greddy'; did you mean 'greedy'"),
        ("weights: score", "weights must be a known key"),
        ("members: {within: -0.1}", "members.within must be at least 0; got -0.1"),
        ("members: {diversity: 1}", "members.diversity must be below 1; got 1"),
        ("decision: ofsets", "decision must be one of argmax, offsets; got 'ofsets'; did you mean 'offsets'"),
        ("pseudo_labels: {select: al}", "pseudo_labels.select must be one of threshold, quantile, prior, all"),
        ("calibration: yes", "calibration must be one of none, temperature; got 'yes'"),
    ],
)
def test_a_recipe_s_faults_name_the_key_and_what_to_do(tmp_path, text, message):
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_recipe(str(tmp_path / "own.yaml"))


def test_all_members_may_vote(tmp_path):
    (tmp_path / "own.yaml").write_text("members: {top: null, within: 0.02}")
    assert load_recipe(str(tmp_path / "own.yaml"))[1].members.top is None
