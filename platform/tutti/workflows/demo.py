"""The whole workflow on generated data, offline, on a laptop."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.errors import Fault, StudyError
from tutti.files import new_folder_fault
from tutti.workflows import stores, tune
from tutti.workflows.base import StudyBase
from tutti.workflows.console import console as shared_console
from tutti.workflows.console import program, quiet_console
from tutti.workflows.grading import answers
from tutti.workflows.listing import show_table
from tutti.workflows.pseudo import pseudo_labels
from tutti.workflows.shown import show_card, show_pseudo_labels
from tutti.workflows.vote import ensemble


def run_demo(
    out: Path | str = "tutti-demo", *, seed: int = 0, quiet: bool = False, again: str = "tutti.run_demo()"
) -> Path:
    """Runs the whole job on generated data: three tasks, a small encoder, trials, ensemble, submission, pseudo-labels.

    Called again, it goes on where it was.

    Args:
        out: where everything is written.
        seed: of the generated data.
        again: what its user calls to go on, for messages.

    Returns:
        The study's folder.

    Raises:
        StudyError: if the folder holds somebody's own data, or data of another seed.

    Example:
        >>> study = tutti.open(tutti.run_demo("/tmp/tutti-demo"))
    """
    from tutti.demo.generate import SEED_FILE, write_demo_data
    from tutti.modeling.new_backbone import new_backbone

    began = time.monotonic()
    out, console = Path(out).absolute(), quiet_console() if quiet else shared_console
    data = out / "data"
    if (data / SEED_FILE).is_file():
        _check_seed(data, seed=seed)
    elif fault := new_folder_fault(data):  # somebody's own data
        raise StudyError(replace(fault, remedy="name another folder as --out"))
    else:
        console.print("Generating three tasks: inference, emotion, topic")
        write_demo_data(data, seed=seed)
    if not (data / "backbone").is_dir():
        console.print("Making a small encoder with random weights")
        texts = [*sorted(data.glob("*_train.csv")), *sorted(data.glob("*_unlabeled.csv"))]
        new_backbone(texts=texts, size="tiny", out=data / "backbone")
    config, folder = _study_in(out)
    tune.run(StudyBase(config, folder, console=console, again=lambda **_: again), resume=True)
    study = StudyBase(config, folder, console=console)
    console.rule("Ensemble")
    vote = ensemble(study)
    files = vote.write(out / "submission")
    show_card(console, vote.card)
    for file in files:
        console.print(f"wrote {file}")
    console.rule("Pseudo-labels")
    show_pseudo_labels(console, pseudo_labels(study).write(out / "pseudo-labels"), out / "pseudo-labels")
    console.rule("Every single trial and the vote on the test rows, whose labels no trial saw")
    _compare(study, data / "truth", out / "submission")
    console.print(f"\nDone in {time.monotonic() - began:.0f} s. Written below {out}:")
    for path, what in (
        ("submission/submission.zip", "the submission"),
        ("submission/card.md", "who voted, with what weight, and how good it was"),
        ("pseudo-labels", "training rows for the next round"),
        ("data/study.yaml", "the study file"),
    ):
        console.print(f"  {out / path}  {what}")
    console.print(f"Browse the trials in MLflow:  {program()} ui {shlex.quote(str(folder.path))}")
    return folder.path


def _check_seed(data: Path, *, seed: int) -> None:
    """Raises StudyError if the data was generated with another seed."""
    from tutti.demo.generate import SEED_FILE

    previous = (data / SEED_FILE).read_text(encoding="utf8").strip()
    if previous != str(seed):
        got = f"{seed} where it was {previous}"
        remedy = f"give --seed {previous} to go on there, or another folder as --out"
        raise StudyError(Fault(f"--seed of the demo in {data.parent}", "be that of its data", got, remedy))


def _study_in(out: Path) -> tuple[StudyConfig, StudyFolder]:
    """The demo's study, with its folder below ``out``, set directly because an override would be parsed as YAML."""
    study, _ = stores.read_study_file(out / "data" / "study.yaml", overrides=[])
    study = study.model_copy(update={"storage": study.storage.model_copy(update={"path": out / "studies"})})
    return study, StudyFolder(out / "studies" / study.study)


def _compare(study: StudyBase, truth: Path, submission: Path) -> None:
    """Prints test scores: each trial alone, and the submission as written."""
    from tutti.outputs.formatting import number
    from tutti.tasks.objective import weighted_mean
    from tutti.tasks.scorer import Scorer

    prepared, bank = study.prepared, study.bank
    given = answers(
        study.config, prepared, [f"{task}={truth / task}.csv" for task in prepared.parts], console=study.console
    )
    labels = {task: by_part["test"] for task, by_part in given.items()}
    weights = [task.weight for task in prepared.tasks]
    trials: dict[str, list[float]] = {}
    for record in bank.records():
        trials[record.key] = [
            Scorer.of(task).score(labels[task.name], bank.predictions(record.key, task.name, "test").outputs)
            for task in prepared.tasks
        ]
    ensemble = []
    for task in prepared.tasks:
        lines = (submission / f"{task.name.lower()}_predict.json").read_text(encoding="utf8").splitlines()
        decided = [task.names.index(json.loads(line)["label"]) for line in lines]
        ensemble.append(Scorer.of(task)(labels[task.name], np.array(decided)))
    ranked = sorted(trials.items(), key=lambda item: -weighted_mean(item[1], weights))
    ranked.append(("vote", ensemble))
    rows = [[name, *map(number, scores), number(weighted_mean(scores, weights))] for name, scores in ranked]
    show_table(study.console, ["", *labels, "mean"], rows, last="bold green")
