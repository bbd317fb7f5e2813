"""Which trials a filter finds: by tag or parameter, as MLflow's own pages find them."""

from __future__ import annotations

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.utils.search_utils import SearchUtils

from tutti.errors import Fault, StudyError
from tutti.tracking.mlflow_tracker import TRIAL, is_of
from tutti.tracking.store import experiment_id, store_faults

_PAGE = 1000  # runs of one answer


def check_filter(wanted: str, *, what: str) -> None:
    """Refuses a filter that MLflow does not understand, or that chooses by scores, without asking a store.

    Raises:
        StudyError: naming ``what``.
    """
    try:
        named = SearchUtils.parse_search_filter(wanted)
    except MlflowException as error:
        raise _not_understood(what, wanted, error) from error
    if metrics := [each["key"] for each in named if each["type"] == "metric"]:
        rule = "name tags and parameters alone, for who is chosen by scores looks better on their rows than it is"
        remedy = "use members.top or members.within, which are judged on other rows than they choose on"
        raise StudyError(Fault(what, rule, f"the metric {metrics[0]}", remedy))


def trials_found(uri: str, *, experiment: str, wanted: str, what: str, owner: str | None = None) -> set[str]:
    """Keys of the trials that a filter finds; of deleted runs none.

    Args:
        wanted: in MLflow's language: ``tags.vote = 'yes' and params.pooling = 'mean'``.
        owner: whose study of that name; none of one that began without.

    Raises:
        StudyError: naming ``what``, where the store does not understand the filter.
        TrackingError: where the store cannot be reached or does not know the study.
    """
    place = experiment_id(uri, experiment)
    client = MlflowClient(tracking_uri=uri)
    found: set[str] = set()
    token = None
    with store_faults(uri):
        while True:
            try:
                page = client.search_runs([place], wanted, max_results=_PAGE, page_token=token)
            except MlflowException as error:
                if error.error_code != "INVALID_PARAMETER_VALUE":
                    raise
                raise _not_understood(what, wanted, error) from error
            found |= {run.data.tags[TRIAL] for run in page if TRIAL in run.data.tags and is_of(run, owner)}
            if not (token := page.token):
                return {key for key in found if "/" not in key}  # the runs of folds stand below their trials


def _not_understood(what: str, wanted: str, error: MlflowException) -> StudyError:
    rule = "be a filter that MLflow understands, such as tags.vote = 'yes' and params.pooling = 'mean'"
    said = error.message.replace("\n", " ").rstrip(".")
    return StudyError(Fault(what, rule, f"{wanted!r} ({said})", "correct it"))
