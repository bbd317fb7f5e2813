"""What is wrong with a study's runs in MLflow, held against the trials that the study has."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from tutti.records import Finding, TrialRecord, TrialState
from tutti.tracking.mlflow_tracker import PARENT, STATE, STATUS, STUDY, TRIAL, MlflowTracker, is_of
from tutti.tracking.protocol import BEST_SCORE, SCORE, MetricRow, parent_of
from tutti.tracking.spool import undelivered, was_delivered
from tutti.tracking.store import store_faults

_BIN = "deleted in MLflow, which can restore it"
_NOTICE = "told anew by tutti doctor, from the study's database: its times are of then, and it has no other curves"


def run_findings(
    uri: str,
    *,
    experiment: str,
    folder: Path,
    trials: Sequence[TrialRecord],
    complete: bool,
    owner: str | None = None,
) -> list[Finding]:
    """Runs that are gone, do not say what became of their trial, have none, or stand twice. Nobody's are not touched.

    Nothing is written to the store before a finding is mended; what is removed there can be restored.

    Args:
        experiment: the study's name.
        folder: the study's; what was tracked from another one is left to its owner.
        trials: every trial of the study, none of them running: those that were cut off are INTERRUPTED.
        owner: whose study of that name; none of one that began without. Runs of another owner's are not touched.
        complete: whether the study has all its trials, and each has ended.

    Raises:
        TrackingError: where the store cannot be reached.
    """
    with store_faults(uri):
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment)
        if found is not None and found.lifecycle_stage == "deleted":
            remedy = f"restore it (`mlflow experiments restore -x {found.experiment_id}`)"
            return [Finding("MLflow, the study's experiment", "it was deleted", remedy)]
        runs = [] if found is None else _all_runs(client, found.experiment_id)
    own = _Runs(uri, client, experiment, owner, folder, {trial.key: trial for trial in trials})
    return own.findings(runs, ended=TrialState.FINISHED if complete else TrialState.INTERRUPTED)


class _Runs:
    def __init__(
        self,
        uri: str,
        client: MlflowClient,
        experiment: str,
        owner: str | None,
        folder: Path,
        trials: Mapping[str, TrialRecord],
    ) -> None:
        self._uri, self._client, self._experiment, self._owner = uri, client, experiment, owner
        self._folder, self._trials = folder, trials

    def findings(self, runs: Sequence[Run], *, ended: TrialState) -> list[Finding]:
        by_key, deleted = defaultdict[str, list[Run]](list), defaultdict[str, list[Run]](list)
        for run in runs:
            if (key := self._key(run)) is not None:
                (by_key if run.info.lifecycle_stage == "active" else deleted)[key].append(run)
        spool = self._folder / "tracking.jsonl"
        told = not undelivered(spool)  # what waits may be of a run that is not there yet
        if "" not in by_key:
            return [_lost(left=bool(by_key))] if by_key or (told and was_delivered(spool)) else []
        kept: dict[str, str] = {}
        found: list[Finding] = []
        for key in sorted(by_key, key=lambda key: (bool(key) + key.count("/"), key)):
            # The tracker goes on in the oldest run below the kept one of its parent.
            parent = kept.get(parent_of(key)) if key else None
            first, *others = sorted(by_key[key], key=lambda run: run.data.tags.get(PARENT) != parent)
            if key and key.partition("/")[0] not in self._trials:
                found += [self._of_no_trial(run) for run in by_key[key]]
                continue
            kept[key] = first.info.run_id
            found += [self._second(run) for run in others]
            found += self._standing(key, first, parent) if key else self._open(first, ended)
        for trial in self._trials.values():
            if told and trial.key not in by_key:
                below = {key: runs for key, runs in by_key.items() if parent_of(key) == trial.key}
                found += self._missing(trial, deleted, below, parent=kept[""])
        return found

    def _key(self, run: Run) -> str | None:
        """The key that the tracker knows a run by; none for somebody else's."""
        tags = run.data.tags
        if not is_of(run, self._owner):
            return None
        return tags.get(TRIAL, "" if tags.get(STUDY) == self._experiment else None)

    def _of_no_trial(self, run: Run) -> Finding:
        place = Path(run.data.tags.get("tutti.checkpoint", ""))
        if place.is_relative_to(self._folder):
            return Finding(_name(run), "the study has no such trial", _BIN, partial(self._delete, run))
        remedy = "delete it in MLflow where no other study of this name needs it"
        return Finding(_name(run), f"the study has no such trial; it was tracked from {place}", remedy)

    def _second(self, run: Run) -> Finding:
        return Finding(_name(run), "another run has the same key", _BIN, partial(self._delete, run))

    def _missing(
        self,
        trial: TrialRecord,
        deleted: Mapping[str, Sequence[Run]],
        below: Mapping[str, Sequence[Run]],
        *,
        parent: str,
    ) -> list[Finding]:
        """The findings of a trial that has no run, but may have one that was deleted, and folds' runs ``below`` it."""
        if gone := deleted.get(trial.key):
            run = min(gone, key=lambda run: run.data.tags.get(PARENT) != parent)
            folds = [
                each
                for key, runs in deleted.items()
                if parent_of(key) == trial.key and key not in below
                for each in runs
                if each.data.tags.get(PARENT) == run.info.run_id
            ]
            found, restore = "it was deleted, and the study has its trial", partial(self._restore, [run, *folds])
            return [Finding(_name(run), found, "restored", restore), *self._standing(trial.key, run, parent)]
        if trial.state is TrialState.INTERRUPTED and not trial.scores_by_epoch:
            return []  # it may never have begun, and begins its run once it goes on
        mended = "told anew, from what the study's database has of it"
        folds = [run for runs in below.values() for run in runs]
        return [Finding(f"MLflow, trial {trial.key}", "it has no run", mended, partial(self._tell, trial, folds))]

    def _tell(self, trial: TrialRecord, folds: Sequence[Run]) -> None:
        tracker, now = self._tracker(), time.time()
        place = self._folder / "trials" / trial.key
        best = place if any(place.glob("fold-*")) else place / "best"
        tags = {"tutti.checkpoint": str(best), "tutti.notice": _NOTICE}
        tags |= {"tutti.exploited_from": trial.exploited_from} if trial.exchanges else {}
        tracker.start_trial(trial.key, number=trial.number, parameters=trial.parameters, tags=tags)
        with store_faults(self._uri):
            run_id = tracker.run_of(trial.key)
            for fold in folds:
                self._client.set_tag(fold.info.run_id, PARENT, run_id)
        scores = trial.scores_by_epoch.items()
        tracker.log_history(trial.key, [MetricRow({"validation_score": score}, step, now) for step, score in scores])
        seconds = {} if trial.seconds is None else {"seconds": trial.seconds}
        metrics = {**seconds, **trial.measured, **_scores(trial)}
        tracker.end_trial(trial.key, state=trial.state, reason=_reason(trial), metrics=metrics, tags={})

    def _standing(self, key: str, run: Run, parent: str | None) -> list[Finding]:
        """The findings of a run that has a trial."""
        untold = self._untold(key, run)
        return untold if parent in (None, run.data.tags.get(PARENT)) else [self._astray(run, str(parent)), *untold]

    def _astray(self, run: Run, parent: str) -> Finding:
        def attach() -> None:
            with store_faults(self._uri):
                self._client.set_tag(run.info.run_id, PARENT, parent)

        return Finding(_name(run), "it stands below no run of this study", "put below the study's", attach)

    def _open(self, run: Run, ended: TrialState) -> list[Finding]:
        if run.info.status != "RUNNING":
            return []
        scores = [t.score for t in self._trials.values() if t.state is TrialState.FINISHED and t.score is not None]
        best = {BEST_SCORE: max(scores)} if scores else {}
        return [self._to_end(run, "", ended, None, best, "nobody runs the study")]

    def _untold(self, key: str, run: Run) -> list[Finding]:
        """The finding of a run that does not say what became of its trial."""
        name, _, fold = key.partition("/")
        trial = self._trials[name]
        said = (run.info.status, run.data.tags.get(STATE))
        # Of a cut-off trial and of a fold, what stands there may be true too: only that it runs cannot be.
        if said[0] != "RUNNING" and (fold or trial.state is TrialState.INTERRUPTED):
            return []
        if said == (STATUS[trial.state], trial.state.value):
            return []
        metrics = {} if fold else _scores(trial)
        what = f"it says {said[1] or said[0]}, and its trial is {trial.state.value}"
        return [self._to_end(run, key, trial.state, _reason(trial), metrics, what)]

    def _to_end(
        self, run: Run, key: str, state: TrialState, reason: str | None, metrics: Mapping[str, float], found: str
    ) -> Finding:
        def end() -> None:
            self._tracker().end_trial(key, state=state, reason=reason, metrics=metrics, tags={})

        return Finding(_name(run), found, f"told as {state.value}", end)

    def _tracker(self) -> MlflowTracker:
        return MlflowTracker(self._uri, experiment=self._experiment, owner=self._owner)

    def _delete(self, run: Run) -> None:
        with store_faults(self._uri):
            self._client.delete_run(run.info.run_id)

    def _restore(self, runs: Sequence[Run]) -> None:
        with store_faults(self._uri):
            for run in runs:
                self._client.restore_run(run.info.run_id)


def _lost(*, left: bool) -> Finding:
    found = "it is gone, and its trials' runs " + ("are left" if left else "with it")
    remedy = "restore it (`mlflow runs restore`), or resume the study and look again"
    return Finding("MLflow, the study's run", found, remedy)


def _scores(trial: TrialRecord) -> dict[str, float]:
    by_task = {f"{SCORE}/{task}": score for task, score in trial.task_scores.items()}
    return {} if trial.score is None else {SCORE: trial.score, **by_task}


def _reason(trial: TrialRecord) -> str | None:
    return "the study was interrupted" if trial.state is TrialState.INTERRUPTED else trial.reason


def _all_runs(client: MlflowClient, experiment_id: str) -> list[Run]:
    """Deleted ones too; the oldest first, as the tracker looks for them."""
    runs: list[Run] = []
    token = None
    while True:
        page = client.search_runs([experiment_id], "", ViewType.ALL, order_by=["start_time ASC"], page_token=token)
        runs += page
        token = page.token
        if not token:
            return runs


def _name(run: Run) -> str:
    return f"MLflow, run {run.info.run_name} ({run.info.run_id[:8]})"
