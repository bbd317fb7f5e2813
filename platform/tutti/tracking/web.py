"""MLflow's server with one more page, which leads to a study's trials so that their columns stay.

It is an MLflow app: a team's own server has the page too when it is started as ``mlflow server --app-name tutti``.
"""

from __future__ import annotations

import os

import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from mlflow.server import ARTIFACT_ROOT_ENV_VAR, BACKEND_STORE_URI_ENV_VAR
from mlflow.server import fastapi_app as mlflow_app
from mlflow.server.handlers import initialize_backend_stores

from tutti.tracking.links import START, START_MARK, VIEW
from tutti.tracking.server import ARTIFACTS, HOST, PORT, STORE

# MLflow 3.17 applies a shared view on the first load of its address alone; after "Back" or a reload it shows what it
# keeps in the browser, by experiment. So the view is put there first, and with it that the workflow is not that of
# language models and that its assistant need not open by itself. Columns that a user has changed are left as they are.
_PAGE = (
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Trials</title></head><body><p id="said">MARK …</p>
<script>
(async () => {
  const id = location.pathname.split("/").pop(), root = location.pathname.replace(/\\/START\\/[^/]*$/, "");
  const keep = (key, value) => localStorage.getItem(key) ?? localStorage.setItem(key, value);
  try {
    const answer = await fetch(root + "/ajax-api/2.0/mlflow/experiments/get?experiment_id=" + encodeURIComponent(id));
    if (!answer.ok) throw new Error("experiment " + id + ": " + answer.status);
    const tags = (await answer.json()).experiment.tags ?? [];
    const view = tags.find((tag) => tag.key === "mlflow.sharedViewState.VIEW")?.value;
    keep("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true");
    localStorage.setItem("mlflow.workflowType_v1", JSON.stringify("machine_learning"));
    const name = "MLflowLocalStorage-1.1-ExperimentPage-" + JSON.stringify([id]) + "-ReactComponentState";
    if (view) keep(name, view);
    const run = location.hash ? "/" + encodeURIComponent(location.hash.slice(1)) : "";
    location.replace(root + "/#/experiments/" + encodeURIComponent(id) + "/runs" + run);
  } catch (error) {
    document.getElementById("said").textContent = "The trials cannot be opened: " + error.message;
  }
})();
</script></body></html>
""".replace("START", START)
    .replace("VIEW", VIEW)
    .replace("MARK", START_MARK)
)


def start_page(experiment_id: str) -> HTMLResponse:
    """The page at ``/tutti/EXPERIMENT_ID``, which goes on to the experiment's runs, or the run behind ``#``."""
    return HTMLResponse(_PAGE)


app: FastAPI = mlflow_app.app
# before MLflow's own routes, the last of which answers everything
app.router.routes.insert(0, APIRoute(f"/{START}/{{experiment_id}}", start_page))


def main() -> None:
    """Serves the store that the environment names, on this machine alone, until the process is ended."""
    os.environ[BACKEND_STORE_URI_ENV_VAR] = os.environ[STORE]
    os.environ[ARTIFACT_ROOT_ENV_VAR] = os.environ[ARTIFACTS]
    initialize_backend_stores(os.environ[STORE], None, os.environ[ARTIFACTS])  # a store that cannot be opened ends it
    uvicorn.run(app, host=HOST, port=int(os.environ[PORT]), log_level="warning")


if __name__ == "__main__":
    main()
