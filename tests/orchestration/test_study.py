"""What can be told of a study's run without starting one."""

from __future__ import annotations

import pytest

from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.errors import ConfigError, StudyError
from tutti.orchestration.build import check_backbone
from tutti.orchestration.study import _scheduler, is_running, longest_training, study_lock


def study(**changes) -> StudyConfig:
    task = {"layout": "competition", "train": "/x"}
    return StudyConfig.model_validate({"study": "s", "backbone": "b", "tasks": {"a": task}, **changes})


@pytest.mark.parametrize(
    ("training", "space", "epochs"),
    [
        ({}, {}, 3),  # the default of transformers
        ({"num_train_epochs": 5}, {}, 5),
        ({"num_train_epochs": 2.5}, {}, 3),
        ({"num_train_epochs": 9}, {"num_train_epochs": {"type": "categorical", "choices": [2, 7, 4]}}, 7),
        ({}, {"num_train_epochs": {"type": "int", "low": 2, "high": 6}}, 6),
        ({}, {"num_train_epochs": {"type": "uniform", "low": 1.0, "high": 3.2}}, 4),
        ({"num_train_epochs": 2, "max_steps": 5000}, {}, 10**6),  # as many as the steps take
        ({"stages": [{"num_train_epochs": 6}, {"freeze_encoder": True}]}, {}, 9),
        (
            {"stages": [{"num_train_epochs": 6}, {}]},
            {
                "num_train_epochs": {"type": "int", "low": 1, "high": 4},  # of the second stage alone
                "stages.0.num_train_epochs": {"type": "int", "low": 1, "high": 8},
            },
            12,
        ),
    ],
)
def test_the_longest_training_is_the_most_epochs_that_any_trial_may_train(training, space, epochs):
    assert longest_training(study(training=training, search_space=space)) == epochs


def test_asha_never_ends_a_trial_that_trains_to_its_end():
    scheduler = _scheduler(study(training={"num_train_epochs": 4}, search={"scheduler": "asha", "grace_epochs": 9}))
    assert scheduler._max_t == 10
    assert _scheduler(study(search={"scheduler": "none"})) is None


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"training": {"reinit_layers": 3}}, "training.reinit_layers"),
        ({"search_space": {"pooling_layers": {"type": "int", "low": 1, "high": 4}}}, "search_space.pooling_layers"),
        ({"search_space": {"max_length": {"type": "categorical", "choices": [64, 1024]}}}, "search_space.max_length"),
    ],
)
def test_what_is_beyond_the_backbone_is_refused_before_a_trial_is_made(changes, key):
    with pytest.raises(ConfigError) as caught:
        check_backbone(study(**changes), positions=512, layers=2)
    assert [fault.what for fault in caught.value.faults] == [key]
    check_backbone(study(**changes), positions=None, layers=None)


def test_a_second_process_on_the_same_study_is_refused(tmp_path):
    folder = StudyFolder(tmp_path / "tiny")
    with study_lock(folder):
        assert is_running(folder)
        with pytest.raises(StudyError, match="one process at a time"), study_lock(folder, patience=0):
            pass
    assert not is_running(folder)
