"""Opens a study's stores: its file and folder, Optuna's database and MLflow's tracking store."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.config.address import same_database, with_password, without_password
from tutti.config.conditions import fixed_values
from tutti.config.folder import StudyFolder, find_study, studies_folder
from tutti.config.load import load_study, parse_study
from tutti.config.study import StudyConfig
from tutti.data.prepare import Prepared, load_prepared
from tutti.errors import Fault, StudyError
from tutti.files import write_whole
from tutti.records import Finding, TrialRecord

if TYPE_CHECKING:
    from tutti.search.study_store import StudyStore
    from tutti.search.warm_start import OlderStudy
    from tutti.tracking.protocol import Tracker

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")  # address schemes that MLflow opens as a database


def read_study_file(file: Path, *, overrides: Sequence[str], shared: bool = False) -> tuple[StudyConfig, StudyFolder]:
    """The validated study and the folder it lives in, with ``storage.path`` absolute.

    Args:
        shared: whether other machines have to see the folder, so that it may not be this one's by default.

    Raises:
        ConfigError: with every fault of the file.
        StudyError: where the folder has to be shared and none is named.
    """
    from tutti.training import check_training

    study = load_study(
        file,
        overrides=overrides,
        check_training=lambda training, space, name: check_training(training, search_space=space, file=name),
    )
    if shared and study.storage.path is None and not os.environ.get("TUTTI_STUDIES"):
        rule, remedy = "name the folder of studies on a cluster", "set `storage.path` to a folder that every node sees"
        raise StudyError(Fault(f"{file}: storage.path", rule, "nothing", remedy))
    path = (study.storage.path or studies_folder()).absolute()
    study = study.model_copy(update={"storage": study.storage.model_copy(update={"path": path})})
    return study, StudyFolder(path / study.study)


def open_folder(name: str) -> tuple[StudyConfig, StudyFolder, Prepared]:
    """A study that ``tutti tune`` made, by name or folder."""
    folder = find_study(name)
    study = parse_study(folder.study_file)
    return study, folder, load_prepared(folder.data)


def load_store(study: StudyConfig, folder: StudyFolder, *, mend: bool = False) -> StudyStore:
    """The study's trials, to read, or to ``mend``."""
    from tutti.search.study_store import StudyStore

    return StudyStore.load(database_url(study, folder), name=study.study, mend=mend)


def load_begun_store(study: StudyConfig, folder: StudyFolder) -> StudyStore | None:
    """The study's trials, to read; none where its first start died before it had made its place for them.

    Raises:
        StudyError: where the server's database that they were in has them no more.
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
    """The study's trials, to run more of them."""
    from tutti.search.study_store import StudyStore

    search, owner = study.search, None
    if not folder.begun and folder.owner is None:  # before anything on a server is its own
        write_whole(folder.owner_file, f"{uuid.uuid4()}\n")
    if study.storage.database:
        owner = _owner(folder) or folder.owner
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
    )
    if owner and not folder.database_file.is_file():
        write_whole(folder.database_file, json.dumps({"study": owner}) + "\n")
    return store


