"""A command of the machine, by default ``tutti``, that runs as a process of its own while a test looks on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bad_input_run import FOREIGN

LOOK_SECONDS = 0.5  # between two looks through all processes, which take milliseconds each


@dataclass
class Running:
    """A command that runs in a process group of its own, with the Ray that it started."""

    process: subprocess.Popen[bytes]
    log: Path
    tree: dict[int, Any] = field(default_factory=dict)  # every descendant ever seen; the dead keep their place

    @classmethod
    def start(
        cls,
        *arguments: object,
        folder: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        command: Sequence[str] = (sys.executable, "-m", "tutti"),
    ) -> Running:
        """Starts the command, whose output goes to a file in the folder."""
        log = folder / "output.txt"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*command, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=_environment(env or {}),
                cwd=cwd or folder,
                start_new_session=True,
            )
        return cls(process, log)

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf8", errors="replace")

    def descendants(self, name: str = "") -> list[Any]:
        """Living descendants whose command line begins with ``name``."""
        import psutil

        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self.tree.setdefault(child.pid, child)
        found = []
        for child in self.tree.values():
            with suppress(psutil.NoSuchProcess, IndexError):
                alive = child.is_running() and child.status() != psutil.STATUS_ZOMBIE
                if alive and (not name or child.cmdline()[0].startswith(name)):
                    found.append(child)
        return found

    def wait_for(self, condition: Callable[[], Any], *, seconds: float = 300, what: str = "what is waited for") -> Any:
        """The condition's first true value while the process runs."""
        until, look = time.monotonic() + seconds, 0.0
        while (now := time.monotonic()) < until:
            if now >= look:
                self.descendants()
                look = now + LOOK_SECONDS
            if value := condition():
                return value
            assert self.process.poll() is None, f"ended before {what}:\n{self.output}"
            time.sleep(0.05)
        raise AssertionError(f"no {what} within {seconds} s:\n{self.output}")

    def wait(self, seconds: float = 500) -> int:
        """The exit code."""
        until = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < until, f"still running after {seconds} s:\n{self.output}"
            self.descendants()
            time.sleep(LOOK_SECONDS)
        return int(self.process.returncode)

    def left_behind(self, seconds: float = 30) -> list[str]:
        """Command lines of descendants that are still there some time after the process ended."""
        import psutil

        until = time.monotonic() + seconds
        while (left := self.descendants()) and time.monotonic() < until:
            time.sleep(0.2)
        names = []
        for child in left:
            with suppress(psutil.NoSuchProcess):
                names.append(" ".join(child.cmdline())[:120])
        return names

    def kill(self) -> None:
        """Ends the process and all that it started."""
        import psutil

        for child in self.descendants():
            with suppress(psutil.NoSuchProcess):
                child.kill()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    paths = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", "")])
    return inherited | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PATH": paths} | extra
