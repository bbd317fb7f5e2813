"""Nodes of a cluster come and go, and links are cut, at random; its studies end as one that nobody touched.

There are 3 such moments; ``make chaos-cluster`` has 20, in studies whose trials are three times as long.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from chaos_study import CHANGES, MOMENTS, SEED, calm_ends, check_whole, how_far, trained
from network import Network, no_namespaces

GIVEN_UP_SECONDS = 90.0  # after which Ray has given up a node without a link
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.strain]


@pytest.fixture
def network(tutti_command) -> Iterator[Network]:
    """A head that trains nothing, and two nodes."""
    if reason := no_namespaces():
        pytest.skip(reason)
    made = Network(tutti_command, head_cpus=0)
    for _ in range(2):
        made.add()
    yield made
    made.close()


def strike(network: Network, chance: random.Random) -> str:
    """Does something to a node; what it was. There are two nodes again in the end."""
    node, kind = chance.choice(network.nodes), chance.choice(["killed", "killed", "cut", "cut", "given up"])
    if kind == "killed":
        network.kill(node)
        pause = chance.uniform(0, 10)
        time.sleep(pause)
        network.add()
        return f"a node killed, another one after {pause:.0f} s"
    seconds = GIVEN_UP_SECONDS if kind == "given up" else chance.uniform(1, 40)
    network.cut(node)
    time.sleep(seconds)
    network.mend(node)
    if kind == "given up":
        network.kill(node)
        network.add()
    return f"a link cut for {seconds:.0f} s" + ", its node replaced" * (kind == "given up")


@pytest.mark.timeout(7200 if MOMENTS > 3 else 1800)
def test_studies_on_nodes_that_come_and_go_end_as_one_that_nobody_touched(make_study, tutti, network, tmp_path, capsys):
    untouched = calm_ends(make_study, tutti, tmp_path / "calm")
    chance, left, studies = random.Random(SEED), MOMENTS, 0
    with capsys.disabled():
        print("\n| moment | how far the study was |\n|---|---|", flush=True)
    while left:
        study = make_study(tmp_path / f"hit-{studies}", **CHANGES)
        studies += 1
        running = network.tutti("tune", study.file)
        while left and running.process.poll() is None:
            before, pause = trained(study), chance.uniform(0, 6)
            while running.process.poll() is None and trained(study) == before:
                time.sleep(0.2)
            time.sleep(pause)
            if running.process.poll() is None:
                far, left = how_far(study), left - 1
                with capsys.disabled():
                    print(f"| {strike(network, chance)} | {far} |", flush=True)
        assert running.wait() == 0, running.output
        check_whole(study, untouched)
    with capsys.disabled():
        print(f"\n{MOMENTS} moments in {studies} studies: 0 trials lost, 0 epochs repeated.")
