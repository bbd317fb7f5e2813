"""Which file of those that a competition hands out is which: training rows, test rows, a sample submission."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tutti.errors import Fault, TaskFileError
from tutti.files import whole_file
from tutti.tasks.layouts.packed import SUFFIXES as PACKED
from tutti.tasks.layouts.packed import content_name

Role = Literal["train", "validation", "test", "unlabeled", "sample"]
TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".xlsx")
LINES = (".conll", ".bio", ".iob", ".bmes", ".txt")
"""Of files that may have a word a line."""

_ROLES: dict[Role, set[str]] = {
    "sample": {"sample", "submission", "submit", "example"},
    "unlabeled": {"unlabeled", "unlabelled", "pool"},
    "validation": {"dev", "valid", "validation", "val", "eval"},
    "test": {"test", "testing"},
    "train": {"train", "training", "labeled", "labelled"},
}
"""By role, the words that names of its files have; the first role that fits counts: sample_test is a sample."""
_SETS = re.compile(
    r"[a-d]|round\d+|[12]|matched|mismatched|mm?"
)  # beside "test" or "dev": the name of one of several sets
_GLUE = {"matched": "m", "mismatched": "mm"}  # as its submissions name them
_PASSED = {"labels", "solution", "readme", "license", "description"}  # of files that are no rows
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\x00-\x7f]+")


@dataclass
class HandedOut:
    """The files of one task.

    Attributes:
        name: of the task.
        validations, tests: by name of the set.
        others: files that are none of these.
    """

    name: str
    train: Path | None = None
    validations: dict[str, Path] = field(default_factory=dict)
    tests: dict[str, Path] = field(default_factory=dict)
    unlabeled: Path | None = None
    sample: Path | None = None
    others: list[Path] = field(default_factory=list)


def handed_out(given: Sequence[Path], *, unpack: Path) -> list[HandedOut]:
    """The tasks that files, or the files of folders, are of, each with its training rows.

    Files whose names differ in more than their role, such as ``OCNLI_train.csv`` and ``TNEWS_train.csv``, are of tasks
    of their own; so is each subfolder of a folder that has no such files itself.

    Args:
        unpack: the folder for the files of zip archives that hold several.

    Raises:
        TaskFileError: if there is none with training rows.
    """
    found: list[HandedOut] = []
    for folder, files in _by_folder(given, unpack):
        found += _tasks(folder, files)
    ready = [task for task in found if task.train]
    if not ready:
        listed = ", ".join(path.name for task in found for path in task.others) or "none"
        rule = f"have a file of labelled rows, such as train.csv ({', '.join(TABLES)}, packed or not, or .conll)"
        got, remedy = f"no such file (others: {listed})", "name the file of labelled rows so, or give it alone"
        raise TaskFileError(Fault(", ".join(map(str, given)), rule, got, remedy))
    return ready


def _by_folder(given: Sequence[Path], unpack: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Each folder of files that may have rows, and these; the files that were given are one folder's."""
    alone: list[Path] = []
    for path in given:
        if not path.exists():
            raise TaskFileError(Fault(str(path), "be a file or folder", "nothing of that name", "correct the path"))
        if path.is_file():
            alone += _unpacked(path, unpack)
            continue
        files = [each for file in sorted(path.iterdir()) if file.is_file() for each in _unpacked(file, unpack)]
        files = [file for file in files if _is_of_rows(file)]
        if files:
            yield path, files
        else:
            for folder in sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith(".")):
                if inner := [file for file in sorted(folder.iterdir()) if file.is_file() and _is_of_rows(file)]:
                    yield folder, inner
    if alone:
        yield alone[0].absolute().parent, alone


def suffix_of(file: Path) -> str:
    """The suffix of what a file holds, whatever packs it; empty where that cannot be told."""
    with suppress(TaskFileError, OSError):
        return Path(content_name(str(file))).suffix.lower()
    return ""


def _is_of_rows(file: Path) -> bool:
    suffix = suffix_of(file) if file.is_file() else file.suffix.lower()
    return (
        suffix in (*TABLES, *LINES) and not {*_words(file)} & (_PASSED - {"labels"}) and not file.name.startswith(".")
    )


