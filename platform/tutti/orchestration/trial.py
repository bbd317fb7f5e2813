"""One trial = one Ray Train run, launched from a Ray Tune trainable."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.errors import TrialError
from tutti.tracking.protocol import FOLD_SCORE

if TYPE_CHECKING:
    from tutti.training import EpochReport

POLL_SECONDS = "0.1"  # Ray Train's own 2 s cost each trial some 8 s: each poll takes one report per worker


@dataclass(frozen=True)
class TrialJob:
    """What every trial of a study has in common.

    Attributes:
        study: the validated study as JSON.
        folder: the study's folder, which every node sees.
        retries: how often a trial whose worker died goes on from its last checkpoint.
    """

    study: str
    folder: Path
    workers: int
    cpus_per_worker: int
    gpus_per_worker: float
    retries: int


def run_trial(config: Mapping[str, Any], *, job: TrialJob) -> None:
    """The Tune trainable: runs one Ray Train run; its reports reach Tune through Ray's own relay.

    A trial that cannot succeed when tried again reports ``{"failed": reason}`` and ends in good order, so that Tune's
    retries are left to what they can mend: the loss of this very actor.
    """
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = POLL_SECONDS
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    import ray
    from ray import train, tune
    from ray.train.torch import TorchTrainer
    from ray.train.v2._internal.constants import ENV_VARS_TO_PROPAGATE
    from ray.tune.integration.ray_train import TuneReportCallback

    # Ray Train frees a trial's workers once the State API says that its controller is dead. Not told which cluster to
    # ask, it asks any that it finds on the machine: with two there, it may kill a living trial, or free nothing at all.
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    ENV_VARS_TO_PROPAGATE.add("RAY_ADDRESS")
    per_worker: dict[str, float] = {"CPU": job.cpus_per_worker}
    if job.gpus_per_worker:
        per_worker["GPU"] = job.gpus_per_worker
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={**config, "study": job.study, "folder": str(job.folder), "threads": job.cpus_per_worker},
        scaling_config=train.ScalingConfig(
            num_workers=job.workers, use_gpu=job.gpus_per_worker > 0, resources_per_worker=per_worker
        ),
        run_config=train.RunConfig(
            # Checkpoints are Tutti's own, so nothing is read back from a Train run. A new name for each attempt keeps a
            # snapshot that a kill left half-written from failing every later attempt.
            name=f"{config['key']}-{time.time_ns()}",
            storage_path=str(StudyFolder(job.folder).ray / "trials"),
            callbacks=[TuneReportCallback()],
            failure_config=train.FailureConfig(max_failures=job.retries, controller_failure_limit=job.retries),
        ),
    )
    try:
        trainer.fit()
    except train.WorkerGroupError as error:
        tune.report({"failed": _reason(error.worker_failures)})


def train_worker(config: Mapping[str, Any]) -> None:
    """What every worker of a trial runs. Rank 0's reports are the trial's."""
    import torch
    from ray import train

    from tutti.orchestration.build import fine_tune_once
    from tutti.orchestration.folds import FoldReport

    torch.set_num_threads(config["threads"])
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    main = train.get_context().get_world_rank() == 0
    last: dict[str, Any] = {}  # stays empty where a trial went on from a state saved after its last epoch

    def tell(result: dict[str, Any]) -> None:
        train.report({**result, "at": time.time(), "host": socket.gethostname()} if main else {})

    def on_epoch(report: EpochReport) -> None:
        last.update(_epoch(report))
        if not report.done:  # the last epoch is reported once its predictions lie in the bank: the trial is whole then
            tell(last)

    def on_fold_epoch(fold: int, report: EpochReport) -> None:
        # Below a key of its own: a scheduler looks for `epoch` and `score`, and must see those of whole folds alone.
        tell({"fold": fold, "fold_epoch": _epoch(report)})

    def on_fold(report: FoldReport) -> None:
        last.update(
            epoch=report.fold + 1,
            score=report.score,
            task_scores=dict(report.task_scores),
            metrics={FOLD_SCORE: report.best.score},
            fold=report.fold,
            fold_best={
                "score": report.best.score,
                "epoch": report.best.epoch,
                "task_scores": dict(report.best.task_scores),
            },
        )
        if not report.done:
            tell(last)

    try:
        checkpoint = fine_tune_once(
            StudyConfig.model_validate_json(config["study"]),
            StudyFolder(Path(config["folder"])),
            key=config["key"],
            number=config["number"],
            parameters=config["parameters"],
            on_epoch=on_epoch,
            on_fold_epoch=on_fold_epoch,
            on_fold=on_fold,
            main=main,
        )
    except TrialError as error:  # raised on every rank alike, and no second try would end otherwise
        train.report({"failed": str(error)} if main else {})
        return
    final = {
        **last,
        "final": True,
        "best_score": checkpoint.score,
        "best_epoch": checkpoint.epoch,
        "best_task_scores": dict(checkpoint.task_scores),
        "checkpoint": checkpoint.path,
    }
    tell(final)


def _epoch(report: EpochReport) -> dict[str, Any]:
    """What is told of one epoch."""
    return {
        "epoch": report.epoch,
        "score": report.score,
        "task_scores": dict(report.task_scores),
        "metrics": dict(report.metrics),
        "steps": [(step, dict(values)) for step, values in report.steps],
        "precision": report.precision,
    }


def _reason(failures: Mapping[int, Exception]) -> str:
    """The first worker's failure in one line."""
    if not failures:
        return "the workers died without saying why"
    rank, error = min(failures.items())
    cause = getattr(error, "cause", None) or error
    text = next((line for line in reversed(str(cause).splitlines()) if line.strip()), type(cause).__name__)
    return f"worker {rank}: {type(cause).__name__}: {text.strip()}"[:500]
