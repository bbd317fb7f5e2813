"""Addresses of MLflow's pages."""

from __future__ import annotations

import json

VIEW = "tutti"
"""Name of the kept view that ``runs_page`` opens: MLflow's pages take their columns from a tag of the experiment."""


def runs_page(base_url: str, experiment_id: str) -> str:
    """The page that lists a study's trials with their scores and states, on the MLflow server at ``base_url``.

    Without a page named, MLflow 3 opens an experiment on its traces, where nobody finds a trial.
    """
    return f"{base_url.rstrip('/')}/#/experiments/{experiment_id}/runs?viewStateShareKey={VIEW}"


def kept_view(*, score: str, tags: tuple[str, ...], parent_run: str) -> tuple[str, str]:
    """Tag and value that keep the view with an experiment: best score first, the study's run unfolded.

    The form is that of MLflow 3.17's "share" button (``mlflow.sharedViewState.KEY``, JSON of the page's state).
    """
    columns = [f"metrics.`{score}`", *(f"tags.`{tag}`" for tag in tags)]
    view = {
        "orderByKey": columns[0],
        "orderByAsc": False,
        "selectedColumns": columns,
        "runsExpanded": {parent_run: True},
    }
    return f"mlflow.sharedViewState.{VIEW}", json.dumps(view)
