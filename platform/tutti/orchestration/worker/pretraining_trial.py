"""Trains one trial of a search over a pretraining file, and reports its progress as a study's trials do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.config.folder import StudyFolder, TrialFolder
from tutti.config.pretraining import PretrainingConfig
from tutti.config.study import StudyConfig
from tutti.errors import TrialError
from tutti.files import storage_faults
from tutti.orchestration.broker.messages import Report, TrialConfig
from tutti.orchestration.worker.trial import Reporter
from tutti.records import CheckpointRecord, Usage

if TYPE_CHECKING:
    from tutti.training.pretraining.loop import Progress

LOSS = "held_out_loss"


def corpus_cache(folder: StudyFolder) -> Path:
    """Where the texts of a search are tokenized, once for all of its trials."""
    return folder.path / "corpus"


@dataclass(frozen=True)
class Downstream:
    """A study that backbones are tried on.

    Attributes:
        study: of ``fixed_study``.
        folder: its rows, prepared.
    """

    study: StudyConfig
    folder: StudyFolder


@dataclass(frozen=True)
class PretrainingTrials:
    """What all trials of a search have in common. Called on every worker of a pool, it trains one, as ``train_trial``.

    A finished trial's backbone is ``TrialFolder.best``, that of its last step.

    Attributes:
        downstream: by whose score trials are compared; None for the held-out loss.
    """

    run: PretrainingConfig
    downstream: Downstream | None = None

    def __call__(
        self, study: StudyConfig, folder: StudyFolder, config: TrialConfig, *, tell: Callable[[Report], bool]
    ) -> None:
        """Trains a trial on every rank, from its last saved state if there is one.

        Raises:
            Stopped: on every rank, if ``tell`` returns false.
        """
        from tutti.training.machine.ranks import from_rank_zero
        from tutti.training.pretraining.run import TextFiles, pretrain

        place, known = folder.trial(config["key"]), config["resumption"]
        from_rank_zero(lambda: _clear(place, states=known.begins_anew))
        run = self.run.with_point(config["parameters"])
        if known.halved is not None and run.batch_size > 1:
            halves = {"batch_size": run.batch_size // 2, "accumulation": 2 * run.accumulation}
            run = run.model_copy(update=halves)
        every, _ = run.trial_evaluations
        # As often reported as evaluated: an evaluation that comes first is that of the state that the trial resumes.
        numbers = {"evaluate_steps": every, "log_steps": min(run.log_steps, every)}
        settings = run.settings.model_copy(update={**numbers, "keep_every": every if self.downstream else 0})
        trial = _Trial(config, place, self.downstream, Reporter(tell, max_hours=study.search.max_trial_hours), every)
        try:
            pretrain(
                backbone=run.backbone,
                texts=TextFiles.of(run, cache=corpus_cache(folder)),
                out=trial.out,
                settings=settings,
                objective=run.objective,
                on_progress=trial.on_progress,
                on_notice=trial.reporter.on_notice,
            )
        except TrialError as error:  # raised on every rank alike
            trial.reporter.fail(error)
            return
        from_rank_zero(lambda: trial.out.rename(place.best))
        trial.finish()


class _Trial:
    """One trial while it trains.

    Attributes:
        out: the backbone, as long as it is not reported; beside it are the run's states, removed with this folder.
    """

    def __init__(
        self, config: TrialConfig, place: TrialFolder, downstream: Downstream | None, reporter: Reporter, every: int
    ) -> None:
        self._config, self._place, self._downstream, self._every = config, place, downstream, every
        self.reporter, self.out = reporter, place.resume / "backbone"
        self._is_first = True
        self._logged: list[tuple[int, dict[str, float]]] = []
        self._number, self._score, self._scores = 0, 0.0, dict[str, float]()

    def on_progress(self, progress: Progress) -> None:
        """Called on every rank; reports evaluations, and whether the trial's time is over."""
        is_last = progress.step == progress.steps
        if not progress.held_out:
            self._is_first = False
            self._logged.append((progress.step, dict(progress.measures)))
            self.reporter.on_step()
            return
        if not (is_last or progress.step % self._every == 0):  # at the end of an epoch
            return
        from tutti.training.loop.report import EpochReport

        self._number = -(-progress.step // self._every)
        self._scores = {LOSS: progress.measures[LOSS]}
        self._score = -progress.measures[LOSS]
        if self._downstream:
            self._try(self._downstream, progress.step)
        report = EpochReport(
            epoch=self._number,
            score=self._score,
            task_scores=self._scores,
            metrics=dict(progress.measures),
            steps=tuple(self._logged),
            whole=True,
            done=is_last,
            precision="",
            repeated=self._is_first,
        )
        self._is_first, self._logged = False, []
        self.reporter.on_epoch(report)

    def _try(self, downstream: Downstream, step: int) -> None:
        from tutti.orchestration.worker.probe import probe
        from tutti.training.machine.ranks import from_rank_zero
        from tutti.training.pretraining.kept import kept_backbones

        backbone = kept_backbones(self.out)[step]
        study = downstream.study
        key = f"{self._config['key']}-{step}"
        seed = int(study.training.get("seed", 0))
        made = probe(study, downstream.folder, backbone=backbone, seed=seed, key=key)
        from_rank_zero(lambda: shutil.rmtree(backbone, ignore_errors=True))
        self._score, self._scores = made.score, {**made.task_scores, **self._scores}

    def finish(self) -> None:
        best = str(self._place.best)
        record = CheckpointRecord(
            self._config["key"], self._config["number"], self._number, self._score, self._scores, best, usage=Usage()
        )
        self.reporter.finish(record)


def _clear(place: TrialFolder, *, states: bool) -> None:
    """Removes what an earlier attempt left but did not report, and ``states`` of other batches."""
    with storage_faults(place.path):
        for folder in (place.best, place.resume / "backbone", *([place.resume] if states else [])):
            if folder.is_dir():
                shutil.rmtree(folder)
