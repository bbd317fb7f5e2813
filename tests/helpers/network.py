"""A Ray cluster whose nodes have network namespaces of their own on this machine, with links that can be cut."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from running_command import Running

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t" * 40}
PATIENT = {"RAY_raylet_start_wait_time_s": "300"}  # on a busy machine
_SUBNET = "10.99.77"
_CLUSTERS = itertools.count()


def ip(*arguments: object) -> str:
    return subprocess.run(["ip", *map(str, arguments)], capture_output=True, text=True, check=True).stdout


def no_namespaces() -> str | None:
    """Why this process can make no network namespaces; none if it can."""
    if os.geteuid():
        return "network namespaces need root"
    if not shutil.which("ip") or not shutil.which("nsenter"):
        return "network namespaces need iproute2 and util-linux"
    name = f"tutti-{os.getpid()}-try"
    try:
        ip("netns", "add", name)
        ip("-n", name, "link", "add", "br0", "type", "bridge")
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return None


@dataclass(frozen=True)
class Node:
    """A node, with its namespace, its port on the switch and its ``ray start``."""

    address: str
    namespace: str
    port: str
    running: Running


class Network:
    """A head and other nodes, joined by a switch in a namespace of its own: this machine's network is not touched.

    Each node has its own folder for Ray's files. All else of the file system is shared, besides what is ``hidden``.

    Args:
        start: starts a command, as the fixture ``tutti_command`` does.
        head_cpus: of the head, on which studies' drivers run.
    """

    def __init__(self, start: Callable[..., Running], *, head_cpus: int) -> None:
        self._start, self._name = start, f"tutti-{os.getpid()}-{next(_CLUSTERS)}"
        self._switch, self._count = f"{self._name}-sw", 0
        self._ray_folder = tempfile.mkdtemp(prefix="ray-")  # the sockets below it must have short paths
        self._namespaces: list[str] = []
        self.nodes: list[Node] = []  # besides the head
        self._namespace(self._switch)
        ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self._switch, "link", "set", "br0", "up")
        own = [f"--temp-dir={self._ray_folder}", "--include-dashboard=false"]
        try:
            self.head = self._node("--head", "--port=6379", f"--num-cpus={head_cpus}", *own)
        except BaseException:
            self.close()
            raise

    def add(self, *, cpus: int = 1, hidden: Path | None = None) -> Node:
        """A node that joins; it sees an empty folder in place of ``hidden``."""
        self.nodes.append(self._node(f"--address={self.head.address}:6379", f"--num-cpus={cpus}", hidden=hidden))
        return self.nodes[-1]

    def tutti(self, *arguments: object) -> Running:
        """Starts ``tutti`` on the head."""
        inside = ["nsenter", "--target", str(self.head.running.process.pid), "--net", "--mount"]
        env = {**TOKEN, "RAY_ADDRESS": f"{self.head.address}:6379"}
        return self._start(*arguments, command=[*inside, sys.executable, "-m", "tutti"], env=env)

    def cut(self, node: Node) -> None:
        ip("-n", self._switch, "link", "set", node.port, "down")

    def mend(self, node: Node) -> None:
        ip("-n", self._switch, "link", "set", node.port, "up")

    def kill(self, node: Node) -> None:
        """What a loss of power does: every process of the node ends at once."""
        self._kill_all(node.namespace)
        self.nodes.remove(node)

    def close(self) -> None:
        for namespace in self._namespaces:
            self._kill_all(namespace)
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
        shutil.rmtree(self._ray_folder, ignore_errors=True)

    def _kill_all(self, namespace: str) -> None:
        for pid in map(int, ip("netns", "pids", namespace).split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _namespace(self, name: str) -> None:
        ip("netns", "add", name)
        self._namespaces.append(name)
        ip("-n", name, "link", "set", "lo", "up")

    def _node(self, *options: str, hidden: Path | None = None) -> Node:
        self._count += 1
        namespace, port = f"{self._name}-{self._count}", f"p{self._count}"
        address = f"{_SUBNET}.{self._count}"
        self._namespace(namespace)
        ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        ip("-n", self._switch, "link", "set", port, "master", "br0", "up")
        ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        ip("-n", namespace, "link", "set", "eth0", "up")
        mounts = " && ".join(f"mount -t tmpfs tmpfs '{each}'" for each in (self._ray_folder, hidden) if each)
        inside = ["ip", "netns", "exec", namespace, "sh", "-c", f'{mounts} && exec "$0" "$@"']
        ray = [str(Path(sys.executable).with_name("ray")), "start", f"--node-ip-address={address}"]
        given: dict[str, Any] = {"command": [*inside, *ray], "env": TOKEN | PATIENT}
        running = self._start(*options, "--disable-usage-stats", "--block", **given)
        running.wait_for(lambda: "Ray runtime started" in running.output, what="a node")
        return Node(address, namespace, port, running)
