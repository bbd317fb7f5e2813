"""Submits a study as a job to a running Ray cluster."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import socket
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import tutti
from tutti.cluster.about import about_cluster
from tutti.cluster.client import cluster_faults, job_client
from tutti.cluster.shipped import FILES, SUBMITTED
from tutti.config.backbones import map_backbones
from tutti.config.folder import StudyFolder
from tutti.config.load import dump_study, load_recipe
from tutti.config.paths import absolute, map_task_paths
from tutti.config.pretraining import PretrainingConfig
from tutti.config.study import StudyConfig
from tutti.errors import Fault, StorageError, StudyError
from tutti.files import hashes, storage_faults
from tutti.launchers import user_name

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_IGNORE_FILES = (".gitignore", ".rayignore")  # in any folder, they would make Ray leave out what the study needs
STOP_SECONDS = 60  # for a study to end in order before Ray kills the job; by default 3
_STOPPED_SECONDS = STOP_SECONDS + 30.0  # in which a job that was told to stop has to end
SHIPPED_MIB = 100  # Ray keeps shipped files in the head node's memory


def submit_study(
    study: StudyConfig,
    *,
    address: str,
    options: list[str],
    submitted: str = "",
    tell: Callable[[str], object] = lambda _: None,
) -> str:
    """Ships the study, the files it names and this package to the cluster, and starts ``tutti tune`` there.

    Files below ``storage.path`` are on shared storage and are not shipped.

    Args:
        study: with absolute paths only, including ``storage.path``.
        options: further options of ``tutti tune``.
        submitted: the value of ``SUBMITTED``; it must not hold passwords, since Ray's dashboard shows it.
        tell: called with what ``about_cluster`` says.

    Returns:
        The job's id.

    Raises:
        StudyError: if the files to ship are too large, or the MLflow store is a file that the cluster does not see.
        StorageError: if a file cannot be copied, or the database of an older study is damaged.
        UserError: if the address is invalid.
        ClusterError: if the cluster does not answer or refuses the job.
    """
    shared = study.storage.path
    assert shared is not None
    check_tracking(study.tracking.uri, what="tracking.uri", shared=shared, place="storage.path")
    command = ["tune", "study.json", *options]
    return _submit(
        lambda folder: stage_study(study, folder),
        command,
        address=address,
        submitted=submitted,
        name=study.study,
        tell=lambda client: [*map(tell, about_cluster(client, study.resources))],
    )


def submit_pretraining(run: PretrainingConfig, *, address: str, options: list[str], submitted: str = "") -> str:
    """Ships a pretraining file, the files it names and this package, and starts it there: ``tutti tune`` of one with a
    search space, otherwise ``tutti backbone pretrain``.

    Files in the folder of ``out`` are on shared storage and are not shipped.

    Args, Returns, Raises: as of ``submit_study``.
    """
    shared = run.out.parent
    where = "the folder of `out`"
    check_tracking(run.tracking, what="tracking", shared=shared, place=where)
    if run.search.study and not run.search.study.is_relative_to(shared):
        rule, remedy = f"be in {shared}, which every node sees", "put it there, with the files that it names"
        raise StudyError(Fault("search.study", rule, str(run.search.study), remedy))
    command = ["tune"] if run.search_space.root else ["backbone", "pretrain"]

    def stage(folder: Path) -> Path:
        paths = [*run.texts, *map(Path, {run.backbone, *run.backbones})]
        into = run.out.with_name(f"{run.out.name}.shipped")
        target, places = _stage_files(paths, folder, shared=shared, into=into, what="the pretraining file", place=where)
        document = run.model_dump(mode="json", exclude_none=True)
        document["texts"] = [str(places.get(file, file)) for file in run.texts]
        document = map_backbones(document, lambda _, each: str(places.get(Path(each), each)))
        _write(folder / "pretraining.yaml", json.dumps(document, indent=1))  # JSON is YAML too
        return target

    command += ["pretraining.yaml", *options]
    return _submit(stage, command, address=address, submitted=submitted, name=run.out.name)


def _submit(
    stage: Callable[[Path], Path],
    command: list[str],
    *,
    address: str,
    submitted: str,
    name: str,
    tell: Callable[[JobSubmissionClient], object] = lambda _: None,
) -> str:
    """Starts ``tutti COMMAND`` in the folder that ``stage`` fills, which returns where the job shall put its files."""
    temporary = Path("the temporary folder ($TMPDIR)")
    with storage_faults(temporary), tempfile.TemporaryDirectory(prefix="tutti-job-") as staging:
        shipped = stage(Path(staging))
        keep = shlex.join(["python", "-m", "tutti.cluster.shipped", str(shipped)])
        with cluster_faults(address):
            client = job_client(address)
            tell(client)
            return client.submit_job(
                entrypoint=f"{keep} && exec {shlex.join(['python', '-m', 'tutti', *command])}",
                runtime_env={
                    "working_dir": staging,
                    "py_modules": [str(Path(tutti.__file__).parent)],
                    "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS), SUBMITTED: submitted},
                },
                metadata={"study": name, "by": f"{user_name()}@{socket.gethostname()}"},
            )


def check_tracking(uri: str | None, *, what: str, shared: Path, place: str) -> None:
    """Refuses an MLflow store that is a file of this machine: the head would track in a file of its own, or in none."""
    from sqlalchemy.engine import make_url

    uri = uri or ""
    file = make_url(uri).database if uri.startswith("sqlite") else None
    file = unquote(urlsplit(uri).path) if uri.startswith("file:") else file
    if file and file != ":memory:" and not absolute(file, Path("/")).is_relative_to(shared):
        rule = f"name an MLflow server, or a file below {place} ({shared}), which the cluster sees too"
        remedy = "write the address of a server, like http://HOST:5000, or leave it out"
        raise StudyError(Fault(what, rule, uri, remedy))


def stage_study(study: StudyConfig, staging: Path) -> Path:
    """Copies the files that the study names into ``staging``, with a study file that names where they will be.

    That is in the study's folder, by their content: later commands need them too, when Ray has removed the job's files.

    Returns:
        The folder where the job shall put ``staging / FILES``.
    """
    shared, recipe = study.storage.path, study.ensemble.recipe
    assert shared is not None
    if load_recipe(recipe)[1].submission.templates:
        rule, remedy = "name no files of its own to travel with a job", "name it to `tutti ensemble` afterwards"
        raise StudyError(Fault(f"ensemble.recipe {recipe}", rule, "submission.templates", remedy))
    named: list[Path] = []

    def collect(text: str) -> str:
        named.append(Path(text))
        return text

    _with_paths(study, collect)
    into = StudyFolder(shared / study.study).shipped
    target, places = _stage_files(named, staging, shared=shared, into=into, what="the study", place="storage.path")
    if study.storage.address:  # `tutti tune` stores what nodes and later commands need of them
        target, places = FILES, {path: FILES / place.relative_to(target) for path, place in places.items()}
    document = _with_paths(study, lambda text: str(places.get(Path(text), text)))
    document["search"]["warm_start"] = [
        older if Path(older).is_relative_to(shared) else _stage_older(StudyFolder(Path(older)), staging, index)
        for index, older in enumerate(study.search.warm_start)
    ]
    _write(staging / "study.json", dump_study(StudyConfig.model_validate(document)))
    return target


def _stage_files(
    paths: Iterable[Path], staging: Path, *, shared: Path, into: Path, what: str, place: str
) -> tuple[Path, dict[Path, Path]]:
    """Copies files and folders that exist and are not below ``shared`` into ``staging``.

    Returns:
        The folder in ``into``, by their content, where the job shall put them, and the place of each there.
    """
    names: dict[Path, str] = {}  # of the copies, relative to FILES
    for path in paths:
        if path.is_absolute() and path.exists() and not path.is_relative_to(shared):
            names.setdefault(path, f"{len(names)}/{path.name}")
    sizes = {path: _mib(path) for path in names}
    if sum(sizes.values()) > SHIPPED_MIB:
        largest = sorted(((path, mib) for path, mib in sizes.items() if mib >= 1), key=lambda x: -x[1])[:5]
        listed = ", ".join(f"{path} ({mib:.0f} MiB)" for path, mib in largest)
        raise StudyError(
            Fault(
                f"the files that {what} names",
                f"be at most {SHIPPED_MIB} MiB in all to travel with a job",
                f"{sum(sizes.values()):.0f} MiB: {listed}",
                f"put the large ones below {place} ({shared}), which every node sees",
            )
        )
    for path, name in names.items():
        _copy(path, staging / FILES / name)
    target = into / _digest(staging / FILES)
    return target, {path: target / name for path, name in names.items()}


def _with_paths(study: StudyConfig, change: Callable[[str], str]) -> dict[str, Any]:
    """The study as a document in which each path is replaced by ``change(path)``."""
    document = map_backbones(study.model_dump(mode="json"), lambda _, path: change(path))
    for name, task in document["tasks"].items():
        document["tasks"][name] = map_task_paths(task, lambda _, path: change(path))
    document["ensemble"]["recipe"] = change(document["ensemble"]["recipe"])
    return document


def _digest(folder: Path) -> str:
    """A short hash of the names and contents of all files."""
    return sha256("".join(f"{name} {digest}\n" for name, digest in hashes(folder).items()).encode()).hexdigest()[:16]


def _stage_older(older: StudyFolder, staging: Path, index: int) -> str:
    """Copies what a warm start reads of an older study: its settings, and its trials or its owner on a database server.

    Returns:
        The copy's path, relative to ``staging``.
    """
    target = StudyFolder(staging / "older" / str(index) / older.name)
    target.path.mkdir(parents=True)
    for file, copy in ((older.study_file, target.study_file), (older.database_file, target.database_file)):
        if file.is_file():
            _copy(file, copy)
    if older.optuna_file.is_file():  # not a plain copy: the latest changes may still be in the write-ahead log
        try:
            with (
                closing(sqlite3.connect(f"file:{quote(str(older.optuna_file))}?mode=ro", uri=True)) as source,
                closing(sqlite3.connect(target.optuna_file)) as destination,
            ):
                source.backup(destination)
        except sqlite3.Error as error:
            remedy = "restore it from a copy, or take the study out of search.warm_start"
            raise StorageError(Fault(str(older.optuna_file), "be a database", str(error), remedy)) from error
    return target.path.relative_to(staging).as_posix()


def _write(file: Path, text: str) -> None:
    """Writes a file that may have a database's password: in Ray's folders on the nodes it has the same mode."""
    file.touch(mode=0o600)
    file.write_text(text, encoding="utf8")


def _copy(path: Path, target: Path) -> None:
    """Copies a file or a folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        if path.is_dir():
            shutil.copytree(path, target, ignore=shutil.ignore_patterns(*_IGNORE_FILES))
        else:
            shutil.copy2(path, target)
    except OSError as error:
        place, got = str(path), error.strerror or str(error)
        if isinstance(error, shutil.Error):  # of a folder: source, destination and error text of each file
            place, _, text = error.args[0][0]
            got = re.sub(r"^\[Errno \d+\] |: '.*", "", text)
        remedy = f"check that it can be read and that {tempfile.gettempdir()} has room, or move it below storage.path"
        raise StorageError(Fault(place, "be copied to travel with the job", got, remedy)) from error


