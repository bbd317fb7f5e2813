"""Loading study files: a valid file is read completely, and each fault of an invalid one gets one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from tutti.config.load import dump_study, load_recipe, load_study, parse_study
from tutti.config.numbers import members
from tutti.config.recipe import Recipe
from tutti.config.study import StudyConfig
from tutti.errors import ConfigError, Fault

Changed = Callable[..., Path]
Faults = Callable[..., list[str]]


def test_a_sound_study_comes_out_with_every_path_absolute(study: Path) -> None:
    config = load_study(study)
    assert config.backbone == str(study.parent / "backbone")
    assert config.tasks["topic"].train == str(study.parent / "data" / "topic_train.csv")
    assert config.training == {"num_train_epochs": 2}
    assert config.search_space.root["learning_rate"].low == 1e-5  # type: ignore[union-attr]


def test_a_relative_path_of_the_study_file_itself_is_understood(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(study.parent)
    assert load_study(Path("study.yaml")) == load_study(study)


def test_paths_in_home_named_sets_extra_rows_and_storage_are_resolved(
    changed: Changed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "data"))
    path = changed(
        "    test: data/topic_test.csv",
        "    test: {first: ~/topic_test.csv}\n    extra_train: [{path: data/topic_train.csv, weight: 0.5}]",
        add="storage: {path: ../studies}\n",
    )
    config = load_study(path)
    assert config.tasks["topic"].test_sets() == {"test-first": str(tmp_path / "data" / "topic_test.csv")}
    assert config.tasks["topic"].extra_train[0].path == tmp_path / "data" / "topic_train.csv"
    assert config.storage.path == tmp_path.parent / "studies"


def test_yaml_is_of_version_1_2(changed: Changed) -> None:
    config = load_study(changed("study: little", "study: no"), overrides=["training.learning_rate=2e-5"])
    assert config.study == "no"
    assert config.training["learning_rate"] == 2e-5


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "study.yaml must hold the keys of a study file; got an empty file; write one key and its value on each"),
        ("- a\n", "study.yaml must hold the keys of a study file; got a list; "),
        ("study: a\nstudy: b\n", 'study.yaml, line 2, column 1, must give each key once; got a duplicate key "study"'),
        ("study: [1,\n", "study.yaml, line 2, column 1, must be YAML; got what the reader calls "),
        ("a: 1\n\tb: 2\n", "study.yaml, line 2, column 1, must be YAML; "),
        ("a: !!python/object:os.system x\n", "study.yaml, line 1, column 4, must be YAML; "),
        ("a: 1\n---\nb: 2\n", "study.yaml, line 2, column 1, must be YAML; "),
        ("? {c: d}\n: e\n", "study.yaml, line 1, column 3, must be YAML; "),
        ("a: \x01\n", "study.yaml must be YAML; "),
        (b"study: caf\xe9\n", "study.yaml must be UTF-8 text; got a byte that is not, at offset 10; save it as UTF-8."),
        (b"\x80\x00\x01", "study.yaml must be UTF-8 text; "),
    ],
)
def test_a_file_that_is_no_yaml_mapping_is_told_by_line_and_column(
    faults: Faults, study: Path, text: str | bytes, sentence: str
) -> None:
    study.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert f"{study.parent}/{sentence}" in faults(study)[0]


def test_a_study_file_that_is_not_there_is_told(faults: Faults, tmp_path: Path) -> None:
    assert faults(tmp_path / "no.yaml") == [
        f"{tmp_path}/no.yaml must be a study file that can be read; got no such file or directory; correct the path."
    ]
    assert "got a folder" in faults(tmp_path)[0]


def test_a_study_file_that_nobody_may_read_is_not_called_misspelt(
    faults: Faults, study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert faults(study) == [
        f"{study} must be a study file that can be read; got permission denied; see to its permissions."
    ]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("backbone: backbone/\n", "", "backbone must be given; got nothing; add `backbone:`."),
        ("backbone:", "bakbone:", "bakbone must be a known key; got an unknown one; did you mean 'backbone'? Correct"),
        (
            "backbone:",
            "3: x\nbackbone:",
            "3 must be a known key; got an unknown one; known here: study, backbone, tasks",
        ),
        ("study: little", "study: 5", "study must be a text; got 5; put it in quotes if it is meant as a text."),
        (
            "study: little",
            "study: a/b",
            "study must be a name of 1 to 80 letters, digits, dots, dashes and underscores",
        ),
        ("  topic:", "  new topic:", "tasks.new topic must be a name of 1 to 80 letters"),
        (
            "competition",
            "competitio",
            "tasks.topic.layout must be one of competition, glue, table, hub; got 'competitio'; ",
        ),
        ("    test:", "    tset:", "tasks.topic.tset must be a known key; got an unknown one; did you mean 'test'?"),
        ("data/topic_test.csv", "4", "tasks.topic.test must be a file, or a mapping of names to files; got 4; "),
        ("data/topic_test.csv", "{}", "tasks.topic.test must hold at least one entry; got an empty mapping; add one."),
        ("data/topic_test.csv", "{a b: 3}", "tasks.topic.test.a b must be a"),
        (
            "    train:",
            "    pair: maybe\n    train:",
            "tasks.topic.pair must be true or false; got 'maybe'; write true or",
        ),
        (
            "    train:",
            "    cleaning: 3\n    train:",
            "tasks.topic.cleaning must hold keys of its own; got 3; write its",
        ),
        (
            "    train:",
            "    extra_train: x\n    train:",
            "tasks.topic.extra_train must be a list; got 'x'; write it as [",
        ),
        (
            "    train:",
            "    extra_train: [{path: data/topic_train.csv, wieght: 1}]\n    train:",
            "tasks.topic.extra_train.0.wieght must be a known key; got an unknown one; did you mean 'weight'?",
        ),
        ("training:\n", "training: [1]\nsplit:\n", "training must hold keys of its own; got a list; write its keys"),
        (
            "high: 1e-3",
            "high: 1e-6",
            "search_space.learning_rate must have low below high; got low 1e-05 and high 1e-06",
        ),
        (
            "high: 1e-3",
            "hgih: 1e-3",
            "search_space.learning_rate.hgih must be a known key; got an unknown one; did you",
        ),
        ("high: 1e-3", "high: much", "search_space.learning_rate.high must be a number; got 'much'; give a number"),
        (
            "high: 1e-3",
            "high: .inf",
            "search_space.learning_rate.high must be a finite number; got inf; give a number.",
        ),
        ("low: 1e-5", "low: 0", "search_space.learning_rate.low must be above 0; got 0; change the number."),
        (
            "log_uniform",
            "lognormal",
            "search_space.learning_rate.type must be one of uniform, log_uniform, int, categori",
        ),
        (
            "type: log_uniform, ",
            "",
            "search_space.learning_rate.type must be given: uniform, log_uniform, int or catego",
        ),
        (
            "num_train_epochs: 2",
            "day: 2020-01-01",
            "training.day must be a text, a number, true, false or null; got 2020",
        ),
    ],
)
def test_each_kind_of_fault_has_its_sentence(
    faults: Faults, changed: Changed, old: str, new: str, sentence: str
) -> None:
    path = changed(old, new)
    assert any(messages.startswith(f"{path}: {sentence}") for messages in faults(path)), faults(path)


@pytest.mark.parametrize(
    ("added", "sentence"),
    [
        ("search: {trials: four}", "search.trials must be a whole number; got 'four'; give a whole number, such as 4."),
        ("search: {trials: 1.5}", "search.trials must be a whole number; got 1.5; give a whole number, such as 4."),
        ("search: {trials: true}", "search.trials must be a whole number; got true; give a whole number, such as 4."),
        ("search: {trials: '4'}", "search.trials must be a whole number; got '4'; give a whole number, such as 4."),
        ("search: {trials: '+3'}", "search.trials must be a whole number; got '+3'; give a whole number, such as 4."),
        ("search: {max_hours: true}", "search.max_hours must be a number; got true; give a number, such as 0.1."),
        ("search: {max_hours: '8'}", "search.max_hours must be a number; got '8'; give a number, such as 0.1."),
        ("search: {trials: 0}", "search.trials must be at least 1; got 0; change the number."),
        ("split: {validation: 1}", "split.validation must be below 1; got 1; change the number."),
        ("split: {validation: x}", "split.validation must be a number; got 'x'; give a number, such as 0.1."),
        (
            "search: {scheduler: asah}",
            "search.scheduler must be one of asha, hyperband, median, pbt, none; got 'asah'; did you mean 'asha'?",
        ),
        ("resources: {gpus_per_worker: 2}", "resources.gpus_per_worker must be at most 1; got 2; change the number."),
        (
            "resources: {gpus_per_worker: 0.5, workers: 2}",
            "resources.gpus_per_worker must be 0 or 1 where resources.workers is above 1; got 0.5 with 2 workers; "
            "correct it.",
        ),
        ("resources: 4", "resources must hold keys of its own; got 4; write its keys below it, indented."),
        ("storage: {path: 3}", "storage.path must be a path; got 3; give the path of a file or folder."),
        ("ensemble: {recipe: bsaeline}", "ensemble.recipe must be one of auto, baseline, "),
        ("ensemble: {recipe: my.yaml}", "ensemble.recipe must be a file that is there; got "),
    ],
)
def test_each_kind_of_fault_below_the_tasks_has_its_sentence(
    faults: Faults, changed: Changed, added: str, sentence: str
) -> None:
    path = changed(add=f"{added}\n")
    assert [messages[: len(f"{path}: {sentence}")] for messages in faults(path)] == [f"{path}: {sentence}"]


@pytest.mark.parametrize(
    ("distribution", "sentence"),
    [
        ("3", "search_space.x must hold keys of its own; got 3; write its keys below it, indented."),
        (
            "{type: int, low: 0, high: 4, log: true}",
            "search_space.x must have step 1 and low at least 1 where log is true",
        ),
        (
            "{type: categorical, choices: []}",
            "search_space.x.choices must hold at least one entry; got an empty list; ",
        ),
        ("{type: int, low: true, high: 4}", "search_space.x.low must be a whole number; got true; give a whole"),
        ("{type: uniform, low: 0, high: '4'}", "search_space.x.high must be a number; got '4'; give a number"),
        (
            "{type: categorical, choices: [[cls]]}",
            "search_space.x.choices.0 must be a text, a number, true, false or null; got a list; ",
        ),
        (
            "{type: categorical, choices: [{a: 1}]}",
            "search_space.x.choices.0 must be a text, a number, true, false or null; got a mapping with the keys a; ",
        ),
        (
            "{type: categorical, choices: [[1], 2]}",
            "search_space.x.choices.0 must be a text, a number, true, false or nu",
        ),
        ("{type: uniform, low: 0, high: 1, step: 0}", "search_space.x.step must be above 0; got 0; change the number."),
        (
            "{type: uniform, low: 0, high: 0.1, step: 0.5}",
            "search_space.x.step must be at most high - low, 0.1, or every trial has the same value; got 0.5; lower ",
        ),
        (
            "{type: int, low: 1, high: 4, step: 4}",
            "search_space.x.step must be at most high - low, 3, or every trial has the same value; got 4; lower it, ",
        ),
        (
            "{type: categorical, choices: [mean, cls, mean]}",
            "search_space.x.choices.2 must be no choice that stands before it; got mean; take one of the two out.",
        ),
        (
            "{type: categorical, choices: [1, 1.0]}",
            "search_space.x.choices.1 must be no choice that stands before it; got 1.0; take one of the two out.",
        ),
    ],
)
def test_each_kind_of_fault_of_a_distribution_has_its_sentence(
    faults: Faults, changed: Changed, distribution: str, sentence: str
) -> None:
    path = changed(add=f"  x: {distribution}\n")
    assert [messages[: len(f"{path}: {sentence}")] for messages in faults(path)] == [f"{path}: {sentence}"]


@pytest.mark.parametrize(
    "distribution",
    [
        "{type: uniform, low: 0.2, high: 0.3, step: 0.1}",  # 0.09999999999999998 of floats
        "{type: int, low: 1, high: 4, step: 3}",
        "{type: categorical, choices: [1, true, '1', 0, false, null]}",
    ],
)
def test_a_step_of_the_whole_range_and_choices_of_different_kinds_are_taken(
    changed: Changed, distribution: str
) -> None:
    assert "x" in load_study(changed(add=f"  x: {distribution}\n")).search_space.root


def _numbers(model: type[BaseModel]) -> Iterator[tuple[type[BaseModel], str]]:
    """Every numeric key of a model and of its nested models."""
    for key, field in model.model_fields.items():
        kinds = [*members(field.annotation)]
        if {int, float} & {*kinds}:
            yield model, key
        while kinds:
            kind = kinds.pop()
            kinds += [inner for each in get_args(kind) for inner in members(each)]
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _numbers(kind)


NUMBERS = [*_numbers(StudyConfig), *_numbers(Recipe)]


@pytest.mark.parametrize(("model", "key"), NUMBERS, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.parametrize("value", [True, "4"])
def test_no_key_of_numbers_takes_what_could_be_made_one(model: type[BaseModel], key: str, value: object) -> None:
    with pytest.raises(ValidationError) as raised:
        model.model_validate({key: value})
    assert [found["type"] for found in raised.value.errors() if found["loc"] == (key,)] in (
        ["int_type"],
        ["float_type"],
    )


def test_the_keys_of_numbers_are_found_at_every_depth() -> None:
    known = {f"{model.__name__}.{key}" for model, key in NUMBERS}
    assert {"Search.trials", "Resources.gpus_per_worker", "ExtraTrain.weight", "Int.low", "Members.top"} <= known


def test_a_whole_float_is_a_whole_number_and_a_whole_number_a_float(study: Path) -> None:
    search = load_study(study, overrides=["search.trials=3.0", "search.max_hours=8"]).search
    assert (search.trials, search.max_hours) == (3, 8.0)


def test_every_fault_is_told_at_once(faults: Faults, changed: Changed) -> None:
    path = changed("data/topic_train.csv", "data/topic_trian.csv", add="search: {trials: four}\nsplit: {sead: 1}\n")
    messages = faults(path)
    assert len(messages) == 3
    assert "did you mean 'topic_train.csv'?" in messages[0]


def test_a_missing_folder_and_a_folder_in_place_of_a_file_are_told(faults: Faults, changed: Changed) -> None:
    path = changed("data/topic_train.csv", "dta/topic_train.csv")
    assert f"of which only the folder '{path.parent}' is there" in faults(path)[0]
    changed("dta/topic_train.csv", "data")
    assert "tasks.topic.train must be a file; got the folder" in faults(path)[0]


@pytest.mark.parametrize("name", ["x" * 300, "a\\0b"])
def test_a_file_name_that_the_system_refuses_is_told(faults: Faults, changed: Changed, name: str) -> None:
    path = changed("data/topic_train.csv", f'"{name}"')
    assert [messages.split(" must ")[0] for messages in faults(path)] == [f"{path}: tasks.topic.train"]
    changed(f'"{name}"', "data/topic_train.csv")
    assert "backbone must be a folder" in faults(changed("backbone: backbone/", f'backbone: "./{name}"'))[0]


@pytest.mark.parametrize("backbone", ["bert-base-chinese", "hfl/chinese-roberta-wwm-ext-large"])
def test_a_hub_id_is_left_alone(changed: Changed, backbone: str) -> None:
    assert load_study(changed("backbone/", backbone)).backbone == backbone


@pytest.mark.parametrize(
    "backbone", ["./bert", "/no/such/bert", "bakbone/", "data/bert", "~nobody/bert", "''", "a/b/c", "no such id"]
)
def test_a_backbone_that_looks_like_a_path_must_be_there(faults: Faults, changed: Changed, backbone: str) -> None:
    path = changed("backbone: backbone/", f"backbone: {backbone}")
    messages = faults(path)
    assert len(messages) == 1
    assert messages[0].startswith(
        f"{path}: backbone must be a folder that is there, or an id of the Hugging Face hub; got "
    )
    assert ("did you mean 'backbone'?" in messages[0]) == (backbone == "bakbone/")


def test_names_of_a_hub_tasks_splits_are_no_paths(changed: Changed) -> None:
    path = changed("layout: competition", "layout: hub\n    dataset: data")
    task = load_study(path).tasks["topic"]
    assert task.train == "data/topic_train.csv"
    assert task.dataset == str(path.parent / "data")


def test_a_search_space_is_taken_from_a_shipped_name_or_a_file(changed: Changed, tmp_path: Path) -> None:
    inline = "search_space:\n  learning_rate: {type: log_uniform, low: 1e-5, high: 1e-3}\n"
    path = changed(inline, "search_space: small\n")
    assert "learning_rate" in load_study(path).search_space.root
    (tmp_path / "mine.yaml").write_text("weight_decay: {type: uniform, low: 0, high: 0.1}\n", encoding="utf-8")
    changed("search_space: small", "search_space: mine.yaml")
    assert list(load_study(path).search_space.root) == ["weight_decay"]


def test_a_wrong_search_space_is_told_by_its_own_file(faults: Faults, changed: Changed, tmp_path: Path) -> None:
    inline = "search_space:\n  learning_rate: {type: log_uniform, low: 1e-5, high: 1e-3}\n"
    path = changed(inline, "search_space: smal\n")
    rule = "search_space must be one of base_large, lora, minute, small, or the path of a YAML file"
    assert f"{rule}; got 'smal'; did you mean" in faults(path)[0]
    (tmp_path / "mine.yaml").write_text("weight_decay: {type: uniform, low: x, high: 0.1}\n", encoding="utf-8")
    changed("search_space: smal", "search_space: ./mine.yaml")
    assert faults(path) == [
        f"{tmp_path}/mine.yaml: weight_decay.low must be a number; got 'x'; give a number, such as 0.1."
    ]


def test_overrides_are_yaml_values_under_dotted_keys(changed: Changed) -> None:
    path = changed("  topic:", "  news.topic:")
    config = load_study(
        path,
        overrides=[
            "resources.workers=2",
            "training.bf16=true",
            "tasks.news.topic.metric=accuracy",
            "search_space=minute",
            "search_space.learning_rate.high=0.5",
        ],
    )
    assert config.resources.workers == 2
    assert config.training == {"num_train_epochs": 2, "bf16": True}
    assert config.tasks["news.topic"].metric == "accuracy"
    assert config.search_space.root["learning_rate"].high == 0.5  # type: ignore[union-attr]
    assert "head_dropout" in config.search_space.root


def test_an_override_reaches_the_entries_of_a_list_by_their_number(faults: Faults, changed: Changed) -> None:
    path = changed("training:\n", "training:\n  stages: [{learning_rate: 1.0e-3}, null]\n")
    overrides = ["training.stages.0.learning_rate=2e-5", "training.stages.1.freeze_encoder=true"]
    config = load_study(path, overrides=overrides)
    assert config.training["stages"] == [{"learning_rate": 2e-5}, {"freeze_encoder": True}]
    (fault,) = faults(path, overrides=["training.stages.2.learning_rate=2e-5"])
    assert fault.endswith("got a list of 2 at 'training.stages'; correct the key.")


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("search.trial=4", "--set search.trial must be a known key; got an unknown one; did you mean 'trials'?"),
        ("serch.trials=4", "--set serch must be a known key; got an unknown one; did you mean 'search'?"),
        ("search.trials=x", "--set search.trials must be a whole number; got 'x'; "),
        (
            "study.name=x",
            "--set study.name must name a key inside a mapping, or the number of a list's entry; got 'little' at "
            "'study'; correct the key.",
        ),
        ("trials", "--set trials must be KEY=VALUE with a dotted key; got 'trials'; write it like --set training."),
        ("=4", "--set =4 must be KEY=VALUE with a dotted key; "),
        ("search.trials=[1", "--set search.trials, line 1, column 3, must be YAML; "),
        ("tasks.topic.train=no.csv", "--set tasks.topic.train must be a file that is there; got "),
        ("search_space.learning_rate.low=a", "--set search_space.learning_rate.low must be a number; got 'a'; "),
        ("training.day=.nan", "--set training.day must be a finite number; got nan; "),
    ],
)
def test_a_wrong_override_is_told_as_such(faults: Faults, study: Path, override: str, sentence: str) -> None:
    messages = faults(study, overrides=[override])
    assert [text[: len(sentence)] for text in messages] == [sentence]


def test_the_training_check_gets_what_is_sound_and_its_faults_are_joined(faults: Faults, changed: Changed) -> None:
    seen: dict[str, Any] = {}

    def check(training: Mapping[str, Any], space: Mapping[str, Any], file: str) -> list[Fault]:
        seen.update(training=dict(training), space=sorted(space))
        return [
            Fault(f"{file}: training.{key}", "be a known key", "an unknown one", "correct it")
            for key in training
            if key != "num_train_epochs"
        ]

    path = changed(add="  bad: {type: int}\nsearch: {trials: 0}\n")
    messages = faults(path, overrides=["training.nope=1"], check_training=check)
    assert seen == {"training": {"num_train_epochs": 2, "nope": 1}, "space": ["learning_rate"]}
    assert "--set training.nope must be a known key; got an unknown one; correct it." in messages
    assert len(messages) == 4  # low and high of bad, trials, nope


def test_a_stored_study_comes_back_as_it_was(study: Path) -> None:
    config = load_study(study, overrides=["search_space=small", "training.pooling=null"])
    study.with_suffix(".json").write_text(dump_study(config), encoding="utf-8")
    assert parse_study(study.with_suffix(".json")) == parse_study(dump_study(config)) == config


@pytest.mark.parametrize("text", ["", "{", "[]", '{"study": "a"}'])
def test_a_stored_study_that_was_spoilt_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "study.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"study\.json.* must .*restore the file, or run the study under a new name"):
        parse_study(tmp_path / "study.json")
    with pytest.raises(ConfigError, match="no such file"):
        parse_study(tmp_path / "none.json")


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


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "layout: competition",
            "layout: table\n    pair: true",
            "tasks.topic.pair must stand in a task of the layout competition only; got true with the layout table",
        ),
        (
            "layout: competition",
            "layout: table\n    cleaning: {broken_rows: true}",
            "tasks.topic.cleaning.broken_rows must stand in a task of the layout competition only; got true",
        ),
        (
            "layout: competition",
            "layout: competition\n    columns: {text: sentence}",
            "tasks.topic.columns must stand in a task of the layout table or hub only; got a mapping with the",
        ),
        ("layout: competition", "layout: table\n    glue: MRPC", "tasks.topic.glue must stand in a task of the"),
        ("layout: competition", "layout: table\n    dataset: data", "tasks.topic.dataset must stand in a task of the"),
        ("layout: competition", "layout: glue\n    subset: a", "tasks.topic.subset must stand in a task of the layout"),
        (
            "layout: competition",
            "layout: glue",
            "tasks.topic.glue must say which layout of GLUE the task has",
        ),
        (
            "layout: competition",
            "layout: glue\n    glue: STS-B",
            "tasks.topic.metric must be a metric of values, as the scores of STS-B are; got 'macro_f1'; set",
        ),
        (
            "layout: competition",
            "layout: hub",
            "tasks.topic.dataset must name the data set of the layout hub; got",
        ),
    ],
)
def test_a_key_of_another_layout_and_one_that_the_layout_needs_are_told(
    faults: Faults, changed: Changed, old: str, new: str, sentence: str
) -> None:
    path = changed(old, new, add="search: {trials: four}\n")
    messages = faults(path)
    assert any(text.startswith(f"{path}: {sentence}") for text in messages), messages
    assert any(text.startswith(f"{path}: search.trials") for text in messages), messages


@pytest.mark.parametrize(
    "lines",
    [
        "layout: glue\n    glue: CoLA\n    pair: false",
        "layout: glue\n    glue: STS-B\n    metric: pearson_spearman",
        "layout: table\n    columns: {text: a}\n    dataset: null",
    ],
)
def test_keys_of_the_layout_and_defaults_of_others_are_taken(changed: Changed, lines: str) -> None:
    config = load_study(changed("layout: competition", lines))
    written = changed()
    written.write_text(dump_study(config), encoding="utf-8")
    assert load_study(written) == config  # with every default of every layout written out


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("sqlite:///mlflow.db", "sqlite:///{folder}/mlflow.db"),
        ("sqlite+pysqlite:///runs/m.db?timeout=5", "sqlite+pysqlite:///{folder}/runs/m.db?timeout=5"),
        ("sqlite:////srv/mlflow.db", "sqlite:////srv/mlflow.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("file:runs", "file:{folder}/runs"),
        ("file:///srv/runs", "file:///srv/runs"),
        ("http://mlflow:5000", "http://mlflow:5000"),
        ("postgresql+psycopg2://me:pw@db/mlflow", "postgresql+psycopg2://me:pw@db/mlflow"),
        ("databricks", "databricks"),
        ("databricks://profile", "databricks://profile"),
    ],
)
def test_an_mlflow_store_in_a_file_lies_beside_the_study_file(changed: Changed, uri: str, expected: str) -> None:
    path = changed(add=f"tracking: {{uri: '{uri}'}}\n")
    assert load_study(path).tracking.uri == expected.format(folder=path.parent)


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "postgresql+psycopg2"])
def test_optuna_s_database_may_be_a_server_s(changed: Changed, scheme: str) -> None:
    url = f"{scheme}://me:secret@db:5433/optuna"
    assert load_study(changed(add=f"storage: {{database: '{url}'}}\n")).storage.database == url


@pytest.mark.parametrize(
    ("url", "got"),
    [
        ("postgres://me:secret@db/optuna", "got the scheme 'postgres'"),
        ("sqlite:///optuna.db", "got the scheme 'sqlite'"),
        ("me:secret@db/optuna", "got no scheme"),
    ],
)
def test_a_database_that_no_server_keeps_is_told_without_its_password(
    faults: Faults, changed: Changed, url: str, got: str
) -> None:
    (message,) = faults(changed(add=f"storage: {{database: '{url}'}}\n"))
    assert "storage.database must be the address of a PostgreSQL server's database" in message
    assert got in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("uri", "got"),
    [
        ("htpp://me:secret@mlflow:5000", "got the scheme 'htpp'; did you mean 'http'? Correct the name."),
        ("mlflow.example:5000", "got the scheme 'mlflow.example'; write it like http://HOST:5000 or "),
        ("http+unix://x", "got the scheme 'http+unix'; "),
        ("runs", "got no scheme; write it like http://HOST:5000 or sqlite:///mlflow.db."),
    ],
)
def test_an_address_that_is_no_mlflow_store_is_told_without_its_password(
    faults: Faults, changed: Changed, uri: str, got: str
) -> None:
    path = changed(add=f"tracking: {{uri: '{uri}'}}\n")
    (message,) = faults(path)
    assert message.startswith(
        f"{path}: tracking.uri must be the address of an MLflow store, with one of the schemes sqlite"
    )
    assert got in message
    assert "secret" not in message
