"""What happens in a study is told to the store (Optuna), the tracker (MLflow) and whoever watches, from one place."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from types import MappingProxyType
from typing import Any

from ray.tune import Callback
from ray.tune.experiment import Trial

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder
from tutti.errors import StorageError, TuttiError, counted
from tutti.orchestration.broker import EXCHANGED, HALVED, INFEASIBLE, NOTICE, OVERTIME, config_of, shows_fit
from tutti.orchestration.folds import fold_name, forget_states
from tutti.orchestration.objectives import Measure
from tutti.orchestration.seen import Seen
from tutti.orchestration.stopper import STOPPED
from tutti.records import Predictions, Scalar, TrialState
from tutti.search.study_store import StudyStore
from tutti.search.trial_attributes import FITTED, FOLD, TRAINED
from tutti.tracking.protocol import FOLD_SCORE, SCORE, MetricRow, Tracker

_logger = logging.getLogger(__name__)


def _halting(event: Callable[..., None]) -> Callable[..., None]:
    """Keeps what a store raises during one of Tune's events, for ``on_step_end`` to raise it, and hears of no further.

    Raised here, Tune would wrap it into an error of its own, or tell the trial as failed of it.
    """

    @wraps(event)
    def heard(self: StudyLog, *arguments: Any, **named: Any) -> None:
        if self.failure is None:
            try:
                event(self, *arguments, **named)
            except TuttiError as error:
                self.failure = error

    return heard


class StudyLog(Callback):
    """A Tune callback that turns Ray's events into the study's own records.

    Where a record cannot be kept, the study ends with the error that says so. What ran then goes on in a resumed one.

    Args:
        folds, evals_per_epoch: of the study's trials; each fold gets a run below its trial's.
        watch: called after every event, with nothing; reads the store itself.
        picture: makes a PNG of a task's validation predictions, given them and the task's name.
        measure: measures a finished trial by the study's objectives; none where the score is the only one.
        prune: called once a trial has ended, to keep the study's checkpoints within their limit.
        notify: called with what a user should see at once, though it ends no trial.

    Attributes:
        failure: why a record could not be kept, once one could not.
        look: called before a trial whose actor was lost is told as failed; raises a TuttiError where all of them are.
    """

    def __init__(
        self,
        *,
        store: StudyStore,
        tracker: Tracker,
        folder: StudyFolder,
        tags: dict[str, str],
        watch: Callable[[], None],
        picture: Callable[[str, Predictions], bytes],
        folds: bool = False,
        evals_per_epoch: int = 1,
        measure: Measure | None = None,
        prune: Callable[[], object] = lambda: None,
        notify: Callable[[str], None] = _logger.warning,
    ) -> None:
        self._store, self._tracker, self._folder, self._tags = store, tracker, folder, tags
        self._folds, self._evals_per_epoch, self._measure = folds, evals_per_epoch, measure
        self._watch, self._picture, self._prune, self._notify = watch, picture, prune, notify
        self._seen: dict[str, Seen] = {}
        self._interrupted: set[str] = set()
        self.failure: TuttiError | None = None
        self.look: Callable[[], None] = lambda: None
        self._drawing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tutti-pictures")

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune writes a snapshot of all it was given, and no run ever reads it back."""
        return {}

    @_halting
    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        key = trial.config["key"]
        if key in self._seen:  # the same trial, tried again
            return
        place = self._folder.trial(key)
        self._begin(
            trial.config,
            {"tutti.ray_trial": trial.trial_id, "tutti.checkpoint": str(place if self._folds else place / "best")},
        )
        self._watch()

    def _begin(self, config: Mapping[str, Any], tags: Mapping[str, str] = MappingProxyType({})) -> None:
        """Begins the trial's run or goes on in it, and in that of the fold that an earlier run was training."""
        key = config["key"]
        seen = self._seen[key] = Seen(config.get(TRAINED, 0.0), halved=config.get(HALVED), fitted=config.get(FITTED))
        parameters: dict[str, Scalar] = config["parameters"]
        tags = {**self._tags, **tags, "tutti.optuna_number": str(config["optuna_number"])}
        self._tracker.start_trial(key, number=config["number"], parameters=parameters, tags=tags)
        if FOLD in config:
            self._start_fold(config, seen, config[FOLD])

    @_halting
    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        key = trial.config["key"]
        seen = self._seen[key]
        if seen.attempt is None:  # it may have waited for its workers
            seen.started = result.get("began", seen.started)
        seen.stopped = result.get(STOPPED)
        if NOTICE in result:
            seen.notices.append(result[NOTICE])
            self._notify(f"{key}: {result[NOTICE]}")
            return
        seen.time(result)
        if "began" in result:
            self._store.bind(key, **{TRAINED: seen.seconds})
        if EXCHANGED in result:
            self._exchange(key, result[EXCHANGED])
        if HALVED in result:
            seen.halved = result[HALVED]
            if EXCHANGED not in result:  # it begins anew; first, for a driver that dies in between
                self._store.forget_reports(key)
                seen.epoch, seen.result = 0, {}
            self._store.bind(key, **{HALVED: seen.halved})
        if result.keys() & {EXCHANGED, HALVED, OVERTIME}:
            return
        if not seen.fitted and seen.fitted is not (fits := shows_fit(result)):
            seen.fitted = fits
            self._store.bind(key, **{FITTED: fits})  # before the report: one without it is of an older study
        if "fold_epoch" in result:
            self._log_fold_epoch(trial, seen, result)
            return
        if "failed" in result:
            seen.failed, seen.infeasible = result["failed"], bool(result.get(INFEASIBLE))
        elif "score" in result:
            if "fold" in result:
                self._end_fold(trial, seen, result)
            self._log_epoch(key, seen, result)
        seen.result, seen.final = result, bool(result.get("final"))
        self._watch()

    def _exchange(self, key: str, told: Mapping[str, Any]) -> None:
        """Puts the donor's state in the place of the trial's own, then keeps that: nobody trains either now."""
        from tutti.training.exchange import take_over

        donor, own = (self._folder.trial(each) / "resume" for each in (told["donor"], key))
        record = self._store.record(key)
        take_over(donor, own, best_score=-math.inf if record.score is None else record.score, exchange=told)
        self._store.exchange(key, **told)
        numbers = {name: value for name, value in told["parameters"].items() if isinstance(value, int | float)}
        metrics = {f"pbt/{name}": float(value) for name, value in numbers.items()}
        self._tracker.log_metrics(key, metrics, step=told["epoch"], at=time.time())
        self._watch()

    def _log_fold_epoch(self, trial: Trial, seen: Seen, result: dict[str, Any]) -> None:
        key = f"{trial.config['key']}/{fold_name(result['fold'])}"
        if key not in seen.folds:  # not in _start_fold: an earlier fold's end that is told again would unsay it
            self._store.bind(trial.config["key"], **{FOLD: result["fold"]})
        self._start_fold(trial.config, seen, result["fold"])
        self._track_epoch(key, result["fold_epoch"], at=result["at"])
        seen.precision = result["fold_epoch"].get("precision")

    def _start_fold(self, config: Mapping[str, Any], seen: Seen, fold: int) -> str:
        """Begins the fold's run or goes on in it, once; its key."""
        key = f"{config['key']}/{fold_name(fold)}"
        if key not in seen.folds:
            place = self._folder.trial(config["key"]) / fold_name(fold) / "best"
            tags = {**self._tags, "tutti.fold": str(fold), "tutti.checkpoint": str(place)}
            self._tracker.start_trial(key, number=config["number"], parameters={}, tags=tags)
            seen.folds.add(key)
        return key

    def _end_fold(self, trial: Trial, seen: Seen, result: dict[str, Any]) -> None:
        """Ends a fold's run; it is started before where an earlier driver did that, or its epochs were lost."""
        key = self._start_fold(trial.config, seen, result["fold"])
        best = result["fold_best"]
        scores = {f"{FOLD_SCORE}/{task}": value for task, value in best["task_scores"].items()}
        metrics = {FOLD_SCORE: best["score"], "best_epoch": best["epoch"] / self._evals_per_epoch, **scores}
        self._tracker.end_trial(
            key, state=TrialState.FINISHED, reason=None, metrics=metrics, tags={"tutti.host": result["host"]}
        )
        seen.folds.remove(key)

    def _log_epoch(self, key: str, seen: Seen, result: dict[str, Any]) -> None:
        epoch = int(result["epoch"])
        try:
            self._store.report(key, epoch=epoch, score=result["score"], task_scores=result["task_scores"])
        except ValueError as error:  # a score that is no number
            seen.failed = str(error)
            return
        self._track_epoch(key, result, at=result["at"])
        seen.epoch, seen.precision = epoch, result.get("precision", seen.precision)

    def _track_epoch(self, key: str, told: dict[str, Any], *, at: float) -> None:
        """An epoch's metrics and those of its steps go to the run ``key``."""
        # The first metric of a run is the one that MLflow compares trials by at first.
        metrics = {"validation_score": told["score"], **told["metrics"]}
        self._tracker.log_metrics(key, metrics, step=int(told["epoch"]), at=at)
        steps = [
            MetricRow({f"train/{name}": value for name, value in values.items()}, step=step, at=at)
            for step, values in told.get("steps", ())
        ]
        self._tracker.log_history(key, steps)

    @_halting
    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        key = trial.config["key"]
        seen = self._seen[key]
        if seen.failed:
            self._end(key, TrialState.FAILED, reason=seen.failed)
        elif seen.final:
            self._finish(key, seen)
        elif seen.epoch or seen.stopped:
            epochs = round(seen.epoch / self._evals_per_epoch, 2)
            done = counted(seen.epoch, "fold") if self._folds else f"epoch {epochs:g}"
            self._end(key, TrialState.STOPPED, reason=f"{seen.stopped or 'fell behind the others'} after {done}")
        else:
            self._end(key, TrialState.FAILED, reason="ended without a single report")

    def _finish(self, key: str, seen: Seen) -> None:
        measured: dict[str, float] = {}
        if self._measure:
            measured = self._measure(key, seconds=seen.seconds, parameters=seen.result.get("parameters"))
        self._end(key, TrialState.FINISHED, measured=measured)

    @_halting
    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.look()
        if trial.config["key"] not in self._seen:  # its actor was lost before it started
            self._begin(trial.config)
        error = trial.get_error()
        lines = str(getattr(error, "cause", None) or error or "the trial's actor died").splitlines()
        self._end(trial.config["key"], TrialState.FAILED, reason=next((x for x in lines if x.strip()), "")[:500])

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Raises what kept a record from being written: Tune lets it pass from here."""
        if self.failure is not None:
            raise self.failure

    def _end(
        self, key: str, state: TrialState, reason: str | None = None, measured: Mapping[str, float] | None = None
    ) -> None:
        seen = self._seen[key]
        measured = measured or {}
        seconds = measured.get("seconds", seen.wall)
        result = seen.result
        finished = state is TrialState.FINISHED
        if finished:
            if not self._folds:  # a report on its way is lost with a worker: the best one must not be
                best = {"epoch": result["best_epoch"], "score": result["best_score"]}
                self._store.report(key, **best, task_scores=result["best_task_scores"])
            self._drawing.submit(self._draw, key).add_done_callback(_warn)
        else:  # it may have been ended between its predictions and its last report: it does not vote
            Bank(self._folder.bank).remove(key)
        self._cut_off_fold(seen, state, reason)
        metrics = {
            "seconds": seconds,
            **measured,
            **(self._kept(result) if finished else self._best(key, result)),
        }
        tags = {"tutti.host": result["host"]} if "host" in result else {}
        tags |= {"tutti.precision": seen.precision} if seen.precision else {}
        tags |= {"tutti.halved_batch": seen.halved} if seen.halved else {}
        tags |= {"tutti.notice": "\n".join(seen.notices)} if seen.notices else {}
        tags |= self._exchanged(key)
        self._tracker.end_trial(key, state=state, reason=reason, metrics=metrics, tags=tags)
        # The store last: a driver that dies before it runs the trial's end again, and telling the tracker twice is
        # harmless.
        last = result.get("best_task_scores", result.get("task_scores")) if self._folds or finished else None
        self._store.finish(
            key,
            state=state,
            score=result.get("best_score", result.get("score")),
            task_scores=last,
            reason=reason,
            seconds=seconds,
            infeasible=seen.infeasible,
            measured=measured,
        )
        self._seen.pop(key, None)  # only now: until its end is kept, it is one to be interrupted
        forget_states(self._folder.trial(key))
        try:
            self._prune()
        except TuttiError as error:  # the next trial's end tries it again
            _logger.warning("The checkpoints are beyond storage.max_gigabytes: %s", error)
        self._watch()

    def _exchanged(self, key: str) -> dict[str, str]:
        """The trials that it went on from, as a tag."""
        said = self._store.record(key).exploited_from
        return {"tutti.exploited_from": said} if said else {}

    def _cut_off_fold(self, seen: Seen, state: TrialState, reason: str | None) -> None:
        """Ends the run of the fold that was being trained, in the way that its trial ended."""
        for fold in sorted(seen.folds):
            self._tracker.end_trial(fold, state=state, reason=reason, metrics={}, tags={})
        seen.folds.clear()

    def _kept(self, result: Mapping[str, Any]) -> dict[str, float]:
        """The epoch whose weights a finished trial kept; with folds, the scores of the out-of-fold rows."""
        score, epoch, scores = (result[f"best_{name}"] for name in ("score", "epoch", "task_scores"))
        return self._ending(score=score, epoch=epoch, task_scores=scores)

    def _best(self, key: str, result: Mapping[str, Any]) -> dict[str, float]:
        """The best epoch so far of a trial that did not finish, as ``tutti trials`` shows it; of folds, the last one.

        Args:
            result: the trial's last report.
        """
        if self._folds and "score" in result:
            return self._ending(score=result["score"], epoch=result["epoch"], task_scores=result["task_scores"])
        record = self._store.record(key)
        if not record.scores_by_epoch:
            return {}
        epoch, score = max(record.scores_by_epoch.items(), key=lambda item: item[1])
        return self._ending(score=score, epoch=epoch, task_scores=record.task_scores)

    def _ending(self, *, score: float, epoch: int, task_scores: Mapping[str, float]) -> dict[str, float]:
        """A trial as a whole, in the tracker's names."""
        told = {"folds": epoch} if self._folds else {"best_epoch": epoch / self._evals_per_epoch}
        return {SCORE: score, **told, **{f"{SCORE}/{task}": value for task, value in task_scores.items()}}

    def _draw(self, key: str) -> None:
        bank = Bank(self._folder.bank)
        for task, parts in bank.parts(key).items():
            if "validation" in parts:
                said = bank.predictions(key, task, "validation")
                kind = "confusion_matrix" if said.values is None else "predicted_and_true"
                self._tracker.log_picture(key, f"{kind}/{task}", self._picture(task, said))

    def stop(self, reason: str) -> None:
        """Ends every trial still running as stopped early, and those too that were asked for and have not begun."""
        for proposal in self._store.unfinished():
            key, why = proposal.key, reason
            if key not in self._seen:
                self._begin(config_of(proposal))
                why += "; it had not gone on" if proposal.fitted or proposal.seconds else "; it had not begun"
            self._end(key, TrialState.STOPPED, why)

    def interrupt(self, reason: str = "the study was interrupted") -> list[str]:
        """Marks every trial still running as interrupted in the tracker; in the store it stays, to be resumed.

        Those too that an earlier run left, and that have not gone on in this one: killed, it told nobody.

        Raises:
            ClaimLostError: where another driver has taken the study over. The tracker is told nothing then.
        """
        with suppress(StorageError):  # it may be what the study was interrupted by
            for proposal in self._store.unfinished():
                if proposal.key not in self._seen and proposal.key not in self._interrupted:
                    self._begin(config_of(proposal))
        keys = list(self._seen)
        self._interrupted.update(keys)
        for key in keys:
            seen = self._seen.pop(key)
            self._cut_off_fold(seen, TrialState.INTERRUPTED, reason)
            metrics = {"seconds": seen.wall}
            with suppress(StorageError):
                metrics |= self._best(key, seen.result)
            self._tracker.end_trial(key, state=TrialState.INTERRUPTED, reason=reason, metrics=metrics, tags={})
        return keys

    def close(self) -> None:
        """Waits for the last pictures."""
        self._drawing.shutdown(wait=True)


def _warn(drawing: Future[None]) -> None:
    """A picture that could not be drawn costs the trial nothing, but is not passed over in silence."""
    if error := drawing.exception():
        _logger.warning("The pictures of a trial were not drawn: %s", error)
