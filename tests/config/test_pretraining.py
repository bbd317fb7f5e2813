"""A pretraining file: its paths, its faults, and what is given beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tutti.config.pretraining import PretrainingConfig, PretrainingRun, is_pretraining_file, load_pretraining
from tutti.errors import ConfigError

FILE = "backbone: new\ntexts: [news.txt]\nout: made\nepochs: 3\n"


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "beside"
    (folder / "new").mkdir(parents=True)
    (folder / "news.txt").write_text("One.\nTwo.\n")
    (folder / "pretraining.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return folder / "pretraining.yaml"


def load(source, **options):
    return load_pretraining(PretrainingConfig, source, options, option="--{}".format)


def test_paths_in_a_file_are_relative_to_it_and_those_given_beside_it_to_the_current_folder(file, tmp_path):
    config = load(file, out="there", epochs=5)
    assert config.texts == (file.parent / "news.txt",)
    assert config.backbone == str(file.parent / "new")
    assert (config.out, config.epochs) == (tmp_path / "there", 5)
    assert config.settings.epochs == 5


def test_a_mapping_takes_the_place_of_a_file_and_one_text_that_of_a_list(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    config = load({"backbone": "new", "texts": Path("news.txt"), "columns": "title", "out": Path("made")})
    assert (config.texts, config.columns) == ((file.parent / "news.txt",), ("title",))


@pytest.mark.parametrize(
    ("key", "meant"), [("objectve", "objective"), ("lr", "learning_rate"), ("mlm_probability", "mask_share")]
)
def test_an_unknown_key_names_the_nearest_known_one(file, key, meant):
    file.write_text(f"{FILE}{key}: 1\n")
    with pytest.raises(ConfigError, match=f"{file}: {key} must be a known key; .* did you mean '{meant}'?"):
        load(file)


def test_every_fault_is_told_at_once_where_it_was_given(file):
    file.write_text(FILE.replace("news.txt", "nwes.txt").replace("3", "0"))
    with pytest.raises(ConfigError) as raised:
        load(file, learning_rate=float("nan"), masks="word")
    assert [fault.what for fault in raised.value.faults] == [
        f"{file}: texts.0", "--learning_rate", f"{file}: epochs", "--masks",
    ]  # fmt: skip
    assert "did you mean 'news.txt'" in str(raised.value)


def test_what_is_missing_is_asked_for():
    with pytest.raises(ConfigError, match="--out must be given; got nothing"):
        load_pretraining(PretrainingRun, None, {"out": None}, option="--{}".format)


def test_a_pretraining_file_is_told_from_a_study(file):
    assert is_pretraining_file(file)
    file.write_text("study: s\nbackbone: new\ntasks: {}\n")
    assert not is_pretraining_file(file)
    assert not is_pretraining_file(file.parent / "no.yaml")


SEARCHED = f"{FILE}steps: 20\nsearch_space:\n  learning_rate: {{type: log_uniform, low: 1.0e-4, high: 1.0e-3}}\n"


def test_a_search_has_evaluations_in_place_of_epochs_and_overrides_reach_its_keys(file):
    file.write_text(f"{SEARCHED}evaluate_steps: 3\nsearch: {{trials: 4, grace_evaluations: 2}}\n")
    config = load_pretraining(PretrainingConfig, file, {}, option="--{}".format, overrides=["search.trials=6"])
    assert (config.search.as_of_study.trials, config.search.as_of_study.grace_epochs) == (6, 2)
    assert config.trial_evaluations == (3, 7)
    assert config.with_point({"learning_rate": 5e-4}).settings.learning_rate == 5e-4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "  mask_share: {type: uniform, low: 0.1, high: 0.4}\n",
            "mask_share must not vary where trials are compared",
        ),
        ("  save_steps: {type: int, low: 1, high: 9}\n", "save_steps must be a key that can differ between trials of"),
        ("  backbone: {type: int, low: 1, high: 9}\n", r"search_space\.backbone\.type must be categorical"),
        ("  batch_size: {type: uniform, low: 1, high: 9}\n", r"batch_size\.type must be int or categorical"),
        ("  weight_decay: {type: uniform, low: -1, high: 1}\n", r"weight_decay\.low must be at least 0; got -1"),
        ("search: {objective: downstream}\n", r"search\.study must be given with `objective: downstream`"),
        ("search: {trails: 3}\n", r"search\.trails must be a known key; got an unknown one; did you mean 'trials'"),
        ("search: {study: nowhere.yaml}\n", r"search\.study must be an existing file"),
        ("search: {scheduler: pbt}\n", r"search\.scheduler must be one of asha, hyperband, median, none"),
    ],
)
def test_a_search_that_cannot_be_is_told_with_its_key(file, line, message):
    file.write_text(SEARCHED + line)
    with pytest.raises(ConfigError, match=message):
        load(file)


def test_trials_can_go_on_from_several_backbones_whose_paths_are_relative_to_the_file(file):
    for name in ("tiny", "mini"):
        (file.parent / name).mkdir()
    file.write_text(f"{SEARCHED}  backbone: {{type: categorical, choices: [tiny, mini]}}\n")
    config = load(file)
    assert config.backbones == (str(file.parent / "tiny"), str(file.parent / "mini"))
    assert config.with_point({"backbone": config.backbones[1]}).backbone == config.backbones[1]


def test_a_search_needs_the_steps_of_a_trial(file):
    file.write_text(SEARCHED.replace("steps: 20\n", ""))
    with pytest.raises(ConfigError, match="steps must be given with a search space; got nothing; add the number"):
        load(file)
