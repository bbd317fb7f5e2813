from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tutti.config.recipe import Recipe
from tutti.outputs.ensemble import write_ensemble

RECIPES = sorted((Path(__file__).parents[2] / "ensembles").glob("*.yaml"))


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_a_shipped_recipe_is_valid_and_its_header_gives_the_command(file, make_study, tmp_path):
    recipe = Recipe.model_validate(YAML(typ="safe", pure=True).load(file))
    choice = {"top": recipe.members.top, "by": recipe.members.by, "weights": recipe.weights}
    card = write_ensemble(**make_study().ensemble(tmp_path / "out", recipe_name=file.stem, **choice))
    assert all(len(task.members) == 5 for task in card.tasks)
    assert f"#   tutti ensemble STUDY --recipe {file.stem}\n" in file.read_text()


def test_both_recipes_are_shipped():
    assert {"baseline", "weighted"} <= {file.stem for file in RECIPES}
