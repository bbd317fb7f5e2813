"""Addresses of MLflow's pages, and what they show first."""

from __future__ import annotations

import json
from collections.abc import Sequence

VIEW = "tutti"
"""Name of the kept view that ``runs_page`` opens: MLflow's pages take their columns from a tag of the experiment."""

_LIMIT = 5000  # characters of an experiment's tag
_DURATION = "duration"  # MLflow's own name of a column that is always shown


def runs_page(base_url: str, experiment_id: str) -> str:
    """The page that lists a study's trials with their scores and states, on the MLflow server at ``base_url``.

    Without a page named, MLflow 3 opens an experiment on its traces, where nobody finds a trial; without the workflow
    named, the pages about language models surround it.
    """
    query = f"viewStateShareKey={VIEW}&workflowType=machine_learning"
    return f"{base_url.rstrip('/')}/#/experiments/{experiment_id}/runs?{query}"


def run_page(experiment_id: str, run_id: str) -> str:
    """The page of one run, as a link from another page of the same server."""
    return f"#/experiments/{experiment_id}/runs/{run_id}"


def kept_view(*, first: Sequence[str], then: Sequence[str], last: Sequence[str]) -> tuple[str, str]:
    """Tag and value that keep the view with an experiment: best score first.

    The form is that of MLflow 3.17's "share" button (``mlflow.sharedViewState.KEY``, JSON of the page's state). It
    keeps columns and their order, but not which runs are pinned or unfolded.

    Args:
        first: columns as ``metrics.NAME``, ``params.NAME`` or ``tags.NAME``; the first of all metrics is sorted by. The
            trials' durations stand behind them.
        then: more columns, of which those are left out, from the end, that MLflow has no room for.
        last: columns behind those.
    """
    for kept in range(len(then), -1, -1):
        value = _view([*map(_quoted, first)], [*map(_quoted, [*then[:kept], *last])])
        if len(value) <= _LIMIT:
            break
    return f"mlflow.sharedViewState.{VIEW}", value


def _view(first: list[str], rest: list[str]) -> str:
    state = {
        "orderByKey": next(name for name in first if name.startswith("metrics.")),
        "orderByAsc": False,
        "selectedColumns": [*first, *rest],
        "columnOrder": [*first, _DURATION, *rest],
    }
    return json.dumps(state, ensure_ascii=False, separators=(",", ":"))


def _quoted(column: str) -> str:
    kind, _, name = column.partition(".")
    return f"{kind}.`{name}`"
