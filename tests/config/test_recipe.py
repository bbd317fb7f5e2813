"""A recipe is a shipped one by its name, or a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tutti.config.load import load_recipe
from tutti.config.recipe import Recipe
from tutti.errors import ConfigError


def test_a_recipe_is_read_by_path_and_its_faults_are_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("members: {top: 3}\n", encoding="utf-8")
    assert load_recipe(str(path)) == ("mine", Recipe.model_validate({"members": {"top": 3}}))
    path.write_text("members: {top: 0}\npseudo_labels: {treshold: 0.9}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        load_recipe(str(path))
    assert [str(fault) for fault in raised.value.faults] == [
        f"{path}: members.top must be at least 1; got 0; change the number.",
        f"{path}: pseudo_labels.treshold must be a known key; got an unknown one; did you mean 'threshold'? "
        "Correct the name.",
    ]


def test_an_unknown_recipe_is_told_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"the recipe 'basline' must be one of .*, or the path of a YAML file"):
        load_recipe("basline")


@pytest.mark.parametrize("method", ["rank", "hard"])
def test_ranks_and_votes_give_no_soft_labels(tmp_path: Path, method: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"method: {method}\npseudo_labels: {{labels: soft}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"set another method than {method} with `labels: soft`"):
        load_recipe(str(path))
