"""``tutti tune``: runs a study, or a search over a pretraining file."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tutti.cli.options import Overrides, Resume, StudyFile, Trials, going_on, interruptible
from tutti.cluster.shipped import SUBMITTED
from tutti.config.pretraining import is_pretraining_file
from tutti.workflows.console import program
from tutti.workflows.study import Study, overrides_without_passwords
from tutti.workflows.tune import budget
from tutti.workflows.tune_pretraining import tune_pretraining


def tune(study_file: StudyFile, trials: Trials = None, overrides: Overrides = None, resume: Resume = False) -> None:
    """Runs a study: trials on Ray, searched by Optuna, logged to MLflow.

    Of a pretraining file with a search space, trials pretrain, and the best one's backbone is left in `out`.

    Runs on the cluster that RAY_ADDRESS names, otherwise on a Ray of its own on this machine.

    Example: `tutti tune examples/glue_trio.yaml --trials 12 --set training.max_length=96`
    """
    settings = overrides or []
    if is_pretraining_file(study_file):
        again = partial(command_to_go_on, study_file, overrides=settings)
        with interruptible(going_on(again)):
            tune_pretraining(study_file, trials=trials, resume=resume, overrides=settings)
        return
    count = None if trials is None else budget(trials, study_file, overrides=settings)
    total = [] if count is None else [f"search.trials={count}"]
    study = Study(study_file, overrides=[*settings, *total])
    study.again = partial(command_to_go_on, study_file, trials=count, overrides=settings)
    with interruptible(going_on(study.again)):
        study.tune(resume=resume)


def command_to_go_on(
    study_file: Path, *, trials: int | None = None, overrides: Sequence[str] = (), but: str = ""
) -> str:
    """The command that resumes a study as it was started, without any override of the key ``but``.

    In a job of ``tutti submit``, that command, since the job's own study file is out of its user's reach.
    """
    command = f"{program()} tune {shlex.quote(str(study_file))}"
    if submitted := os.environ.get(SUBMITTED):
        command, overrides = json.loads(submitted)
    settings = [text for text in overrides_without_passwords(overrides) if text.partition("=")[0].strip() != but]
    options = [*(["--trials", str(trials)] if trials else [])]
    options += [word for setting in settings for word in ("--set", setting)]
    return f"{command} {shlex.join(['--resume', *options])}"