def _owner(folder: StudyFolder) -> str | None:
    """What the study is known by among others of its name in a server's database; none before it has begun there."""
    try:
        return str(json.loads(folder.database_file.read_bytes())["study"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        got, remedy = "another content", "restore it from a copy of the study's folder"
        raise StudyError(Fault(str(folder.database_file), "be as it was written", got, remedy)) from error


def database_url(study: StudyConfig, folder: StudyFolder) -> str:
    """Optuna's database of a study.

    The study's folder keeps no password: where none is given anew, it is that of the same address in
    ``$TUTTI_DATABASE``, or what PostgreSQL's own clients find.
    """
    if study.storage.database is None:
        return folder.optuna_url
    return with_password(study.storage.database, os.environ.get("TUTTI_DATABASE"))


def count_trials(study: StudyConfig, folder: StudyFolder) -> int:
    """How many trials a study has, those that were cut off too."""
    store = load_begun_store(study, folder)
    if store is None:
        return 0
    try:
        return len(store.records())
    finally:
        store.close()


def fitting_trials(study: StudyConfig, folder: StudyFolder) -> dict[str, int]:
    """Of each older study that this one starts warm from, how many trials its search space could draw.

    Raises:
        StudyError: where one of them has none.
        StorageError: where a database cannot be read.
    """
    if not study.search.warm_start:
        return {}
    from tutti.search.warm_start import fitting_trials

    fixed = fixed_values(study.training)
    given: dict[str, Any] = {"fixed": fixed, "objectives": study.search.objectives}
    return {
        older.name: len(fitting_trials(older, study.search_space, **given)) for older in _older_studies(study, folder)
    }


def _older_studies(study: StudyConfig, folder: StudyFolder) -> list[OlderStudy]:
    """Those that a study starts warm from; one that has begun has their trials, and asks for none that is gone."""
    from tutti.search.warm_start import OlderStudy

    found = []
    for place in map(Path, study.search.warm_start):
        if folder.begun and not StudyFolder(place).study_file.is_file():
            continue
        older = parse_study(StudyFolder(place).study_file)
        found.append(OlderStudy(older.study, database_url(older, StudyFolder(place)), fixed_values(older.training)))
    return found


def with_stores(study: StudyConfig, folder: StudyFolder) -> StudyConfig:
    """The study with the stores that its file leaves open.

    They are those that it has begun with, whatever is set today: its trials and their runs would be split. One that is
    new has ``$TUTTI_DATABASE`` and MLflow's own ``$MLFLOW_TRACKING_URI``.

    Raises:
        StudyError: where the study has begun in one database, and its file now names another kind of one.
    """
    database, uri = study.storage.database, study.tracking.uri
    if database and folder.optuna_file.is_file():
        rule, got = "stay as it was when the study is resumed", f"{database} where its trials are in the study's folder"
        remedy = "remove it, or give `study:` another name"
        raise StudyError(Fault(f"storage.database of the study {study.study!r}", rule, got, remedy))
    if folder.begun:
        begun = parse_study(folder.study_file)
        return _with_stores(study, database or begun.storage.database, uri or begun.tracking.uri)
    found = (os.environ.get(name) or None for name in ("TUTTI_DATABASE", "MLFLOW_TRACKING_URI"))
    return _with_stores(study, *(given or other for given, other in zip((database, uri), found, strict=True)))


def without_passwords(study: StudyConfig) -> StudyConfig:
    """The study as its folder keeps it, which others may read."""
    given = (study.storage.database, study.tracking.uri)
    return _with_stores(study, *(address and without_password(address) for address in given))


def _with_stores(study: StudyConfig, database: str | None, uri: str | None) -> StudyConfig:
    storage = study.storage.model_copy(update={"database": database})
    return study.model_copy(update={"storage": storage, "tracking": study.tracking.model_copy(update={"uri": uri})})


def check_stores(study: StudyConfig, folder: StudyFolder) -> None:
    """Finds that a server's database is away before anything is started for it.

    Raises:
        StorageError: where Optuna's does not answer, or refuses. MLflow's may be away: what it is to be told waits.
        StudyError: where both are the same database, or the driver that MLflow needs is not installed.
    """
    uri = study.tracking.uri or ""
    if study.storage.database and same_database(study.storage.database, uri):
        rule = "be another database than storage.database: Optuna and MLflow keep their versions in tables of one name"
        remedy = "make a second database on that server, and name it"
        raise StudyError(Fault("tracking.uri", rule, without_password(uri), remedy))
    if study.storage.database:
        from tutti.search.database import reach

        reach(database_url(study, folder))
    if uri.startswith("postgresql") and find_spec("psycopg") is None:
        remedy = "install it with `pip install 'tutti[postgres]'`"
        raise StudyError(Fault("tracking.uri", "have its driver, psycopg, installed", "none", remedy))


def tracking_uri(study: StudyConfig, folder: StudyFolder) -> str:
    """The study's MLflow store, its password from ``$MLFLOW_TRACKING_URI`` where that is the same store."""
    if not study.tracking.uri:
        return folder.mlflow_uri
    return with_password(study.tracking.uri, os.environ.get("MLFLOW_TRACKING_URI"))


def is_tracked(study: StudyConfig, folder: StudyFolder) -> bool:
    """Whether there is a store to look into; one of the study's own comes with its first run."""
    return bool(study.tracking.uri) or (folder.path / "mlflow.db").is_file()


def run_findings(
    study: StudyConfig, folder: StudyFolder, trials: Sequence[TrialRecord], *, complete: bool
) -> list[Finding]:
    """What is wrong with the study's runs in MLflow; nothing where it has no store of its own yet."""
    if not is_tracked(study, folder):
        return []
    quiet_mlflow()
    from tutti.tracking.mending import run_findings

    uri = tracking_uri(study, folder)
    return run_findings(
        uri, experiment=study.study, owner=folder.owner, folder=folder.path, trials=trials, complete=complete
    )


def quiet_mlflow() -> None:
    """Nothing is sent to anybody. Read when mlflow is imported."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


def open_tracker(study: StudyConfig, folder: StudyFolder) -> Tracker:
    """MLflow behind a durable queue, so that no trial waits for it or dies of it."""
    quiet_mlflow()
    from tutti.tracking.mlflow_tracker import MlflowTracker
    from tutti.tracking.queued import QueuedTracker

    uri = tracking_uri(study, folder)
    # A server keeps files where it says; a database keeps none, and MLflow would put them where the command was called.
    artifacts = folder.mlflow_artifacts.as_uri() if uri.startswith(_DATABASES) else None
    tracker = QueuedTracker(
        lambda: MlflowTracker(uri, experiment=study.study, owner=folder.owner, artifact_location=artifacts),
        spool=folder.path / "tracking.jsonl",
    )
    tracker.start()
    return tracker
