"""Atomic writes: to a temporary sibling, synced, then renamed, so that readers see the old file or the new one."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tutti.errors import Fault, StorageError, nearest

_STRAY = re.compile(r"\..+\.[a-z0-9_]{8}\.(tmp|old)", re.DOTALL)  # names made by tempfile in this module

_LFS = b"version https://git-lfs.github.com/spec/"


def is_lfs_pointer(path: Path) -> bool:
    """Whether an existing file is what Git LFS leaves in a file's place until it is pulled."""
    with path.open("rb") as file:
        return file.read(len(_LFS)) == _LFS


@contextmanager
def storage_faults(path: Path) -> Iterator[None]:
    """Turns an ``OSError`` while writing ``path`` into a StorageError with a remedy."""
    try:
        yield
    except OSError as error:
        remedy = {
            errno.ENOSPC: "free some space or name another folder",
            errno.EDQUOT: "free some space or name another folder",
            errno.EACCES: "ask for write permission or name another folder",
            errno.EROFS: "make it writable or name another folder",
        }.get(error.errno or 0, "check whether the folder exists and can be written to")
        got = error.strerror or str(error)
        raise StorageError(Fault(str(path), "be written whole", got, remedy)) from error


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a temporary sibling of ``path`` to write to, and renames it to ``path`` when the block succeeds.

    Raises:
        StorageError: where the file system refuses. ``path`` is then unchanged.
    """
    with storage_faults(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            with temporary.open("rb+") as written:
                os.fsync(written.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
            _sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes ``content`` (text as UTF-8) to ``path``, atomically.

    Raises:
        StorageError: where the file system refuses.
    """
    with whole_file(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def whole_folder(path: Path, *, unless: Callable[[], bool] = lambda: False) -> Iterator[Path]:
    """Yields a temporary sibling folder, and replaces ``path`` by it when the block succeeds.

    See ``fixed_folder_fault`` for a path that a user names.

    Args:
        unless: asked last, after all files are on the disk: if true, ``path`` stays, which others may be reading.

    Raises:
        StorageError: where the file system refuses.
    """
    with storage_faults(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
        try:
            yield temporary
            for entry in (*temporary.rglob("*"), temporary):
                if entry.is_dir():
                    entry.chmod(0o755)
                    _sync_folder(entry)
                elif entry.is_file():
                    with entry.open("rb+") as written:
                        os.fsync(written.fileno())
                    entry.chmod(0o644)  # safetensors makes files readable by their owner only; storage may be shared
            if unless():
                return
            if path.exists():
                retired = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent))
                path.replace(retired / path.name)
                try:
                    temporary.replace(path)
                except BaseException:
                    (retired / path.name).replace(path)
                    retired.rmdir()
                    raise
                with suppress(OSError):  # replaced: should a kill leave it, ``clear_stray`` must not put it back
                    retired = retired.replace(retired.with_suffix(".tmp"))
                shutil.rmtree(retired, ignore_errors=True)
            else:
                temporary.replace(path)
            _sync_folder(path.parent)
        except StorageError as error:  # name the folder that the user knows
            faults = [replace(each, what=each.what.replace(str(temporary), str(path))) for each in error.faults]
            raise StorageError(*faults) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def fixed_folder_fault(folder: Path) -> Fault | None:
    """The fault of a folder that ``whole_folder`` cannot make or replace.

    It is below a file, a mount point, the current folder or one above that.
    """
    folder, current = resolved(folder), Path.cwd()
    if fault := below_file_fault(folder):
        return fault
    if folder.is_mount():
        got = "a mount point"
    elif current.is_relative_to(folder):
        got = "the current folder" if folder == current else "a folder above the current one"
    else:
        return None
    return Fault(str(folder), "be a folder that can be replaced as a whole", got, "name a folder inside it")


def below_file_fault(path: Path) -> Fault | None:
    """The fault of a path that cannot be made because it is below a file."""
    nearest_parent = next((parent for parent in path.absolute().parents if parent.exists()), None)
    if nearest_parent is None or nearest_parent.is_dir():
        return None
    return Fault(str(path), "be in a folder", f"the file {nearest_parent}", "name another folder")


def new_folder_fault(folder: Path) -> Fault | None:
    """The fault of a folder to be made that is a file, holds files, or cannot be replaced by ``whole_folder``."""
    rule = "be a new or an empty folder"
    if folder.exists() and not folder.is_dir():
        return Fault(str(folder), rule, "a file", "name another folder")
    if folder.is_dir() and any(folder.iterdir()):
        return Fault(str(folder), rule, "a folder that holds files", "name another folder, or remove this one")
    return fixed_folder_fault(folder)


def is_stray(name: str) -> bool:
    """Whether a name is that of a temporary file or folder of this module."""
    return _STRAY.fullmatch(name) is not None


def strays(folder: Path) -> list[Path]:
    """Temporary files and folders below ``folder``, at any depth, left over if the process that wrote them has died."""
    return sorted(path for path in folder.rglob(".*") if is_stray(path.name))


def strays_of(file: Path) -> list[Path]:
    """Temporary files that a process left beside ``file`` if it died while it wrote it."""
    begins = f".{file.name}."
    return [path for path in file.parent.iterdir() if path.name.startswith(begins) and is_stray(path.name)]


def clear_stray(stray: Path) -> None:
    """Removes a leftover temporary file or folder. A folder that was being replaced is restored if it is missing.

    Raises:
        StorageError: where the file system refuses.
    """
    with storage_faults(stray):
        if stray.is_symlink() or not stray.is_dir():
            stray.unlink(missing_ok=True)
            return
        if stray.suffix == ".old":
            for retired in stray.iterdir():
                if not (stray.parent / retired.name).exists():
                    retired.rename(stray.parent / retired.name)
        shutil.rmtree(stray)


def is_plain(name: str) -> bool:
    """Whether a name denotes a direct child of a folder, and nothing below or outside of it."""
    return name not in ("", ".", "..") and not any(mark in name for mark in "/\\\0")


def resolved(path: Path) -> Path:
    """An absolute path without symbolic links; one that is in a loop of them stays, for an error where it is used."""
    return Path(os.path.realpath(path))


def is_inside(path: Path, folder: Path) -> bool:
    """Whether ``path`` is below ``folder`` after resolving the symbolic links in both."""
    return path.resolve().is_relative_to(folder.resolve())


def check_no_link(path: Path) -> None:
    """Refuses a link in a study's folder: what lies at its target would be overwritten or removed.

    Raises:
        StorageError: if the path is one.
    """
    if path.is_symlink():
        rule, got = "be a file or folder of the study itself", f"a link to {path.readlink()}"
        raise StorageError(Fault(str(path), rule, got, "move what it links to in its place"))


def nearest_file(path: Path, *, otherwise: str) -> str:
    """A remedy that suggests the file in the same folder with the most similar name, or ``otherwise``."""
    try:
        siblings = [file.name for file in path.parent.iterdir() if file.is_file()]
    except OSError:
        siblings = []
    return nearest(path.name, siblings, otherwise=otherwise)


def sha256_of(path: Path) -> str:
    """The file's SHA-256 as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file in the folder, by relative path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # some network file systems cannot sync a folder; the rename is still atomic there
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
