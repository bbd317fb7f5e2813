"""Access to an MLflow store, with its errors turned into ours."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

import requests
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException, RestException
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from tutti.config.address import answer_of, without_password
from tutti.config.folder import sqlite_url
from tutti.errors import Fault, TrackingError, first_line
from tutti.tracking.protocol import RefusedError

_REFUSALS = {"BAD_REQUEST", "INVALID_PARAMETER_VALUE", "RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST"}
_SQLALCHEMY_CODE = re.compile(r"https://sqlalche\.me/e/\w+/(\w+)")  # SQLAlchemy's messages end with such a link
_INVALID_VALUE_CODES = {DataError.code, IntegrityError.code}
_UNAVAILABLE = {502, 503, 504}
_NO_PLACE = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR}


@contextmanager
def store_faults(uri: str) -> Iterator[None]:
    """Turns MLflow's exceptions into TrackingErrors, and into RefusedErrors where a retry cannot succeed."""
    what = f"the MLflow store {without_password(uri)}"
    try:
        _check_health(uri)
        yield
    except MlflowException as error:
        if _is_refusal(error):
            remedy = "check what MLflow reports; the study continues without it"
            raise RefusedError(Fault(what, "take what is tracked", error.message, remedy)) from error
        raise _unreachable(what, error) from error
    except (OSError, SQLAlchemyError) as error:  # including the exceptions of requests
        if getattr(error, "errno", None) not in _NO_PLACE:
            raise _unreachable(what, error) from error
        remedy = "check whether the file exists and its folder can be written to"
        raise RefusedError(Fault(what, "take what is tracked", str(error), remedy)) from error


def create_whole(uri: str) -> None:
    """Creates the file of a SQLite store, if it is missing, with all of MLflow's tables at once.

    MLflow would make them one by one in place, and a process that is killed meanwhile would leave a file that no MLflow
    can open.
    """
    file = make_url(uri).database if uri.startswith("sqlite:") else None
    if not file or Path(file).exists():
        return
    place = Path(file)
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{place.name}.", suffix=".tmp", dir=place.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        client = MlflowClient(tracking_uri=sqlite_url(temporary))
        client.search_experiments(max_results=1)
        client._tracking_client.store._dispose_engine()
        temporary.chmod(0o644)
        try:
            place.hardlink_to(temporary)  # unlike a rename, it replaces no file that another study has made meanwhile
        except FileExistsError:
            return
        except OSError:  # a file system without such links
            if not place.exists():
                temporary.replace(place)
    finally:
        temporary.unlink(missing_ok=True)


def write_ahead(uri: str) -> None:
    """Puts a SQLite store into WAL mode, in which the study and those who browse it never wait for each other.

    Does nothing to other stores, and to one that another connection uses at this moment: WAL only saves waits.
    """
    if not uri.startswith("sqlite:"):
        return
    if file := make_url(uri).database:
        with closing(sqlite3.connect(file)) as connection, suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA journal_mode=WAL")


def experiment_id(uri: str, name: str) -> str:
    """The id of the experiment ``name`` in the store at ``uri``.

    Raises:
        TrackingError: where the store cannot be reached, or has no such experiment.
    """
    with store_faults(uri):
        experiment = MlflowClient(tracking_uri=uri).get_experiment_by_name(name)
    if experiment is None:
        what = f"the MLflow store {without_password(uri)}"
        raise TrackingError(Fault(what, f"have the experiment {name!r}", "none", "run `tutti tune` first"))
    return experiment.experiment_id


def _is_refusal(error: MlflowException) -> bool:
    """Whether a retry cannot succeed.

    Two of MLflow's error codes are ambiguous. INTERNAL_ERROR is used for a broken connection, for a failed server, and
    for arguments that the client library refuses before sending anything; only the last is a refusal. BAD_REQUEST may
    be any error of the server's database, of which only the text is passed on. It is a refusal where the database
    cannot store the values, but not where it is read-only or out of connections for a while.
    """
    if error.error_code == "INTERNAL_ERROR":
        return not isinstance(error, RestException) and not isinstance(error.__cause__ or error.__context__, OSError)
    codes = _SQLALCHEMY_CODE.findall(error.message)
    if error.error_code == "BAD_REQUEST" and codes:
        return codes[-1] in _INVALID_VALUE_CODES  # earlier links may be part of the logged values
    return error.error_code in _REFUSALS


def _check_health(uri: str) -> None:
    """Checks that a server answers, because MLflow itself would retry for minutes before it raises."""
    if uri.startswith(("http://", "https://")):  # the certificates to trust are MLflow's own matter
        answer_of(f"{uri.rstrip('/')}/health", seconds=5)


def local_folder(location: str) -> Path | None:
    """The folder that an address of artifacts names on this machine; none for another store."""
    parts = urlparse(location)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" and not parts.netloc else None


def upload(client: MlflowClient, run_id: str, file: Path, folder: str) -> None:
    """Uploads a file to a folder of a run's artifacts.

    Raises:
        RefusedError: if the store of the artifacts, which may be another than that of the runs, cannot take it, or is
            the folder of another study, of which this one is a copy, or that was moved: MLflow would make it anew.
    """
    if (place := local_folder(client.get_run(run_id).info.artifact_uri)) is not None:
        recorded = place.parents[1]  # STUDY/mlflow-artifacts/RUN/artifacts
        store = make_url(client.tracking_uri).database if client.tracking_uri.startswith("sqlite:") else None
        own = Path(store or "").with_name(recorded.name)
        gone = not recorded.parent.is_dir()
        if gone or (store and own.is_dir() and own.resolve() != recorded.resolve()):
            rule, got = "be in the study's folder", f"{recorded}, which is " + ("gone" if gone else "another study's")
            raise RefusedError(Fault("the folder of MLflow's artifacts", rule, got, "run `tutti doctor` on the study"))
    try:
        client.log_artifact(run_id, str(file), folder)
    except Exception as error:  # every object store has its own errors, such as for missing credentials
        if isinstance(error, (MlflowException, OSError)) and not _has_refused(error):
            raise
        remedy = "check whether the store of MLflow's artifacts can be written from here"
        raise RefusedError(Fault(f"{folder}/{file.name}", "be kept by MLflow", str(error), remedy)) from error


def _has_refused(error: Exception) -> bool:
    """Whether a server has answered a request with an error that a retry would only repeat."""
    answer = error.response if isinstance(error, requests.HTTPError) else None
    return answer is not None and answer.status_code not in _UNAVAILABLE


def _unreachable(what: str, error: Exception) -> TrackingError:
    got = first_line(error)
    return TrackingError(Fault(what, "be reachable", got, "check whether the address is right and the server is up"))
