"""Studies on object storage: each machine has a working copy of the parts that it uses, see ``tutti.stored``.

All functions take paths of working copies, and do nothing for other paths. They raise StorageError where the storage
cannot be reached or the disk refuses.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from tutti.copies import address_of, origin_of, trim, use
from tutti.errors import Fault, StorageError
from tutti.files import is_stray, storage_faults, whole_file, whole_folder, write_whole
from tutti.objects import Gone, Objects
from tutti.stored import ROOT, WHOLE, Files, StoredFile, StoredParts, concerns, next_version

_KNOWN = ".mirror"  # in a working copy: by part, the version that it is a copy of
_ROOT_FILES = ("owner", "study.json", "database.json", "leaderboard.json")
_LOCAL = {"ray", "estimates"}  # folders that are not stored
_PENDING = 2  # uploads in the background before one is waited for
_ATTEMPTS = 10  # a version may be replaced while it is read
_THREADS = 8

_Stat = tuple[int, int, int]  # size, time of the last change, inode


@dataclass(frozen=True)
class _Copy:
    """What is known of the working copy of a part: its version, and its files as they were then."""

    version: str | None = None
    files: Files = field(default_factory=dict)
    stats: Mapping[str, _Stat] = field(default_factory=dict)


def study_names(folder: Path) -> list[str]:
    """The names of the studies that are stored, given their folder of working copies."""
    address = address_of(folder)
    return Objects(address).folders() if address else []


def pull(path: Path) -> None:
    """Makes the parts at, below or around a path what the storage has; of a study those that hold no weights.

    A part that was changed here since it was pulled stays, unless the storage has a newer version.
    """
    if found := _find(path):
        found[0].pull(found[1])


def push(path: Path, *, wait: bool = True) -> None:
    """Stores the parts at, below or around a path whose files have changed; of a study those that hold no weights.

    Args:
        wait: whether it is stored when this returns. If not, the files are stored in the background as they are now;
            at most two such uploads are pending, and an error of one is raised by the next call.
    """
    if found := _find(path):
        found[0].push(found[1], wait=wait)


def flush(path: Path) -> None:
    """Waits for the uploads in the background of the study that a path belongs to."""
    if found := _find(path):
        found[0].flush()


def drop(path: Path, *, inside: str | None = None, keys: Iterable[str] | None = None) -> None:
    """Removes the parts at or below a path from the storage.

    Args:
        inside: remove only the files that are in a folder of this name.
        keys: of the parts below the path, those with these names.
    """
    if found := _find(path):
        found[0].drop(found[1], inside=inside, keys=keys)


def stored_keys(path: Path) -> set[str]:
    """The names of the parts below a folder of a study, such as ``trials``, that are stored."""
    if not (found := _find(path)):
        return set()
    return {part.rpartition("/")[2] for part in found[0].stored.newest(found[1])}


def sizes(path: Path) -> dict[str, int]:
    """The bytes of each stored file of a part, by its path in the part; empty where nothing is stored."""
    found = _find(path)
    return {name: file.size for name, file in found[0].stored.newest_files(found[1]).items()} if found else {}


def leftovers(path: Path) -> dict[str, Callable[[], None]]:
    """By part below a path, what removes the objects that killed uploads have left. None may be in progress there."""
    return found[0].stored.leftovers(found[1]) if (found := _find(path)) else {}


def check(path: Path) -> None:
    """Checks that the storage of a study can be written."""
    if found := _find(path):
        found[0].stored.check()


@contextmanager
def held(path: Path, *, release: bool) -> Iterator[None]:
    """Pulls the part of a path for a block, and stores at its end what is still to be stored.

    Args:
        release: whether the working copy of the part is then removed, since it is large.
    """
    pull(path)
    try:
        yield
    finally:
        flush(path)
        if release and (found := _find(path)):
            found[0].release(found[1])


class _Mirror:
    """A study's working copy and its storage."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder, self.stored = folder, StoredParts(address)
        self._uploads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tutti-uploads")
        self._pending: list[Future[None]] = []
        self._guard = threading.Lock()
        self._own: set[str] = set()  # versions that this process has written, or tried to

    def pull(self, under: str) -> None:
        outdated = [part for part, newest in self.stored.newest(under).items() if self._copy(part).version != newest]
        with ThreadPoolExecutor(max_workers=_THREADS) as threads:
            list(threads.map(self._fetch, outdated))

    def push(self, under: str, *, wait: bool) -> None:
        with self._guard:
            for part in self._parts(under):
                stats = self._stats(part)
                if stats and stats != self._copy(part).stats:
                    staged = self._stage(part, stats)
                    self._pending.append(self._uploads.submit(self._store, part, staged, stats))
            allowed = 0 if wait else _PENDING
        self.flush(allowed)

    def flush(self, allowed: int = 0) -> None:
        """Waits until at most ``allowed`` uploads are pending; raises the error of one that failed."""
        with self._guard:
            while len(self._pending) > allowed or (self._pending and self._pending[0].done()):
                self._pending.pop(0).result()

    def drop(self, under: str, *, inside: str | None, keys: Iterable[str] | None) -> None:
        for part in self.stored.drop(under, inside=inside, keys=None if keys is None else set(keys)):
            self._file(part).unlink(missing_ok=True)

    def release(self, part: str) -> None:
        with self._lock(part), storage_faults(self._folder / part):
            self._file(part).unlink(missing_ok=True)
            if (self._folder / part).is_dir():
                shutil.rmtree(self._folder / part)

    def release_stored(self) -> None:
        for part in filter(ROOT.__ne__, self._parts(None)):
            copy = self._copy(part)
            if copy.version is not None and self._stats(part) == copy.stats:
                self.release(part)

    def _fetch(self, part: str) -> None:
        """Replaces the working copy of a part by the newest stored version that is whole."""
        with self._lock(part):
            for attempt in range(_ATTEMPTS):
                versions = self.stored.versions(part)
                if not versions:
                    return
                for version in versions[: 1 + attempt // 3]:  # at first, a newer one may have come
                    known = self._copy(part)
                    if version == known.version:  # another process of this machine was faster
                        return
                    with suppress(Gone, ValueError):  # it was removed, or is not whole
                        files = self.stored.files(part, version)
                        stats = self._install(part, files, known)
                        self._remember(part, _Copy(version, files, stats))
                        return
                time.sleep(0.1 * attempt)
            got, remedy = "files that are gone", "try again, or run `tutti doctor`"
            raise StorageError(Fault(f"{self.stored.objects.address}/{part}", "be stored as a whole", got, remedy))

    def _install(self, part: str, files: Files, known: _Copy) -> dict[str, _Stat]:
        """Puts the stored files in the place of a part's working copy."""
        now = self._stats(part)

        def fill(name: str, target: Path) -> None:
            file, own = files[name], self._root(part) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if known.files.get(name) == file and now.get(name) == known.stats.get(name, ()):
                target.unlink(missing_ok=True)
                _link(own, target)
            elif self.stored.objects.download(f"{part}/{file.version}/{name}", target) != file.sha256:
                raise ValueError(f"{name} is not what was stored")

        if part == ROOT:
            for name in files:
                with whole_file(self._folder / name) as temporary:
                    fill(name, temporary)
            for name in now.keys() - files.keys():
                (self._folder / name).unlink()
        else:
            with whole_folder(self._folder / part) as temporary:
                for name in files:
                    fill(name, temporary / name)
        return self._stats(part)

    def _store(self, part: str, staged: Path, stats: Mapping[str, _Stat]) -> None:
        """Stores the files of a part, as they were staged, as its next version."""
        try:
            with self._lock(part):
                known, versions = self._copy(part), self.stored.versions(part)
                if stats == known.stats:
                    return
                version, files = next_version(versions), dict[str, StoredFile]()
                is_newest = bool(versions) and versions[0] == known.version
                is_other = bool(versions) and not is_newest and versions[0] not in self._own
                if is_other and part.startswith("trials/"):
                    return  # another worker has gone on with the trial, or it has ended
                if is_other and part == ROOT:
                    files = self.stored.newest_files(part)  # with what another machine has written
                for name, stat in stats.items():
                    if known.stats.get(name) == stat and (is_newest or name in files):
                        files.setdefault(name, known.files[name])
                    else:  # files of versions before the newest may be removed at any time
                        sha256 = self.stored.objects.upload(staged / name, f"{part}/{version}/{name}")
                        files[name] = StoredFile(version, stat[0], sha256)
                is_same = files.keys() == stats.keys() and not (is_other and part == ROOT)
                self._own.add(version)
                self.stored.write(part, version, files)
                self._remember(part, _Copy(version if is_same else None, files, stats))
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def _parts(self, under: str | None) -> list[str]:
        """The parts of the working copy that a path concerns; all for None."""
        found = [ROOT]
        for folder in (path for path in self._folder.iterdir() if path.is_dir() and not path.is_symlink()):
            if folder.name in WHOLE:
                found.append(folder.name)
            elif folder.name not in _LOCAL and not folder.name.startswith("."):
                found += [f"{folder.name}/{each.name}" for each in folder.iterdir() if each.is_dir()]
        found = [part for part in found if under is None or concerns(part, under)]
        return sorted(part for part in found if not is_stray(part.rpartition("/")[2]))

    def _root(self, part: str) -> Path:
        return self._folder if part == ROOT else self._folder / part

    def _stats(self, part: str) -> dict[str, _Stat]:
        """The files of a part's working copy."""
        root = self._root(part)
        paths = [root / name for name in _ROOT_FILES] if part == ROOT else root.rglob("*")
        stats = {}
        for path in paths:
            name = path.relative_to(root).as_posix()
            with suppress(FileNotFoundError):
                if not path.is_symlink() and path.is_file() and not any(map(is_stray, name.split("/"))):
                    stat = path.stat()
                    stats[name] = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        return stats

    def _stage(self, part: str, stats: Mapping[str, _Stat]) -> Path:
        """A folder with links to the files as they are now, since they are replaced but never changed."""
        with storage_faults(self._folder):
            staged = Path(tempfile.mkdtemp(prefix=".staged.", suffix=".tmp", dir=self._folder))
            for name in stats:
                (staged / name).parent.mkdir(parents=True, exist_ok=True)
                _link(self._root(part) / name, staged / name)
        return staged

    def _file(self, part: str) -> Path:
        return self._folder / _KNOWN / f"{part}.json"

    @contextmanager
    def _lock(self, part: str) -> Iterator[None]:
        file = self._file(part).with_suffix(".lock")
        with storage_faults(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(file)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _copy(self, part: str) -> _Copy:
        try:
            content: Any = json.loads(self._file(part).read_text(encoding="utf-8"))
            files = {name: StoredFile(*entry) for name, entry in content["files"].items()}
            stats: Any = {name: tuple(stat) for name, stat in content["stats"].items()}
            return _Copy(content["version"], files, stats)
        except (OSError, ValueError, KeyError, TypeError):
            return _Copy()

    def _remember(self, part: str, copy: _Copy) -> None:
        files = {name: [file.version, file.size, file.sha256] for name, file in copy.files.items()}
        content = {"version": copy.version, "files": files, "stats": dict(copy.stats)}
        write_whole(self._file(part), json.dumps(content))


_mirrors: dict[tuple[Path, str], _Mirror] = {}
_in_use: list[IO[bytes]] = []  # open as long as this process lives


def _find(path: Path) -> tuple[_Mirror, str] | None:
    """The mirror of the study that a path belongs to, and the path in the study; None for any other path."""
    if not (origin := origin_of(path)):
        return None
    study, *inside = path.relative_to(origin[0]).parts
    place = origin[0] / study, f"{origin[1]}/{study}"
    if place not in _mirrors:
        _in_use.append(use(place[0]))
        _mirrors[place] = _Mirror(*place)
        trim(_release_stored)
    return _mirrors[place], ROOT if inside and inside[0] in _ROOT_FILES else "/".join(inside)


def _release_stored(folder: Path) -> None:
    """Removes from a working copy that no process uses the parts that the storage has, but the study's own files."""
    if origin := origin_of(folder):
        _Mirror(folder, f"{origin[1]}/{folder.name}").release_stored()


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)
