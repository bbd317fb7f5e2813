"""The nodes of a cluster: how many trials they have room for, and which of them see the study's folder."""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tutti import mirror
from tutti.config.folder import StudyFolder
from tutti.config.study import Resources
from tutti.copies import address_of, attach
from tutti.errors import Fault, StorageError, counted
from tutti.files import strays_of, write_whole
from tutti.orchestration.worker.storage_failure import GO_ON

PROBE_SECONDS = 5.0  # for a network file system to show a node what another node has just written
WATCH_SECONDS = 5.0  # between two looks at which nodes there are
_GONE = {
    None: "was lost; what it trained goes on elsewhere",
    1: "has left; what it trained goes on elsewhere",
    3: "was reclaimed; what it trained goes on elsewhere",
    4: "was given back, idle",
}
"""What became of a node, by Ray's number of the reason of its death."""
NODE_ID = "ray.io/node-id"
"""The label with its id that Ray gives every node."""


@dataclass(frozen=True)
class Probe:
    """A file in the study's folder by which a node tells whether it sees that folder, or an old or empty one.

    Its name is new in each run: a network file system may have kept an older content of a known file.

    Attributes:
        address: of the studies, if they are on object storage. A node sees it if it gets the prepared data from there.
    """

    file: Path
    content: bytes
    address: str | None = None

    def is_seen(self) -> bool:
        """Whether this node sees the file. Looks again for some seconds."""
        if self.address:
            folder = StudyFolder(self.file.parent)
            try:
                attach(folder.path.parent, self.address)
                for needed in (folder.data, folder.backbones):
                    mirror.pull(needed)
            except StorageError:
                return False
            return folder.data.is_dir()
        until = time.monotonic() + PROBE_SECONDS
        while True:
            with suppress(OSError):
                if self.file.read_bytes() == self.content:
                    return True
            if time.monotonic() >= until:
                return False
            time.sleep(0.5)


@contextmanager
def probe_of(folder: StudyFolder) -> Iterator[Probe]:
    """Writes a probe, and removes it at the end of the block, with those of runs that were killed.

    Raises:
        StorageError: if the file system refuses.
    """
    content = secrets.token_hex(16)
    file = folder.path / f".probe.{content[:8]}.tmp"  # `tutti doctor` knows such names
    probe = Probe(file, content.encode(), address_of(folder.path.parent))
    write_whole(probe.file, probe.content)
    try:
        yield probe
    finally:
        with suppress(OSError):
            for each in strays_of(folder.path / "probe"):
                each.unlink(missing_ok=True)


def elsewhere_than(nodes: Collection[str]) -> dict[str, str] | None:
    """The selector, by label, of all nodes but these; none if there are none to avoid.

    Args:
        nodes: their ids.
    """
    return {NODE_ID: f"!in({','.join(nodes)})"} if nodes else None


def trials_that_fit(nodes: Sequence[Mapping[str, float]], resources: Resources) -> int:
    """Number of trials that fit concurrently. A worker needs one node; a trial's workers may be on several.

    Args:
        nodes: what each has.
        resources: of a trial.
    """
    slots = 0
    for node in nodes:
        node_slots = int(node.get("CPU", 0.0) // resources.cpus_per_worker)
        if gpus := resources.gpus_per_worker:  # 1 // 0.2 is 4
            node_slots = min(node_slots, math.floor(node.get("GPU", 0.0) / gpus + 1e-6))
        slots += node_slots
    return slots // resources.workers


def room_in_words(nodes: Sequence[Mapping[str, float]], resources: Resources) -> str:
    """The nodes of a cluster in a sentence: how many have which CPUs and GPUs, and room for what."""
    what = "trial" if resources.workers == 1 else "worker"
    of_worker = resources.model_copy(update={"workers": 1})
    alike = Counter((int(node.get("CPU", 0)), int(node.get("GPU", 0))) for node in nodes)
    parts = []
    for (each_cpus, each_gpus), count in alike.most_common():
        room = trials_that_fit([{"CPU": each_cpus, "GPU": each_gpus}], of_worker)
        has = f"{counted(each_cpus, 'CPU')}, {counted(each_gpus, 'GPU')}" if each_gpus else counted(each_cpus, "CPU")
        parts.append(f"{count} with {has} for {counted(room, what) if room else f'no {what}'}{' each' * (count > 1)}")
    fits = counted(trials_that_fit(nodes, resources), "trial")
    return f"{len(nodes)} nodes, {'; '.join(parts)}: room for {fits} at a time"


@dataclass
class NodeWatch:
    """Tells of nodes that come and go.

    Attributes:
        known: addresses of the nodes that were there last, by id; none before the first look.
    """

    known: dict[str, str] | None = None
    looked: float = 0.0

    def changes(self) -> list[str]:
        """A sentence for each node that has come or gone since the last look, which was some seconds ago."""
        import ray

        if time.monotonic() - self.looked < WATCH_SECONDS:
            return []
        self.looked = time.monotonic()
        nodes = {node["NodeID"]: node for node in ray.nodes()}
        alive = {name: node["NodeManagerAddress"] for name, node in nodes.items() if node["Alive"]}
        before, self.known = self.known, alive
        if before is None:
            return []
        gone = [(before[name], nodes.get(name, {}).get("DeathReason")) for name in before.keys() - alive.keys()]
        lines = [f"the node {place} {_GONE.get(reason, _GONE[None])}" for place, reason in sorted(gone, key=str)]
        came = alive.keys() - before.keys()
        return lines + [f"the node {place} has joined" for place in sorted(alive[name] for name in came)]


def no_node_fault(folder: StudyFolder, blind: Mapping[str, str], resources: Resources) -> Fault | None:
    """The fault of a cluster whose other nodes have no room for a trial; none if they have.

    Args:
        blind: the address of each node that does not see the study's folder, by its id.
    """
    import ray

    others = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in blind]
    if trials_that_fit(others, resources):
        return None
    got = f"none, or another folder, on {', '.join(blind.values())}, and no room for a trial elsewhere"
    if address := address_of(folder.path):
        got, remedy = got.replace(", or another folder", ""), f"put the credentials for it there{GO_ON}"
        return Fault(address, "be readable, and its working copy writable, on every node that trains", got, remedy)
    remedy = f"mount the shared folder there{GO_ON}"
    return Fault(str(folder.path), "be the same folder on every node that trains", got, remedy)
