"""Reaching an MLflow store, and saying its errors plainly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import requests
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException, RestException
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from tutti.config.address import without_password
from tutti.errors import Fault, TrackingError
from tutti.tracking.protocol import RefusedError

_REFUSALS = {"BAD_REQUEST", "INVALID_PARAMETER_VALUE", "RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST"}
_OF_DATABASE = re.compile(r"https://sqlalche\.me/e/\w+/(\w+)")  # SQLAlchemy ends what it says with its error's code
_OF_VALUES = {DataError.code, IntegrityError.code}
_AWAY = {502, 503, 504}


@contextmanager
def store_faults(uri: str) -> Iterator[None]:
    """Turns what MLflow raises into a TrackingError: a RefusedError where trying again cannot help."""
    what = f"the MLflow store {without_password(uri)}"
    try:
        _reach(uri)
        yield
    except MlflowException as error:
        if _is_refusal(error):
            remedy = "see what MLflow says; the study goes on without it"
            raise RefusedError(Fault(what, "take what is tracked", error.message, remedy)) from error
        raise _away(what, error) from error
    except (FileNotFoundError, PermissionError) as error:
        remedy = "see whether the file is there and its folder can be written to"
        raise RefusedError(Fault(what, "take what is tracked", str(error), remedy)) from error
    except (OSError, SQLAlchemyError) as error:  # the exceptions of requests are OSErrors too
        raise _away(what, error) from error


def experiment_id(uri: str, name: str) -> str:
    """The id of the experiment ``name`` in the store at ``uri``.

    Raises:
        TrackingError: where the store cannot be reached, or has no such experiment.
    """
    with store_faults(uri):
        found = MlflowClient(tracking_uri=uri).get_experiment_by_name(name)
    if found is None:
        what = f"the MLflow store {without_password(uri)}"
        raise TrackingError(Fault(what, f"have the experiment {name!r}", "none", "run `tutti tune` first"))
    return found.experiment_id


def _is_refusal(error: MlflowException) -> bool:
    """Whether trying again cannot help.

    Two of MLflow's codes stand for more than that. Its catch-all stands for a connection that broke, for a server that
    failed, and for arguments that its own library refuses before anything is sent: only the last is a refusal. A bad
    request may be any error of its database, of which a server passes on the text alone: only where that cannot take
    what it was given is it a refusal, not where it is read-only for a while or has no connection to spare.
    """
    if error.error_code == "INTERNAL_ERROR":
        return not isinstance(error, RestException) and not isinstance(error.__cause__ or error.__context__, OSError)
    codes = _OF_DATABASE.findall(error.message)
    if error.error_code == "BAD_REQUEST" and codes:
        return codes[-1] in _OF_VALUES  # before the last may stand what was to be kept
    return error.error_code in _REFUSALS


def _reach(uri: str) -> None:
    """Asks a server for a sign of life: MLflow itself would try for minutes before it says that there is none.

    Raises:
        OSError: where nothing answers.
    """
    if not uri.startswith(("http://", "https://")):
        return
    try:
        answer = requests.get(f"{uri.rstrip('/')}/health", timeout=5)
    except requests.exceptions.SSLError:
        return  # it answers; which certificates to trust is told to MLflow, not to this request
    except requests.exceptions.Timeout as error:
        raise TimeoutError("no answer within 5 s") from error
    except requests.exceptions.ConnectionError as error:  # its own text is a line of internals
        raise ConnectionError("nothing that answers") from error
    if answer.status_code in _AWAY:
        raise ConnectionError(f"it answers {answer.status_code} {answer.reason}")


def _away(what: str, error: Exception) -> TrackingError:
    got = str(error).strip().split("\n")[0]
    return TrackingError(Fault(what, "be reachable", got, "see whether the address is right and the server is up"))