def _mib(path: Path) -> float:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files) / 2**20


def follow_job(job: str, *, address: str, show: Callable[[str], None]) -> str:
    """Shows a job's log as it grows until the job ends; its final status: ``SUCCEEDED``, ``FAILED`` or ``STOPPED``.

    Raises:
        ClusterError: if the cluster does not answer or knows no such job.
    """
    with cluster_faults(address, followed=job):
        from aiohttp import ClientError

        client = job_client(address)
        shown = 0  # characters

        async def tail() -> None:
            nonlocal shown
            received = 0
            async for lines in client.tail_job_logs(job):  # always from the beginning of the log
                received += len(lines)
                if received > shown:
                    show(lines[shown - received :])
                    shown = received

        def follow() -> bool:
            """Whether the tail ended in order, and not because a proxy dropped the connection."""
            try:
                asyncio.run(tail())
            except RuntimeError:  # if the cluster is gone, so is the job's status
                return False
            except ClientError:  # such as a refusal of another connection
                if not shown:
                    raise
                return False
            return True

        in_order = follow()
        while not (status := client.get_job_status(job)).is_terminal():  # a proxy closed the idle connection
            time.sleep(1)
            in_order = follow()
        if not in_order:  # the log may have grown before the job ended
            follow()
        return str(status.value)


def job_status(job: str, *, address: str) -> str:
    """``PENDING``, ``RUNNING``, ``SUCCEEDED``, ``FAILED`` or ``STOPPED``, with Ray's message if there is one.

    Raises:
        ClusterError: if the cluster does not answer or knows no such job.
    """
    with cluster_faults(address):
        info = job_client(address).get_job_info(job)
        return f"{info.status.value}: {info.message}" if info.message else str(info.status.value)


def stop_job(job: str, *, address: str) -> bool:
    """Stops a job and waits until it has ended; false if it had ended before.

    Raises:
        ClusterError: if the cluster does not answer, knows no such job, or has not ended it in time.
    """
    with cluster_faults(address):
        client = job_client(address)
        if not client.stop_job(job):
            return False
        deadline = time.monotonic() + _STOPPED_SECONDS
        while not client.get_job_status(job).is_terminal():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the job {job} is still running {_STOPPED_SECONDS:g} s after it was told to stop")
            time.sleep(0.2)
        return True
