"""A population on a real Ray: all trials meet on two workers, and the weak take the weights of the strong."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.errors import Fault, StorageError
from tutti.files import write_whole
from tutti.orchestration.driver.study import StudyOutcome
from tutti.orchestration.worker.trial import Stopped
from tutti.records import TrialState

pytestmark = [pytest.mark.ray, pytest.mark.slow]
EPOCHS = 3


def carries_weights(study: StudyConfig, folder: StudyFolder, trial: dict[str, Any], *, tell: Any) -> None:
    """A trial that trains nothing: its weights are the name of who began them, its score is its number."""
    place, score = folder.trial(trial["key"]).path, trial["number"] / 10
    states = sorted((place / "resume").glob("stage-0-step-*"))
    done = int(states[-1].name.split("-")[-1]) if states else 0
    weights = (states[-1] / "model.safetensors").read_bytes() if states else trial["key"].encode()
    report = {"score": score, "task_scores": {"a": score}, "metrics": {}, "at": 0.0, "host": ""}
    for epoch in range(done + 1, EPOCHS):
        state = place / "resume" / f"stage-0-step-{epoch}"
        write_whole(state / "model.safetensors", weights)
        manifest = {
            "position": {"best_score": score},
            "files": {"model.safetensors": hashlib.sha256(weights).hexdigest()},
        }
        write_whole(state / "manifest.json", json.dumps(manifest))
        if not tell({"epoch": epoch, **report}):
            raise Stopped
    write_whole(place / "weights", weights)
    best = {"best_epoch": EPOCHS, "best_score": score, "best_task_scores": {"a": score}}
    tell({"epoch": EPOCHS, **report, "final": True, **best})


def check_ends(done: StudyOutcome, folder: StudyFolder) -> None:
    """The weakest went on from the strongest, each of the others from itself, and all kept their own scores."""
    assert [trial.state for trial in done.trials] == [TrialState.FINISHED] * 4
    weights = [(folder.trial(trial.key).path / "weights").read_text() for trial in done.trials]
    assert weights == ["t0003", "t0001", "t0002", "t0003"]
    assert [trial.exchanges for trial in done.trials[1:]] == [()] * 3
    assert {each["donor"] for each in done.trials[0].exchanges} == {"t0003"}
    assert [set(trial.scores_by_epoch.values()) for trial in done.trials] == [{number / 10} for number in range(4)]


def test_the_weakest_ends_with_the_weights_of_the_strongest_and_its_own_number(run_alone, tmp_path):
    done, folder = run_alone(tmp_path, carries_weights, concurrent=2, trials=4, scheduler="pbt")
    check_ends(done, folder)
    assert [each["epoch"] for each in done.trials[0].exchanges] == [1, 2]
    assert [sorted(trial.scores_by_epoch) for trial in done.trials] == [[1, 2, 3]] * 4


def test_a_population_that_is_cut_off_after_an_exchange_goes_on_with_what_was_taken_over(run_alone, tmp_path):
    weak = StudyFolder(tmp_path / "s").trial("t0000").resume

    def cut_off() -> None:
        if any(each.read_text() == "t0003" for each in weak.glob("stage-*/model.safetensors")):
            raise StorageError(Fault("the disk", "be there", "none", "plug it in"))

    population = {"concurrent": 2, "trials": 4, "scheduler": "pbt"}
    with pytest.raises(StorageError, match="the disk"):
        run_alone(tmp_path, carries_weights, watch=cut_off, **population)
    done, folder = run_alone(tmp_path, carries_weights, **population)
    check_ends(done, folder)
    # The next meeting is passed over where one of them was beyond it when all were cut off.
    assert [each["epoch"] for each in done.trials[0].exchanges] in ([1], [1, 2])
