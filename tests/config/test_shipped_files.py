"""The shipped search spaces and examples are valid, and are found by name."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tutti.config.load import load_recipe, load_study
from tutti.config.names import is_path, shipped_folder, shipped_names
from tutti.config.pretraining import PretrainingConfig, is_pretraining_file, load_pretraining
from tutti.config.space import SearchSpace
from tutti.config.training import TrainingOptions

ROOT = Path(__file__).parents[2]
SPACES = sorted((ROOT / "search_spaces").glob("*.yaml"))
PRETRAINING = ROOT / "examples" / "pretraining.yaml"
EXAMPLES = sorted({*(ROOT / "examples").glob("*.yaml")} - {PRETRAINING})
RECIPES = sorted((ROOT / "examples" / "recipes").glob("*.yaml"))


def test_the_package_finds_the_repositorys_folders() -> None:
    assert shipped_names("search_spaces") == ("base_large", "decoder_qlora", "lora", "minute", "qlora", "small")
    assert shipped_folder("search_spaces").resolve() == ROOT / "search_spaces"
    assert shipped_folder("ensembles").resolve() == ROOT / "ensembles"


@pytest.mark.parametrize(
    ("name", "expected"), [("small", False), ("small.yaml", True), ("./small", True), ("~x", True)]
)
def test_a_name_is_told_from_a_path(name: str, expected: bool) -> None:
    assert is_path(name) == expected


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_beside_the_examples_is_valid_and_the_studies_it_refers_to_name_it(path: Path) -> None:
    assert load_recipe(str(path))[0] == path.stem
    studies = re.findall(r"\.\./(\w+\.yaml)", path.read_text(encoding="utf-8"))
    assert studies
    for study in studies:
        assert f"--recipe recipes/{path.name}" in (ROOT / "examples" / study).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_a_search_space_is_sound_and_varies_only_known_training_keys(path: Path) -> None:
    from transformers import TrainingArguments

    space = SearchSpace.model_validate(YAML(typ="safe", pure=True).load(path))
    known = {field.name for field in fields(TrainingArguments) if field.init} | set(TrainingOptions.model_fields)
    assert set(space.root) <= known
    assert f"search_space: {path.stem}" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_a_search_space_offers_only_values_that_tuttis_own_options_take(path: Path) -> None:
    space = SearchSpace.model_validate(YAML(typ="safe", pure=True).load(path))
    adapter = {"adapter": "lora"} if "adapter" in space.root else {}  # without which bits are refused
    for key in set(space.root) & set(TrainingOptions.model_fields):
        distribution = space.root[key]
        ends = distribution.choices if distribution.type == "categorical" else (distribution.low, distribution.high)
        for value in ends:
            assert getattr(TrainingOptions.model_validate(adapter | {key: value}), key) == value


def _files_in(task: dict[str, Any]) -> Iterator[str]:
    for part in ("train", "validation", "test", "unlabeled"):
        value = task.get(part) or []
        yield from value.values() if isinstance(value, dict) else [value] if isinstance(value, str) else value
    yield from (extra["path"] for extra in task.get("extra_train") or [])
    yield from (questions["file"] for questions in (task.get("report_sets") or {}).values())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_sound_once_its_files_are_there(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    raw = YAML(typ="safe", pure=True).load(path)
    named = [file for task in raw["tasks"].values() for file in _files_in(task)]
    assert named
    for file in named:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    from tutti.training import check_training

    config = load_study(copy, check_training=check_training)
    assert config.study == path.stem
    assert [*config.tasks] == [*raw["tasks"]]


def test_the_example_of_pretraining_is_sound_once_its_files_are_there(tmp_path: Path) -> None:
    copy = tmp_path / PRETRAINING.name
    copy.write_text(PRETRAINING.read_text(encoding="utf-8"), encoding="utf-8")
    assert is_pretraining_file(copy)
    (tmp_path / "data").mkdir()
    for file in YAML(typ="safe", pure=True).load(copy)["texts"]:
        (tmp_path / file).touch()
    assert load_pretraining(PretrainingConfig, copy, {}, option=str).out == tmp_path / "electra"


def test_loading_a_study_needs_no_heavy_library() -> None:
    code = (
        "import sys, tutti.config.load; print({'torch', 'ray', 'mlflow', 'optuna', 'transformers'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
