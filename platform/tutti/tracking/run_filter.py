"""Finds trials by an MLflow filter on tags and parameters, as the search field of MLflow's pages does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.utils import get_results_from_paginated_fn
from mlflow.utils.search_utils import SearchUtils

from tutti.errors import Fault, StudyError
from tutti.tracking.mlflow_tracker import TRIAL, is_owned_by
from tutti.tracking.store import experiment_id, store_faults


def check_filter(wanted: str, *, what: str) -> None:
    """Refuses a filter that MLflow cannot parse, that is empty, or that selects by metrics. It contacts no store.

    Raises:
        StudyError: naming ``what``.
    """
    try:
        clauses = SearchUtils.parse_search_filter(wanted)
    except MlflowException as error:
        raise _parse_error(what, wanted, error) from error
    if not clauses:
        remedy = "write one such as tags.vote = 'yes', or take members.filter out"
        raise StudyError(Fault(what, "select trials", f"{wanted!r}", remedy))
    if metrics := [clause["key"] for clause in clauses if clause["type"] == "metric"]:
        rule = "not select by metrics, for who is chosen by scores looks better on their rows than it is"
        remedy = "use members.top or members.within, which are judged on other rows than they choose on"
        raise StudyError(Fault(what, rule, f"the metric {metrics[0]}", remedy))


def find_trials(uri: str, *, experiment: str, wanted: str, what: str, owner: str | None = None) -> set[str]:
    """Keys of the trials that match a filter; trials with a deleted run are left out.

    Args:
        wanted: the filter in MLflow's syntax: ``tags.vote = 'yes' and params.pooling = 'mean'``.
        owner: the id of the study among those with its name; None if it has no id.

    Raises:
        StudyError: naming ``what``, where the store cannot parse the filter.
        TrackingError: where the store cannot be reached or does not know the study.
    """
    try:
        return set(_runs(uri, experiment_id(uri, experiment), wanted, owner=owner))
    except MlflowException as error:
        raise _parse_error(what, wanted, error) from error


def run_pages(
    uri: str, *, experiment: str, page: Callable[[str, str], str], owner: str | None = None
) -> dict[str, str]:
    """The pages of a study's trials by key.

    Args:
        page: returns a run's page, by the ids of experiment and run.
        owner: as in ``find_trials``.

    Raises:
        TrackingError: where the store cannot be reached or does not know the study.
    """
    place = experiment_id(uri, experiment)
    runs = _runs(uri, place, "", owner=owner)
    return {key: page(place, run.info.run_id) for key, run in runs.items()}


def _runs(uri: str, place: str, wanted: str, *, owner: str | None) -> dict[str, Run]:
    """The runs of an experiment's trials by key, without those of folds; a filter's own fault stays MLflow's."""
    page = partial(MlflowClient(tracking_uri=uri).search_runs, [place], wanted)
    fault: MlflowException | None = None
    runs: list[Run] = []
    with store_faults(uri):
        try:
            runs = get_results_from_paginated_fn(lambda size, token: page(max_results=size, page_token=token), 1000)
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            fault = error
    if fault is not None:
        raise fault
    owned = {run.data.tags[TRIAL]: run for run in runs if TRIAL in run.data.tags and is_owned_by(run, owner)}
    return {key: run for key, run in owned.items() if "/" not in key}


def _parse_error(what: str, wanted: str, error: MlflowException) -> StudyError:
    rule = "be a filter that MLflow understands, such as tags.vote = 'yes' and params.pooling = 'mean'"
    message = error.message.replace("\n", " ").rstrip(".")
    return StudyError(Fault(what, rule, f"{wanted!r} ({message})", "correct it"))
