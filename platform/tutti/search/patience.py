"""Waits for the server of a database that is away for a moment."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.exc import InterfaceError, OperationalError, PendingRollbackError

from tutti.errors import StorageError
from tutti.search.database import delete_draw
from tutti.search.grid import PROPOSED
from tutti.search.warm_start import is_older

if TYPE_CHECKING:
    from tutti.search.study_store import StudyStore

_AWAY = ("08", "57P")  # classes of PostgreSQL's codes: of the connection, and of a server that is stopped or started
_AGAIN_SECONDS = 1.0  # between two attempts to reach it
_logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
Store = TypeVar("Store", bound="StudyStore")


def is_away(error: StorageError) -> bool:
    """Whether a server did not answer, was being restarted or broke the connection, so that it may be back soon."""
    cause = error.__cause__
    if isinstance(cause, StorageInternalError):
        cause = cause.__cause__
    if isinstance(cause, PendingRollbackError):  # of the next statement over a connection that was broken
        return True
    if not isinstance(cause, OperationalError | InterfaceError) or type(cause.orig).__module__.startswith("sqlite3"):
        return False
    state = getattr(cause.orig, "sqlstate", None)
    return state is None or state.startswith(_AWAY)


def patiently(method: Callable[Concatenate[Store, P], T]) -> Callable[Concatenate[Store, P], T]:
    """Has a method wait while the server of its database is away, for at most the store's ``patience``.

    It is called anew, so calling it twice must be as good as once.
    """

    @wraps(method)
    def call(self: Store, *args: P.args, **kwargs: P.kwargs) -> T:
        until = math.inf
        while True:
            try:
                return method(self, *args, **kwargs)
            except StorageError as error:
                if not self.patience or not is_away(error) or time.monotonic() > until:
                    raise
                if until == math.inf:
                    until = time.monotonic() + self.patience
                    _logger.warning("%s Waiting for it for at most %g s.", error, self.patience)
                self.disconnect()
                time.sleep(min(_AGAIN_SECONDS, self.patience))

    return call


def half_asked(study: optuna.Study, storage: RDBStorage, asked: Collection[int]) -> optuna.Trial | None:
    """The trial without parameters that was begun as the server went away; None if there is none.

    Args:
        asked: the numbers of the trials that have their parameters.
    """
    last = next(iter(study.get_trials(deepcopy=False)[-1:]), None)
    if last is None or last.state is not optuna.trial.TrialState.RUNNING or is_older(last):
        return None
    if last.number in asked or PROPOSED in last.user_attrs:
        return None
    delete_draw(storage, last._trial_id)
    return optuna.Trial(study, last._trial_id)
