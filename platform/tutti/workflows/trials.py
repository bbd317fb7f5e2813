"""The trials of a study: as records, as a table, or in MLflow."""

from __future__ import annotations

import signal
from contextlib import closing
from typing import TYPE_CHECKING

from tutti.config.address import to_read, without_password
from tutti.workflows import stores
from tutti.workflows.base import StudyBase
from tutti.workflows.guests import guests
from tutti.workflows.progress import cut_off

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.records import TrialRecord


def is_running(study: StudyBase) -> bool:
    """Whether a process runs the study now. Everything but ``tune``, ``round`` and ``doctor`` works beside it."""
    from tutti.orchestration.upkeep.lock import is_running

    return is_running(study.folder)


def records(study: StudyBase) -> list[TrialRecord]:
    """Every trial of the study so far, in order.

    Raises:
        StudyError: if the study has not begun.
        StorageError: if its database cannot be read.

    Example:
        >>> [record.key for record in study.records() if record.state == "failed"]
    """
    study = study.stored
    with closing(stores.load_store(study.config, study.folder)) as store:
        found = store.records()
    return found if is_running(study) else cut_off(found)


def trials(study: StudyBase) -> DataFrame:
    """``records`` and guests as a table, by key: state, score, ``score/TASK`` of each task and ``score/TASK/SET`` of
    each report set, each parameter, seconds, and as reason why it failed, or where a guest's predictions come from.

    Example:
        >>> study.trials().sort_values("score", ascending=False).head()
    """
    from pandas import DataFrame, Index

    found = records(study)
    sets = dict.fromkeys(name for record in found for name in record.set_scores)
    parameters = dict.fromkeys(name for record in found for name in record.parameters)  # some have keys of their own
    rows = {
        record.key: {
            "state": str(record.state),
            "score": record.score,
            **{f"score/{task}": record.task_scores.get(task) for task in study.config.tasks},
            **{f"score/{name}": record.set_scores.get(name) for name in sets},
            **{name: record.parameters.get(name) for name in parameters},
            "seconds": record.seconds,
            "reason": record.reason,
        }
        for record in found
    }
    for guest in guests(study):
        scores = {f"score/{task}": guest.task_scores.get(task) for task in study.config.tasks}
        rows[guest.key] = {"state": "guest", "score": guest.score, **scores, "reason": guest.source}
    return DataFrame([*rows.values()], index=Index([*rows], name="trial"))


def ui(study: StudyBase, *, port: int = 0, browser: bool = True) -> None:
    """Starts the MLflow UI on 127.0.0.1 on the study's tracking store, prints the address, and waits for Ctrl-C.

    A study that is tracked on a server only gets its address printed.

    Args:
        port: 0 takes a free one.
        browser: opens the address in the desktop's browser, where there is one.

    Raises:
        TrackingError: if the store cannot be read, or the UI does not start.
    """
    from tutti.tracking.links import start_page
    from tutti.tracking.server import open_browser, start_ui, stop_ui, trials_page
    from tutti.tracking.store import experiment_id

    study = study.stored
    folder, console = study.folder, study.console
    uri = to_read(stores.tracking_uri(study.config, folder))
    if uri.startswith(("http://", "https://")):
        page = trials_page(without_password(uri), experiment_id(uri, study.name))
        console.print(f"The study is tracked at {page}")
        open_browser(page, wanted=browser)
        return
    for signal_ in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # closing the terminal must end the server too
        signal.signal(signal_, signal.default_int_handler)
    console.print("Starting MLflow …")
    experiment = experiment_id(uri, study.name)
    process, base = start_ui(uri, folder.mlflow_artifacts.as_uri(), port=port)
    try:
        page = start_page(base, experiment)
        console.print(f"MLflow shows the study at {page}")
        console.print("Ctrl-C ends it.")
        open_browser(page, wanted=browser)
        process.wait()
    except KeyboardInterrupt:
        console.print("MLflow UI ended.")
    finally:
        stop_ui(process)
