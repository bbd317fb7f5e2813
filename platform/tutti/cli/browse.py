"""``tutti trials`` and ``tutti ui``: show a study's trials, in the terminal or in MLflow."""

from __future__ import annotations

import dataclasses
import json
import signal
from contextlib import closing
from typing import Annotated

import typer

from tutti.cli import stores
from tutti.cli.console import console
from tutti.config.address import to_read, without_password
from tutti.config.folder import find_study
from tutti.config.load import parse_study

Study = Annotated[str, typer.Argument(metavar="STUDY", help="A study's name or folder.")]


def trials(
    study: Study, as_json: Annotated[bool, typer.Option("--json", help="One JSON array, for programs.")] = False
) -> None:
    """Lists a study's trials: state, score, other objectives, per-task scores, parameters, duration.

    Example: `tutti trials glue_trio`
    """
    from tutti.cli.progress import best_so_far, cut_off, failures, summary, trials_table
    from tutti.orchestration.upkeep.lock import is_running
    from tutti.records import best_trial
    from tutti.search.objectives import pareto_front

    folder = find_study(study)
    config = parse_study(folder.study_file)
    with closing(stores.load_store(config, folder)) as store:
        records = store.records()
    running = is_running(folder)
    if not running:
        records = cut_off(records)
    objectives = config.search.objectives
    front = pareto_front(records, objectives)
    if as_json:
        documents = [dataclasses.asdict(record) for record in records]
        for document in documents:
            del document["last_task_scores"]  # with folds, what a trial that ends otherwise is told by
        if len(objectives) > 1:
            documents = [document | {"front": document["key"] in front} for document in documents]
        typer.echo(json.dumps(documents, indent=2, ensure_ascii=False))
        return
    best = best_so_far(records) if running else best_trial(records)
    table = trials_table(
        records,
        tasks=[*config.tasks],
        best=best,
        title=f"Study {config.study}",
        objectives=objectives,
        front=front,
    )
    console.print(table)
    if len(objectives) > 1:
        keys = ", ".join(front) or "none yet"
        console.print(f"Pareto front (*) of {', '.join(objectives)}: {keys}")
    for line in failures(records):
        console.print(line)
    console.print(summary(records, total=config.search.trials, best=best))


def ui(
    study: Study,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
) -> None:
    """Starts the MLflow UI on 127.0.0.1 on a study's tracking store and prints the address. Ctrl-C ends it.

    Example: `tutti ui glue_trio`
    """
    from tutti.tracking.links import runs_page
    from tutti.tracking.server import start_ui, stop_ui
    from tutti.tracking.store import experiment_id

    folder = find_study(study)
    config = parse_study(folder.study_file)
    uri = to_read(stores.tracking_uri(config, folder))
    experiment = experiment_id(uri, config.study)
    if uri.startswith(("http://", "https://")):
        console.print(f"The study is tracked at {runs_page(without_password(uri), experiment)}")
        return
    for signal_ in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # closing the terminal must end the server too
        signal.signal(signal_, signal.default_int_handler)
    process, base = start_ui(uri, folder.mlflow_artifacts.as_uri(), port=port)
    try:
        console.print(f"MLflow shows the study at {runs_page(base, experiment)}")
        console.print("Ctrl-C ends it.")
        process.wait()
    except KeyboardInterrupt:
        console.print("MLflow UI ended.")
    finally:
        stop_ui(process)
