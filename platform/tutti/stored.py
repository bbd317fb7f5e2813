"""The parts of a study that an object storage has, in versions that are whole or not there.

A part is what is written together, such as ``data``, ``bank/t0001`` or ``trials/t0001``. Its version 7 consists of the
objects below ``PART/000007-1a2b3c4d/`` and of ``PART/000007-1a2b3c4d.json``, written last, which lists every file of
the part with the version in which it was written. What no such list names is never read.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tutti.errors import Fault, StorageError
from tutti.objects import Gone, Objects

ROOT = "study"
"""The part of the files of the study's own folder."""
WHOLE = {"data", "report", "mlflow-artifacts"}
"""Folders of a study that are one part; in others each subfolder is one."""
ON_DEMAND = {"trials", "refits", "soups", "backbones"}
"""Folders that hold weights, which a study as a whole does not concern."""
_MANIFEST = re.compile(r"(.+)/(\d{6,}-[0-9a-f]{8})\.json")
_VERSIONED = re.compile(r"(.+?)/\d{6,}-[0-9a-f]{8}[./]")


@dataclass(frozen=True)
class StoredFile:
    """A stored file: the version in which it was written, its size in bytes and its SHA-256."""

    version: str
    size: int
    sha256: str


Files = Mapping[str, StoredFile]


def concerns(part: str, under: str) -> bool:
    """Whether a part is at, below or around a path of the study; of the study itself, whether it holds no weights."""
    if not under:
        return part.split("/")[0] not in ON_DEMAND
    return f"{part}/".startswith(f"{under}/") or f"{under}/".startswith(f"{part}/")


def next_version(versions: Sequence[str]) -> str:
    """The name of a new version, given the others, newest first."""
    return f"{1 + (_number(versions[0]) if versions else 0):06d}-{uuid.uuid4().hex[:8]}"


class StoredParts:
    """The stored parts of a study, below its address; methods raise StorageError as those of ``Objects`` do."""

    def __init__(self, address: str) -> None:
        self.objects = Objects(address)

    def newest(self, under: str) -> dict[str, str]:
        """The parts that a path concerns, with the newest version of each."""
        found = [(match[1], match[2]) for name in self._names(under) if (match := _MANIFEST.fullmatch(name))]
        return {part: version for part, version in sorted(found) if concerns(part, under)}

    def versions(self, part: str) -> list[str]:
        """The versions of a part, newest first."""
        matches = map(_MANIFEST.fullmatch, self.objects.names(part))
        return sorted((match[2] for match in matches if match and match[1] == part), reverse=True)

    def files(self, part: str, version: str) -> dict[str, StoredFile]:
        """The files of a version; raises Gone where it is none, ValueError where its list was cut short."""
        content = json.loads(self.objects.read(f"{part}/{version}.json"))
        files = {name: StoredFile(*entry) for name, entry in content["files"].items()}
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in files):
            what = f"{self.objects.address}/{part}/{version}.json"
            raise StorageError(Fault(what, "list files of its own part", "others", "remove it"))
        return files

    def newest_files(self, part: str) -> dict[str, StoredFile]:
        """The files of a part's newest version; empty where nothing is stored."""
        for version in self.versions(part):
            with suppress(Gone, ValueError):
                return self.files(part, version)
        return {}

    def write(self, part: str, version: str, files: Files) -> None:
        """Completes a version whose files are stored, and removes those before it."""
        entries = {name: [file.version, file.size, file.sha256] for name, file in files.items()}
        self.objects.write(f"{part}/{version}.json", json.dumps({"files": entries}, indent=1).encode())
        self._sweep(part, self.objects.names(part), keep=_objects(part, files), below=version)

    def drop(self, under: str, *, inside: str | None, keys: set[str] | None) -> list[str]:
        """Removes parts, or of them the files in a folder named ``inside``; the names of the parts that are gone."""
        names, gone = self._names(under), []
        for part in sorted({match[1] for name in names if (match := _MANIFEST.fullmatch(name))}):
            if not concerns(part, under) or (keys is not None and part.rpartition("/")[2] not in keys):
                continue
            own = [name for name in names if name.startswith(f"{part}/")]
            if inside is None:
                self._sweep(part, own, keep=set())
                gone.append(part)
            elif any(f"/{inside}/" in name for name in own):
                files = self.newest_files(part)
                kept = {name: file for name, file in files.items() if inside not in name.split("/")[:-1]}
                if kept != files:
                    self.write(part, next_version(self.versions(part)), kept)
        return gone

    def leftovers(self, under: str) -> dict[str, Callable[[], None]]:
        """By part below a path, what removes the objects that no list names."""
        names, found = self.objects.names(under), dict[str, Callable[[], None]]()
        for part in sorted({match[1] for name in names if (match := _VERSIONED.match(name))}):
            own = [name for name in names if name.startswith(f"{part}/")]
            newest = max((match[2] for name in own if (match := _MANIFEST.fullmatch(name))), default=None)
            keep = _objects(part, self.newest_files(part)) | {f"{part}/{newest}.json"}
            if {*own} - keep:
                found[part] = partial(self._sweep, part, own, keep=keep)
        return found

    def check(self) -> None:
        """Writes and removes an object."""
        name = f".check-{uuid.uuid4().hex[:8]}"
        self.objects.write(name, b"")
        self.objects.delete(name)

    def _names(self, under: str) -> list[str]:
        """The objects of all parts that a path concerns, and perhaps of others."""
        folders = under.split("/")
        return self.objects.names(folders[0] if folders[0] in WHOLE else "/".join(folders[:2]))

    def _sweep(self, part: str, names: Iterable[str], *, keep: set[str], below: str | None = None) -> None:
        """Deletes a part's objects, except some; with ``below``, only those of the versions before it."""
        number = None if below is None else _number(below)
        old = [name for name in names if name not in keep]
        old = [name for name in old if number is None or _number(name[len(part) + 1 :]) < number]
        manifests = [name for name in old if _MANIFEST.fullmatch(name) and name.count("/") == part.count("/") + 1]
        for name in manifests:  # first: what they list is not whole afterwards
            self.objects.delete(name)
        for folder in sorted({name[: name.index("/", len(part) + 1) + 1] for name in {*old} - {*manifests}}):
            if any(name.startswith(folder) for name in keep):
                for name in old:
                    if name.startswith(folder):
                        self.objects.delete(name)
            else:
                self.objects.delete(folder)


def _number(version: str) -> int:
    digits = version.split("-")[0]
    return int(digits) if digits.isdigit() else 0


def _objects(part: str, files: Files) -> set[str]:
    return {f"{part}/{file.version}/{name}" for name, file in files.items()}
