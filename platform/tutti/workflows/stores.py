"""Opens a study's stores: its file and folder, Optuna's database and MLflow's tracking store."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti import mirror
from tutti.config.address import same_database, with_password, without_password
from tutti.config.conditions import fixed_values
from tutti.config.folder import StudyFolder, studies_folder
from tutti.config.load import load_study, parse_study
from tutti.config.paths import DATABASES
from tutti.config.study import StudyConfig
from tutti.copies import address_of
from tutti.errors import ConfigError, Fault, StudyError
from tutti.files import storage_faults, write_whole

if TYPE_CHECKING:
    from tutti.search.study_store import StudyStore
    from tutti.search.warm_start import OlderStudy
    from tutti.tracking.artifacts import StudyRun
    from tutti.tracking.protocol import Tracker
    from tutti.tracking.queued import QueuedTracker


def read_study_file(
    file: Path | Mapping[str, Any], *, overrides: Sequence[str], shared: bool = False
) -> tuple[StudyConfig, StudyFolder]:
    """Loads and validates a study file; returns the study, with ``storage.path`` made absolute, and its folder.

    Args:
        file: the file, or its content, in which paths are relative to the current folder.
        shared: whether other machines must see the folder, which rules out this machine's default folder; what is
            below it need not be visible here.

    Raises:
        ConfigError: with every fault of the file.
        StudyError: if the folder must be shared and none is named.
    """
    from tutti.training import check_training

    study = load_study(file, overrides=overrides, check_training=check_training, shared=shared)
    if shared and study.storage.path is None and not os.environ.get("TUTTI_STUDIES"):
        rule, remedy = "name the folder of studies on a cluster", "set `storage.path` to a folder that every node sees"
        raise StudyError(Fault(f"{file}: storage.path", rule, "nothing", remedy))
    path = (study.storage.path or studies_folder()).absolute()
    place = {"path": path, "address": address_of(path)}
    study = study.model_copy(update={"storage": study.storage.model_copy(update=place)})
    return study, StudyFolder(path / study.study)


def load_store(study: StudyConfig, folder: StudyFolder, *, mend: bool = False) -> StudyStore:
    """Opens the study's trials for reading, or for ``tutti doctor`` to ``mend``."""
    from tutti.search.study_store import StudyStore

    begun = folder.database_file.is_file() or folder.has_trials
    return StudyStore.load(
        database_url(study, folder), name=study.study, mend=mend, begun=begun, owner=owner_of(folder)
    )


def load_begun_store(study: StudyConfig, folder: StudyFolder) -> StudyStore | None:
    """Opens the study's trials for reading; none if its first start failed before the Optuna study was created.

    Raises:
        StudyError: if the database server that held the study no longer has it.
    """
    if not folder.begun:
        return None
    try:
        return load_store(study, folder)
    except StudyError:
        if folder.database_file.is_file():
            raise
        return None


def open_store(study: StudyConfig, folder: StudyFolder) -> StudyStore:
    """Opens or creates the study's trials, to run more of them."""
    from tutti.search.study_store import StudyStore

    search, owner = study.search, None
    if not folder.begun and folder.owner is None:  # written before anything is created on a server
        write_whole(folder.owner_file, f"{uuid.uuid4()}\n")
        mirror.push(folder.owner_file)
    if study.storage.database:
        owner = owner_of(folder) or folder.owner
    store = StudyStore.open(
        database_url(study, folder),
        name=study.study,
        space=study.search_space,
        sampler=search.sampler,
        seed=search.seed,
        objectives=search.objectives,
        fixed=fixed_values(study.training),
        enqueued=search.enqueue,
        older=_older_studies(study, folder),
        owner=owner,
        begun=folder.begun,
        patience=study.storage.patience,
    )
    if owner and not folder.database_file.is_file():
        write_whole(folder.database_file, json.dumps({"study": owner}) + "\n")
        mirror.push(folder.database_file)
    return store


def forget(study: StudyConfig, folder: StudyFolder) -> None:
    """Makes a study that has begun new again: removes its trials from its folder and its database, not from MLflow.

    Raises:
        StudyError: if another driver runs it.
        StorageError: if something cannot be removed.
    """
    with storage_faults(folder.path):
        for place in (folder.trials, folder.bank, folder.data, folder.ray):  # a study killed here is forgotten later
            if place.exists():
                shutil.rmtree(place)
            mirror.drop(place)
        if study.storage.database:
            from tutti.search.checks import delete

            delete(database_url(study, folder), study.study, owner=owner_of(folder))
        beside = folder.path.glob(f"{folder.optuna_file.name}-*")  # SQLite's
        for file in (folder.database_file, folder.optuna_file, *beside, folder.spool, folder.owner_file):
            file.unlink(missing_ok=True)
    mirror.push(folder.study_file)