def _unpacked(file: Path, into: Path) -> Iterator[Path]:
    """The file itself, or the files of a zip archive that has several, below ``into``."""
    if file.suffix.lower() != ".zip" or not zipfile.is_zipfile(file):
        yield file
        return
    with zipfile.ZipFile(file) as archive:
        members = [each for each in archive.infolist() if not each.is_dir() and "__MACOSX" not in each.filename]
        members = [each for each in members if _is_of_rows(Path(each.filename))]
        if len(members) < 2:
            yield file
            return
        targets = [into / file.stem / _inside(member.filename, members) for member in members]
        for member, target in zip(members, targets, strict=True):
            if target.exists() and (not target.is_file() or zlib.crc32(target.read_bytes()) != member.CRC):
                rule, remedy = f"be as it is in {file}", "move it away, or name the unpacked folder in place of it"
                raise TaskFileError(Fault(str(target), rule, "another content", remedy))
        for member, target in zip(members, targets, strict=True):
            if not target.exists():
                with whole_file(target) as temporary, archive.open(member) as content:
                    temporary.write_bytes(content.read())
            yield target


def _inside(name: str, members: Sequence[zipfile.ZipInfo]) -> str:
    """The file's name for a member of an archive: without its folders, which could lead out, or with them in the name
    where several members are called alike.
    """
    alone = [Path(each.filename).name for each in members].count(Path(name).name) == 1
    return Path(name).name if alone else "_".join(plain_name(each) for each in Path(name).parts)


def _tasks(folder: Path, files: Sequence[Path]) -> Iterator[HandedOut]:
    by_name: dict[str, list[tuple[Role | None, str, Path]]] = defaultdict(list)
    for file in files:
        role, own_set, rest = _role(file)
        by_name[rest.casefold()].append((role, own_set, file))
    whole = folder.absolute().name
    if sum(any(role == "train" for role, *_ in own) for own in by_name.values()) < 2:  # of one task, however named
        by_name = {"": [each for own in by_name.values() for each in own]}
    shared = by_name.get("", [])
    for name, own in by_name.items():
        if name or len(by_name) == 1:
            spelled = next((_role(file)[2] for _, _, file in own), name)
            yield _task(plain_name(spelled if name else whole), own)
    if shared and len(by_name) > 1:
        yield _task(plain_name(whole), shared)


def _task(name: str, files: Sequence[tuple[Role | None, str, Path]]) -> HandedOut:
    task = HandedOut(name)
    for role, own_set, file in files:
        if role == "train" and task.train is None:
            task.train = file
        elif role in ("validation", "test"):
            sets = task.tests if role == "test" else task.validations
            sets[own_set or str(len(sets) + 1)] = file
        elif role == "unlabeled" and task.unlabeled is None:
            task.unlabeled = file
        elif role == "sample" and task.sample is None:
            task.sample = file
        else:
            task.others.append(file)
    if task.train is None and len(own := [*task.validations.values(), *task.others]) == 1:
        (task.train,), task.validations, task.others = own, {}, []  # labelled rows under another name
    return task


def _role(file: Path) -> tuple[Role | None, str, str]:
    """What a file is, by its name; the name of its set of rows to test or validate; and what else the name says."""
    words = _words(file)
    plain = [word.casefold() for word in words]
    if {*plain} & _PASSED:
        return None, "", " ".join(words)
    for role, of_role in _ROLES.items():
        if {*plain} & of_role:
            rest = [word for word, low in zip(words, plain, strict=True) if low not in of_role]
            own_set = ""
            if role == "sample":
                rest = [word for word in rest if word.casefold() not in set().union(*_ROLES.values())]
            if role in ("test", "validation"):
                own_set = "".join(_GLUE.get(word, word) for word in rest if _SETS.fullmatch(word.casefold()))
                rest = [word for word in rest if not _SETS.fullmatch(word.casefold())]
            return role, own_set, "_".join(rest)
    if plain and _SETS.fullmatch(plain[-1]) and len(plain) > 1:  # OCNLI_a.csv: test rows of the first round
        return "test", plain[-1], "_".join(words[:-1])
    return None, "", "_".join(words)


def _words(file: Path) -> list[str]:
    name = Path(file.name)
    while name.suffix.lower() in (*TABLES, *LINES, *PACKED):
        name = name.with_suffix("")
    return _WORDS.findall(name.name)


def plain_name(name: str) -> str:
    """A name that tasks and studies may have."""
    kept = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._-")[:60]
    return kept or "task"
