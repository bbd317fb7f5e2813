"""Keys that people bring from other scripts lead to where the thing is, not to the nearest spelling."""

from __future__ import annotations

import pytest

from tutti.config.other_names import nearest_name
from tutti.config.study import StudyConfig, TaskConfig
from tutti.training.keys.key_aliases import nearest_key

KNOWN = {model: [*model.model_fields] for model in (StudyConfig, TaskConfig)}


@pytest.mark.parametrize(
    ("model", "name", "place"),
    [
        (StudyConfig, "temperature", "training.sampling_temperature"),
        (StudyConfig, "train_val_split_ratio", "split.validation"),
        (StudyConfig, "dataset_format", "`layout:`"),
        (StudyConfig, "vocab_path", "`backbone:`"),
        (StudyConfig, "data_dir", "`tutti new FOLDER`"),
        (StudyConfig, "eval_all_checkpoints", "remove it"),
        (TaskConfig, "test_b", "`test: {a: FILE, b: FILE}`"),
        (TaskConfig, "pseudo", "'extra_train'"),
        (TaskConfig, "max_train_rows", "'max_train_samples'"),
    ],
)
def test_a_key_of_a_script_leads_to_its_place_in_a_study_file(model, name, place):
    assert place in nearest_name(name, KNOWN[model])


def test_a_key_of_a_script_under_training_leads_out_of_it():
    assert nearest_key("train_val_split_ratio", ()) == "set split.validation in the study file instead"
    assert (
        nearest_key("temperature", ("sampling_temperature",)) == "did you mean 'sampling_temperature'? Correct the name"
    )
