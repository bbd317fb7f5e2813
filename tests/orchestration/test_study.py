"""What can be told of a study's run without starting one."""

from __future__ import annotations

import pytest

from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.errors import ConfigError, StudyError
from tutti.orchestration.build import check_backbone
from tutti.orchestration.study import is_running, study_lock


def study(**changes) -> StudyConfig:
    task = {"layout": "competition", "train": "/x"}
    return StudyConfig.model_validate({"study": "s", "backbone": "b", "tasks": {"a": task}, **changes})


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
