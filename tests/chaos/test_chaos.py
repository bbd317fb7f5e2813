"""Workers, drivers and nodes are killed at random moments, and a study ends as one that nobody touched.

Each kind of process is killed at 3 moments; ``make chaos`` kills each at 20, in studies whose trials are three times as
long.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import ray

from tutti.records import TrialState

MOMENTS = int(os.environ.get("CHAOS_MOMENTS", "3"))
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.strain]
TRIALS, EPOCHS = 8, (60 if MOMENTS > 3 else 20)
SEED = int(os.environ.get("CHAOS_SEED", "20"))
PROCESS = {
    "worker": "ray::RayTrainWorker",
    "driver": "",
    "node": str(Path(ray.__file__).parent / "core/src/ray/raylet/raylet"),
}
LATEST = {"the start": 20.0, "an epoch": 6.0}  # seconds


def changes(*, trials: int, epochs: int) -> dict[str, Any]:
    """What makes of the tiny study one whose outcome does not depend on which trials had ended when."""
    return {
        "training": {"num_train_epochs": epochs, "per_device_train_batch_size": 16, "max_length": 16, "ema_decay": 0.9},
        "search_space": {"learning_rate": {"type": "log_uniform", "low": 1e-4, "high": 1e-2}},
        "search": {
            "trials": trials,
            "scheduler": "none",
            "retries": 1000,
            "enqueue": [{"learning_rate": 1e-4 * 1.7**number} for number in range(trials)],
        },
        "resources": {"workers": 1, "cpus_per_worker": 1, "concurrent_trials": 2},
    }


@dataclass(frozen=True)
class Moment:
    """When a process is killed: so long after the command began, or after it first told of an epoch."""

    kind: str
    seconds: float
    since: str


def drawn(kind: str, chance: random.Random) -> Moment:
    since = chance.choice(["the start", "an epoch"]) if kind != "worker" else "an epoch"
    return Moment(kind, chance.uniform(0, LATEST[since]), since)


@dataclass
class Toll:
    """What happened to the studies that were hit.

    Attributes:
        hits: each process that was killed, and how far its study was.
        studies: how many studies it took.
    """

    hits: list[tuple[Moment, str]] = field(default_factory=list)
    studies: int = 0

    def add(self, moment: Moment, far: str) -> str:
        """The hit as a row of a table."""
        self.hits.append((moment, far))
        return f"| {moment.kind} | {moment.seconds:.1f} s after {moment.since} | {far} |"

    def __str__(self) -> str:
        killed = ", ".join(f"{sum(at.kind == kind for at, _ in self.hits)} x {kind}" for kind in PROCESS)
        return f"Killed {killed}, in {self.studies} studies: 0 trials lost, 0 epochs repeated, 0 left running."


def trained(study) -> int:
    """Epochs that the study's trials have told of."""
    return sum(len(record.scores_by_epoch) for record in study.records())


def how_far(study) -> str:
    records = study.records()
    if not records:
        return "not begun"
    ended = sum(record.state is TrialState.FINISHED for record in records)
    running = [f"{r.key} epoch {len(r.scores_by_epoch)}" for r in records if r.state is TrialState.RUNNING]
    return f"{ended} done; {', '.join(running) or 'none running'}"


def ends(study) -> dict[str, Any]:
    """Trial to what it scored at its best and the hash of each file of its checkpoint."""
    ended = {}
    for record in study.records():
        best = json.loads((study.folder.trial(record.key).best / "tutti.json").read_text(encoding="utf8"))
        ended[record.key] = (record.state, record.parameters, record.score, record.task_scores, best["files"])
    return ended


def kill(running, study, moment: Moment, chance: random.Random) -> bool:
    """Kills a process of the kind when its moment has come, or not at all where the study is over by then."""
    before, limit = trained(study), time.monotonic() + 500
    while moment.since == "an epoch" and trained(study) == before:
        if running.process.poll() is not None:
            return False
        assert time.monotonic() < limit, f"no epoch within 500 s:\n{running.output}"
        running.descendants()
        time.sleep(0.2)
    until = time.monotonic() + moment.seconds
    while time.monotonic() < until:
        running.descendants()  # seen once, a process is found again when its parent is gone
        time.sleep(0.1)
    while running.process.poll() is None:
        if moment.kind == "driver":
            os.kill(running.process.pid, signal.SIGKILL)
            running.process.wait()
            return True
        if found := running.descendants(PROCESS[moment.kind]):
            chance.choice(found).kill()
            return True
        assert time.monotonic() < limit, f"no {moment.kind} within 500 s:\n{running.output}"
        time.sleep(0.5)  # between two pools, or before Ray is there
    return False


def over(running) -> bool:
    """Waits until a command whose node was killed has given up; whether it ended the study all the same."""
    code = running.wait()
    assert code == 0 or "Traceback" not in running.output, running.output
    return code == 0


def check_whole(study, untouched: dict[str, Any]) -> None:
    """Each trial once, ended, with the weights and scores of the study that nobody touched."""
    assert ends(study) == untouched
    runs = study.runs()
    assert set(runs) == {"", *untouched}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    for record in study.records():
        assert record.state is TrialState.FINISHED
        epochs = study.reported_epochs(record.key)
        assert epochs == sorted(set(epochs)), f"{record.key} trained an epoch again that it had a state of"
        assert study.tracked_epochs(record.key) == [*record.scores_by_epoch] == epochs == [*range(1, EPOCHS + 1)]
        assert not study.folder.trial(record.key).resume.exists()


@pytest.mark.timeout(14400 if MOMENTS > 3 else 2400)
def test_a_study_killed_at_random_ends_as_one_that_nobody_touched(make_study, tutti, tutti_command, tmp_path, capsys):
    given = changes(trials=TRIALS, epochs=EPOCHS)
    calm = make_study(tmp_path / "calm", **given)
    tutti("tune", calm.file)
    untouched = ends(calm)
    assert len(untouched) == TRIALS

    chance, toll = random.Random(SEED), Toll()
    with capsys.disabled():
        print("\n| killed | when | how far the study was |\n|---|---|---|", flush=True)
    left = [kind for kind in PROCESS for _ in range(MOMENTS)]
    chance.shuffle(left)
    while left:
        study = make_study(tmp_path / f"hit-{toll.studies}", **given)
        toll.studies += 1
        running, done, ended = tutti_command("tune", study.file, "--resume"), False, []
        while left and not done:
            kind, moment = left[-1], drawn(left[-1], chance)
            if not kill(running, study, moment, chance):
                assert running.wait() == 0, running.output
                break
            left.pop()
            with capsys.disabled():
                print(toll.add(moment, how_far(study)), flush=True)
            if kind != "worker":
                done = kind == "node" and over(running)
                if not done:
                    ended.append(running)
                    running = tutti_command("tune", study.file, "--resume")
        assert running.wait() == 0, running.output
        for each in [*ended, running]:  # after a kill, Ray's agents try for a minute to report it to a Ray that is gone
            assert each.left_behind(90) == []
        check_whole(study, untouched)
    with capsys.disabled():
        print(f"\n{toll}")
