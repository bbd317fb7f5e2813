"""Workers, drivers and nodes are killed at random moments, and a study ends as one that nobody touched.

Each kind of process is killed at 3 moments; ``make chaos`` kills each at 20, in studies whose trials are three times as
long.
"""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import ray
from chaos_study import CHANGES, MOMENTS, SEED, calm_ends, check_whole, how_far, trained

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.strain]
PROCESS = {
    "worker": "ray::RayTrainWorker",
    "driver": "",
    "node": str(Path(ray.__file__).parent / "core/src/ray/raylet/raylet"),
}
LATEST = {"the start": 20.0, "an epoch": 6.0}  # seconds


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


@pytest.mark.timeout(14400 if MOMENTS > 3 else 2400)
def test_a_study_killed_at_random_ends_as_one_that_nobody_touched(make_study, tutti, tutti_command, tmp_path, capsys):
    untouched = calm_ends(make_study, tutti, tmp_path / "calm")

    chance, toll = random.Random(SEED), Toll()
    with capsys.disabled():
        print("\n| killed | when | how far the study was |\n|---|---|---|", flush=True)
    left = [kind for kind in PROCESS for _ in range(MOMENTS)]
    chance.shuffle(left)
    while left:
        study = make_study(tmp_path / f"hit-{toll.studies}", **CHANGES)
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