def owner_of(folder: StudyFolder) -> str | None:
    """The id that tells the study from others of its name on a database server; none before it is created there."""
    try:
        return str(json.loads(folder.database_file.read_bytes())["study"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        got, remedy = "another content", "restore it from a copy of the study's folder"
        raise StudyError(Fault(str(folder.database_file), "be as it was written", got, remedy)) from error


def database_url(study: StudyConfig, folder: StudyFolder) -> str:
    """The URL of the study's Optuna database.

    The study's folder stores no password. Unless the study file gives one, the password comes from
    ``$TUTTI_DATABASE`` if that is the same address, or from what PostgreSQL's own clients read.
    """
    if study.storage.database is None:
        return folder.optuna_url
    return with_password(study.storage.database, os.environ.get("TUTTI_DATABASE"))


def count_trials(study: StudyConfig, folder: StudyFolder) -> int:
    """The number of the study's trials, including interrupted ones."""
    store = load_begun_store(study, folder)
    if store is None:
        return 0
    with closing(store):
        return len(store.records())


def fitting_trials(study: StudyConfig, folder: StudyFolder) -> dict[str, int]:
    """By older study named in ``search.warm_start``: the number of its trials that this search space could draw.

    Raises:
        StudyError: if one of the studies has none.
        StorageError: if a database cannot be read.
    """
    if not study.search.warm_start:
        return {}
    from tutti.search.warm_start import fitting_trials

    fixed = fixed_values(study.training)
    options: dict[str, Any] = {"fixed": fixed, "objectives": study.search.objectives}
    return {
        older.name: len(fitting_trials(older, study.search_space, **options)) for older in _older_studies(study, folder)
    }


def _older_studies(study: StudyConfig, folder: StudyFolder) -> list[OlderStudy]:
    """The studies named in ``search.warm_start``.

    A study that has trials of its own holds theirs, so a folder that has been removed or damaged since is skipped.
    """
    from tutti.search.warm_start import OlderStudy

    older_studies = []
    for older_folder in map(StudyFolder, map(Path, study.search.warm_start)):
        try:
            older = parse_study(older_folder.study_file)
        except ConfigError:
            if folder.begun and (folder.has_trials or not older_folder.study_file.is_file()):
                continue
            raise
        url, owner = database_url(older, older_folder), owner_of(older_folder)
        older_studies.append(OlderStudy(older.study, url, fixed_values(older.training), owner))
    return older_studies


def with_stores(study: StudyConfig, folder: StudyFolder) -> StudyConfig:
    """Fills in the database and tracking URI that the study file does not name.

    A study that has begun keeps the stores it began with, whatever the environment says now; otherwise its trials and
    runs would be split over two stores. A new study takes ``$TUTTI_DATABASE`` and ``$MLFLOW_TRACKING_URI``.

    Raises:
        StudyError: if the study began in its folder's own database and the file now names a server.
    """
    database, uri = study.storage.database, study.tracking.uri
    if database and folder.optuna_file.is_file():
        rule, got = "stay as it was when the study is resumed", f"{database} where its trials are in the study's folder"
        remedy = "remove it, or give `study:` another name"
        raise StudyError(Fault(f"storage.database of the study {study.study!r}", rule, got, remedy))
    if folder.begun:
        begun = parse_study(folder.study_file)
        return _with_stores(study, database or begun.storage.database, uri or begun.tracking.uri)
    database = database or os.environ.get("TUTTI_DATABASE") or None
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or None
    return _with_stores(study, database, uri)


def without_passwords(study: StudyConfig) -> StudyConfig:
    """The study without its stores' passwords, as it is written to its folder, which others may read."""
    database, uri = study.storage.database, study.tracking.uri
    return _with_stores(study, database and without_password(database), uri and without_password(uri))


def _with_stores(study: StudyConfig, database: str | None, uri: str | None) -> StudyConfig:
    storage = study.storage.model_copy(update={"database": database})
    return study.model_copy(update={"storage": storage, "tracking": study.tracking.model_copy(update={"uri": uri})})


def check_stores(study: StudyConfig, folder: StudyFolder) -> None:
    """Checks the stores before anything is started that needs them, also a study's object storage.

    MLflow's store may be unreachable: reports to it are queued in a spool.

    Raises:
        StorageError: if Optuna's database server does not answer or refuses the connection, or object storage cannot
            be written.
        StudyError: if Optuna and MLflow name the same database, or the driver that MLflow needs is not installed, or a
            study on object storage has a store that other machines cannot see.
    """
    uri = study.tracking.uri or ""
    if address := address_of(folder.path):
        if faults := _faults_with_objects(study, address):
            raise StudyError(*faults)
        mirror.check(folder.path)
    if study.storage.database and same_database(study.storage.database, uri):
        rule = "be another database than storage.database: Optuna and MLflow keep their versions in tables of one name"
        remedy = "make a second database on that server, and name it"
        raise StudyError(Fault("tracking.uri", rule, without_password(uri), remedy))
    if study.storage.database:
        from tutti.search.database import reach

        reach(database_url(study, folder))
    if uri.startswith("postgresql") and find_spec("psycopg") is None:
        remedy = "install it with `pip install 'psycopg[binary]>=3.3'`"
        raise StudyError(Fault("tracking.uri", "have its driver, psycopg, installed", "none", remedy))


def _faults_with_objects(study: StudyConfig, address: str) -> list[Fault]:
    """The faults of keys that do not go together with a study on object storage."""
    where, faults = f"where the study is in {address}, so that any machine may go on with it", []
    if not study.storage.database:
        rule, remedy = f"name a PostgreSQL server {where}", "write it like postgresql://USER@HOST/DATABASE"
        faults.append(Fault("storage.database", rule, "nothing", remedy))
    if not (study.tracking.uri or "").startswith(("http", "databricks", *DATABASES[1:])):
        rule, remedy = f"name an MLflow server, or a server's database, {where}", "write it like http://HOST:5000"
        local = "a file of this machine" if study.tracking.uri else "nothing"
        faults.append(Fault("tracking.uri", rule, local, remedy))
    if study.storage.max_gigabytes is not None:
        got = f"{study.storage.max_gigabytes:g}"
        faults.append(Fault("storage.max_gigabytes", f"be left out {where.partition(',')[0]}", got, "take it out"))
    return faults


def tracking_uri(study: StudyConfig, folder: StudyFolder) -> str:
    """The URI of the study's MLflow store, with the password of ``$MLFLOW_TRACKING_URI`` if that is the same store."""
    if not study.tracking.uri:
        return folder.mlflow_uri
    return with_password(study.tracking.uri, os.environ.get("MLFLOW_TRACKING_URI"))


def is_tracked(study: StudyConfig, folder: StudyFolder) -> bool:
    """Whether there is an MLflow store to read; the study folder's own is created with the first run."""
    return bool(study.tracking.uri) or folder.mlflow_file.is_file()


def quiet_mlflow() -> None:
    """Turns MLflow's telemetry off. Call it before mlflow is imported, which is when mlflow reads the setting."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


def open_tracker(study: StudyConfig, folder: StudyFolder) -> QueuedTracker:
    """Opens MLflow behind a durable queue, so that no trial waits for it or fails because of it."""
    place, uri = folder.mlflow_artifacts, tracking_uri(study, folder)
    return queued_tracker(uri, experiment=study.study, owner=folder.owner, artifacts=place, spool=folder.spool)


def queued_tracker(uri: str, *, experiment: str, owner: str | None, artifacts: Path, spool: Path) -> QueuedTracker:
    """Opens MLflow behind a queue on disk; ``artifacts`` is where they go if there is no server."""
    quiet_mlflow()
    from tutti.tracking.mlflow_tracker import MlflowTracker
    from tutti.tracking.queued import QueuedTracker

    # An MLflow server decides where artifacts go. With a database, MLflow would write them to the working directory.
    location = artifacts.as_uri() if uri.startswith(DATABASES) else None
    tracker = QueuedTracker(
        lambda: MlflowTracker(uri, experiment=experiment, owner=owner, artifact_location=location), spool=spool
    )
    tracker.start()
    return tracker


def direct_tracker(study: StudyConfig, folder: StudyFolder) -> Tracker:
    """MLflow without a queue, for a run beside those that a driver writes; raises TrackingError where it fails."""
    quiet_mlflow()
    from tutti.tracking.mlflow_tracker import MlflowTracker

    return MlflowTracker(tracking_uri(study, folder), experiment=study.study, owner=folder.owner)


def open_run(study: StudyConfig, folder: StudyFolder) -> StudyRun:
    """The study's own run in MLflow; its methods raise TrackingError if the store cannot be reached."""
    quiet_mlflow()
    from tutti.tracking.artifacts import StudyRun

    return StudyRun(tracking_uri(study, folder), experiment=study.study, owner=folder.owner)
