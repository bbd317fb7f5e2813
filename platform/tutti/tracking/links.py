"""Addresses of MLflow's pages, and the default view of a list of trials."""

from __future__ import annotations

import json
from collections.abc import Sequence

VIEW = "tutti"
"""Name of the shared view that ``runs_page`` opens. MLflow reads its columns from a tag of the experiment."""

START = "tutti"
"""First part of the path of ``start_page``."""

START_MARK = "Opening the trials"
"""Text of that page. MLflow answers unknown paths with pages of its own."""

_LIMIT = 5000  # characters of an experiment's tag
_NAME, _CREATED, _DURATION = (
    "attributes.`Run Name`",
    "runDateAndNestInfo",
    "duration",
)  # columns that MLflow always shows
# Pixels. By default a third of a screen of 1,280 goes to the name and the age of a trial, and no parameter is visible.
_WIDTHS = {_NAME: 90, _CREATED: 130, _DURATION: 80}
_FIRST = {"tags": 105, "metrics": 80}


def start_page(base_url: str, experiment_id: str, run_id: str = "") -> str:
    """URL of the page that leads to a study's trials, on a server with ``tutti.tracking.web`` at ``base_url``.

    The trials' columns then stay, however one moves between MLflow's pages.

    Args:
        run_id: of the run to which it leads instead.
    """
    return f"{base_url.rstrip('/')}/{START}/{experiment_id}" + (f"#{run_id}" if run_id else "")


def runs_page(base_url: str, experiment_id: str) -> str:
    """URL of the page that lists a study's trials with their scores and states, on any MLflow server at ``base_url``.

    It names the page and the workflow, because MLflow 3 otherwise opens an experiment on its traces, and shows the
    navigation for language models. Once a user leaves the page, MLflow forgets both.
    """
    query = f"viewStateShareKey={VIEW}&workflowType=machine_learning"
    return f"{base_url.rstrip('/')}/#/experiments/{experiment_id}/runs?{query}"


def run_page(experiment_id: str, run_id: str) -> str:
    """URL of a run's page, relative to the server."""
    return f"#/experiments/{experiment_id}/runs/{run_id}"


def shared_view(*, first: Sequence[str], then: Sequence[str], last: Sequence[str]) -> tuple[str, str]:
    """Name and value of the experiment tag that stores the view, sorted by score, best first.

    The format is that of the "share" button of MLflow 3.17 (``mlflow.sharedViewState.KEY``, the page's state as JSON).
    It stores the columns and their order, but not which runs are pinned or expanded.

    Args:
        first: columns as ``metrics.NAME``, ``params.NAME`` or ``tags.NAME``, followed by the trials' duration. The view
            is sorted by the first metric among them.
        then: further columns; the last ones are left out if the tag would exceed MLflow's limit.
        last: final columns.
    """
    for count in range(len(then), -1, -1):
        value = _view([*map(_quoted, first)], [*map(_quoted, [*then[:count], *last])])
        if len(value) <= _LIMIT:
            break
    return f"mlflow.sharedViewState.{VIEW}", value


def _view(first: list[str], rest: list[str]) -> str:
    state = {
        "orderByKey": next(name for name in first if name.startswith("metrics.")),
        "orderByAsc": False,
        "selectedColumns": [*first, *rest],
        "columnOrder": [_NAME, _CREATED, *first, _DURATION, *rest],
        "columnWidths": _WIDTHS | {name: _FIRST[name.partition(".")[0]] for name in first},
    }
    return json.dumps(state, ensure_ascii=False, separators=(",", ":"))


def _quoted(column: str) -> str:
    kind, _, name = column.partition(".")
    return f"{kind}.`{name}`"
