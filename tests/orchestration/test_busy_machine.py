"""A machine that is too busy to answer its Ray is not given up."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import ray

from tutti.records import TrialState

pytestmark = [pytest.mark.ray, pytest.mark.slow]
RAYLET = str(Path(ray.__file__).parent / "core/src/ray/raylet/raylet")


@pytest.mark.strain
def test_a_study_on_a_machine_too_busy_to_answer_ray_goes_on(make_study, tutti_command, tmp_path):
    study = make_study(tmp_path, training__num_train_epochs=60)
    running = tutti_command("tune", study.file)
    running.wait_for(lambda: study.resume_epochs("t0000"), what="t0000 under way")
    [raylet] = running.descendants(RAYLET)
    raylet.suspend()
    time.sleep(90)  # Ray waits five times 10 s for an answer, with 3 s in between
    raylet.resume()
    assert running.wait() == 0, running.output
    assert [record.state for record in study.records()] == [TrialState.FINISHED] * 2
