"""The study's single source of truth: its trials in one Optuna study in a database, used by ask and tell."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import optuna
from optuna.storages import RDBStorage
from optuna.study._constrained_optimization import _CONSTRAINTS_KEY
from optuna.trial import FrozenTrial

from tutti.config.search_facts import SAMPLERS, Sampler
from tutti.config.space import SearchSpace
from tutti.config.study import Objective
from tutti.errors import Fault, StudyError
from tutti.records import TrialRecord, TrialState
from tutti.search import checks, database
from tutti.search.grid import PROPOSED, Grid, Point, enqueue
from tutti.search.objectives import DIRECTIONS, objective_values
from tutti.search.patience import half_asked, patiently
from tutti.search.samplers import first_generation, make_sampler
from tutti.search.space import distributions, draw
from tutti.search.trial_attributes import (
    ENDING,
    RESUMPTION,
    STATES,
    Proposal,
    Resumption,
    proposal,
    record,
    score_of,
    scores_by_epoch,
    task_scores_of,
    trial_key,
)
from tutti.search.warm_start import OlderStudy, add_older_trials, is_older

# Named as by Trial.set_constraint, which itself works only on a trial that was just asked for.
_CONSTRAINT = f"{_CONSTRAINTS_KEY}:memory"
_RUN_SECONDS = "run_seconds"  # name of the study attribute


class StudyStore:
    """One study in a database. Create it with ``open`` (to run the study) or ``load`` (to read it).

    A trial that has ended never changes: later reports of it are ignored. One driver at a time writes; any number of
    processes may read.

    Methods raise StorageError where the database cannot be read or written.
    """

    def __init__(
        self,
        study: optuna.Study,
        storage: RDBStorage,
        *,
        space: SearchSpace,
        fixed: Mapping[str, Any],
        patience: float = 0.0,
    ) -> None:
        self._study = study
        self._storage = storage
        self._study_id = storage.get_study_id_from_name(study.study_name)
        self._space = space
        self._fixed = fixed
        self.patience = patience
        self._asked: set[int] = set()  # Optuna's numbers of the trials that ``ask`` has returned
        self._ending: str | None = None  # the trial that ``finish`` has not finished with
        self._grid: Grid | None = None
        self._generational = False
        self._claim: database.Claim | None = None
        self._objectives: list[Objective] = checks.objectives_of(study)
        self._older_count = sum(map(is_older, study.get_trials(deepcopy=False)))  # offset of Optuna's trial numbers

    @classmethod
    def open(
        cls,
        url: str,
        *,
        name: str,
        space: SearchSpace,
        sampler: Sampler,
        seed: int,
        objectives: Sequence[Objective] = ("score",),
        fixed: Mapping[str, Any] | None = None,
        enqueued: Sequence[Point] = (),
        older: Sequence[OlderStudy] = (),
        owner: str | None = None,
        begun: bool = True,
        patience: float = 0.0,
    ) -> StudyStore:
        """Opens the study ``name``, or creates it.

        Args:
            url: any SQLAlchemy URL; a missing SQLite file is created, in write-ahead mode.
            sampler: see ``samplers.make_sampler``.
            seed: a study gives the same proposals for the same seed, however often it is resumed, as long as its
                trials run one at a time.
            objectives: the objectives to optimise; ``finish`` stores their values in this order.
            fixed: values that the study sets for all trials, by key; conditions of the space may refer to them.
            enqueued: points that become the study's first trials, in order; keys that they do not name are sampled.
            older: studies whose trials the sampler learns from. Only used while this study has no trials: from then on
                its database holds copies of them.
            owner: in a database that several people share, what distinguishes this study from another with its name.
            begun: whether the study has begun; otherwise what an aborted start has left of it is not used.
            patience: seconds for which a server that is away later on is waited for.

        Raises:
            StudyError: where another driver runs it, its owner, objectives or trials differ, or no older trial fits.
            StorageError: where a database cannot be opened.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with database.faults(url):
            storage = database.open_for_writing(url)
            directions = [DIRECTIONS[objective] for objective in objectives]
            with database.claimed(storage, name) as claim:
                checks.delete_aborted_start(storage, name, owner=owner, begun=begun)
                study = optuna.create_study(
                    storage=storage, study_name=name, directions=directions, load_if_exists=True
                )
                if not study.get_trials(deepcopy=False) and len(objectives) == len(study.directions):
                    checks.set_objectives(study, objectives)
                checks.check_objectives(study, objectives)
                store = cls(study, storage, space=space, fixed=fixed or {}, patience=patience)
                store._claim = claim
                if owner is not None:
                    checks.set_owner(study, owner)
                checks.check_space(study.study_name, store._own_trials(), distributions(space))
                if claim is not None:
                    claim.sign(storage, store._study_id)
                store._begin(sampler, seed=seed, older=older)
                store._complete()
                store._grid = Grid(space, fixed=store._fixed, seed=seed) if sampler == "grid" else None
                trials = store._own_trials()
                enqueue(study, enqueued, space=distributions(space), trials=trials, grid=store._grid)
        return store

    @classmethod
    def load(
        cls, url: str, *, name: str, mend: bool = False, begun: bool = False, owner: str | None = None
    ) -> StudyStore:
        """Opens the study ``name`` to read its ``records``; the database is opened read-only.

        Args:
            mend: whether to open it for writing all the same, to repair its trials; no driver may hold the study then.
            begun: whether the study is known to have been in a database.
            owner: as in ``open``.

        Raises:
            StudyError: where there is no such study, or another process holds it in a server's database.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with database.faults(url):
            storage = database.open_existing(url) if mend else database.open_for_reading(url)
            if storage is None:
                raise checks.no_study(name, "no database at all", begun=begun)
            try:
                study = checks.find(storage, name, owner=owner, begun=begun)
            except StudyError:
                database.close(storage)
                raise
            store = cls(study, storage, space=SearchSpace(), fixed={})
            if mend:
                with database.claimed(storage, name) as store._claim:
                    pass
        return store

    def close(self) -> None:
        """Closes the connections to the database. The store cannot be used afterwards."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None
        database.close(self._storage)

    def disconnect(self) -> None:
        """Gives up the session, which a broken connection leaves in a transaction that has failed."""
        self._storage.remove_session()

    @patiently
    def ask(self) -> Proposal:
        """Starts a new trial, which is running until ``finish``."""
        with self._faults():
            trial = half_asked(self._study, self._storage, self._asked) if self._claim else None  # of a server
            if trial is None:
                if self._grid and (point := self._grid.next(self._own_trials())) is not None:
                    self._study.enqueue_trial(point)
                trial = self._study.ask()
            self._choose(trial)
            self._asked.add(trial.number)
            number = trial.number - self._older_count
        return Proposal(trial_key(number), number, trial.params, optuna_number=trial.number)

    def unfinished(self) -> list[Proposal]:
        """Trials that an earlier driver left running, by number. Raises StorageError as ``records`` does."""
        return [proposal(trial, number) for number, trial in self._running()]

    @patiently
    def keep(self, key: str, resumption: Resumption) -> None:
        """Stores what a later run has to know of a running trial.

        Raises:
            StudyError: where the study has no such trial.
        """
        trial_id, trial = self._trial(key)
        if not trial.state.is_finished():
            self._store_attribute(trial_id, RESUMPTION, asdict(resumption))

    @patiently
    def report(self, key: str, *, epoch: int, score: float, task_scores: Mapping[str, float]) -> None:
        """Records the scores of a running trial after ``epoch``. A repeated report of an epoch is ignored.

        Raises:
            ValueError: where a score is not a finite number; the caller then has to end the trial as failed.
            StudyError: where the study has no such trial.
        """
        for what, value in {"the score": score, **task_scores}.items():
            if not math.isfinite(value):
                raise ValueError(f"{what} of trial {key} after epoch {epoch} is {value}, not a finite number")
        trial_id, trial = self._trial(key)
        if trial.state.is_finished() or epoch in scores_by_epoch(trial):
            return
        # The task scores go first: an epoch whose score is kept has them too, whenever the driver dies.
        kept = {name: float(value) for name, value in task_scores.items()}
        self._store_attribute(trial_id, task_scores_of(epoch), kept)
        if self._objectives != ["score"]:  # Optuna would take a stopped trial's last score for its value
            self._store_attribute(trial_id, score_of(epoch), float(score))
            return
        with self._faults():
            self._storage.set_trial_intermediate_value(trial_id, epoch, float(score))

    @patiently
    def forget_reports(self, key: str) -> None:
        """Deletes the reports of a running trial that starts over and will report other scores for the same epochs.

        Raises what ``keep`` raises.
        """
        trial_id, trial = self._trial(key)
        if not trial.state.is_finished():
            attributes = [name(epoch) for epoch in scores_by_epoch(trial) for name in (score_of, task_scores_of)]
            with self._faults():
                database.delete_reports(self._storage, trial_id, attributes)

    @patiently
    def finish(
        self,
        key: str,
        *,
        state: TrialState,
        score: float | None = None,
        task_scores: Mapping[str, float] | None = None,
        reason: str | None = None,
        seconds: float | None = None,
        infeasible: bool = False,
        measured: Mapping[str, float] | None = None,
    ) -> None:
        """Ends a running trial. To end it twice is an error in the code.

        The value of a finished trial is ``score``, by default its best reported score, or the values of the study's
        objectives. If one of them is missing or not finite, the trial is stored as failed, since Optuna would refuse
        it and leave it running. A trial stopped early is stored as pruned, with its last score.

        Args:
            state: any but RUNNING.
            task_scores: given together with ``score`` where both replace the reports in the trial's record: for a
                finished trial, and with folds, whose reports are not comparable with the trial's score.
            infeasible: whether a failed trial failed because of its parameters, which do not fit into memory. It is
                stored as pruned with a violated constraint, from which samplers learn; from failed trials they do not.
            measured: values of a finished trial's objectives other than the score, by name.

        Raises:
            StudyError: where the study has no such trial.
        """
        trial_id, trial = self._trial(key)
        if trial.state.is_finished() and self._ending == key:
            return  # the server broke the connection once it had stored the end
        self._ending = key
        state = STATES[trial.state].to(state)
        values: dict[str, float] = {}
        if state is TrialState.FINISHED:
            score = max(scores_by_epoch(trial).values(), default=None) if score is None else float(score)
            values, problem = objective_values(self._objectives, {"score": score, **(measured or {})})
            if problem is not None:
                state, reason = TrialState.FAILED, reason or problem
        # The time is in Unix seconds: Optuna's own has no time zone, and is that of whatever machine reads it.
        end: dict[str, object] = {"at": time.time(), "reason": reason, "seconds": seconds}
        if task_scores is not None and score is not None and math.isfinite(score):
            end |= {"score": float(score), "task_scores": dict(task_scores)}
        if state is TrialState.FINISHED and self._objectives != ["score"]:
            end["measured"] = values
        self._store_attribute(trial_id, ENDING, end)
        optuna_state = next(theirs for theirs, ours in STATES.items() if ours is state)
        with self._faults():
            if infeasible:
                self._storage.set_trial_system_attr(trial_id, _CONSTRAINT, 1.0)  # above 0: violated
                optuna_state = optuna.trial.TrialState.PRUNED
            ordered = [values[name] for name in self._objectives] if state is TrialState.FINISHED else None
            self._study.tell(trial.number, ordered, state=optuna_state)
            self._ending = None
            if seconds is not None:
                database.set_duration(self._storage, trial_id, seconds)

    @patiently
    def run_seconds(self) -> float:
        """Total duration of the study's runs so far, in seconds, as last stored by ``keep_run_seconds``."""
        with self._faults():
            return float(self._storage.get_study_user_attrs(self._study_id).get(_RUN_SECONDS, 0.0))

    @patiently
    def keep_run_seconds(self, seconds: float) -> None:
        """Stores the total duration of the study's runs so far."""
        with self._faults():
            self._storage.set_study_user_attr(self._study_id, _RUN_SECONDS, seconds)

    @patiently
    def records(self) -> list[TrialRecord]:
        """Every trial by number, running ones included; no older studies' trials, and no enqueued points."""
        return [record(trial, number) for number, trial in enumerate(self._own_trials()) if trial.state in STATES]

    @patiently
    def record(self, key: str) -> TrialRecord:
        """The record of one trial. Raises StudyError where the study has no such trial."""
        _, trial = self._trial(key)
        return record(trial, trial.number - self._older_count)

    def _own_trials(self) -> list[FrozenTrial]:
        """The trials by number, without those of older studies, which come before all others."""
        with self._faults():
            return [trial for trial in self._study.get_trials(deepcopy=False) if not is_older(trial)]

    def _running(self) -> list[tuple[int, FrozenTrial]]:
        """Number and trial of each running trial."""
        running = optuna.trial.TrialState.RUNNING
        return [(number, trial) for number, trial in enumerate(self._own_trials()) if trial.state is running]

    def _begin(self, sampler: Sampler, *, seed: int, older: Sequence[OlderStudy]) -> None:
        """Sets the study's sampler, and adds the trials of older studies where the study has no trial yet."""
        if not self._own_trials():
            fitting: dict[str, Any] = {"fixed": self._fixed, "objectives": self._objectives}
            add_older_trials(self._study, older, self._space, attributes=first_generation(sampler), **fitting)
        older_trials = [trial for trial in self._study.get_trials(deepcopy=False) if is_older(trial)]
        self._older_count = len(older_trials)
        self._generational = SAMPLERS[sampler].generational
        self._study.sampler = make_sampler(sampler, seed=seed, space=self._space, older=older_trials)

    def _complete(self) -> None:
        """Completes the last step of a driver that died: sampling a trial's parameters, or pruning a violation."""
        for number, trial in self._running():
            if trial.constraints:
                end = trial.user_attrs[ENDING]
                self.finish(
                    trial_key(number),
                    state=TrialState.FAILED,
                    infeasible=True,
                    reason=end["reason"],
                    seconds=end["seconds"],
                )
            elif PROPOSED not in trial.user_attrs:
                # From the first parameter on: a seeded sampler would give the later ones the draws of the earlier ones.
                database.delete_draw(self._storage, trial._trial_id)
                self._choose(optuna.Trial(self._study, trial._trial_id))

    def _choose(self, trial: optuna.Trial) -> None:
        """Samples a new trial's parameters."""
        draw(trial, self._space, fixed=self._fixed)
        if self._generational:  # Optuna does not ask the sampler for a point that was enqueued with all its keys
            trial.relative_params  # noqa: B018
        trial.set_user_attr(PROPOSED, True)

    def _trial(self, key: str) -> tuple[int, FrozenTrial]:
        """The storage's id of a trial, and the trial. It does not check the claim: every write does that itself."""
        with database.faults(self._storage.url):
            try:
                number = int(key.removeprefix("t"))
                if number < 0:
                    raise KeyError(key)
                trial_id = self._storage.get_trial_id_from_study_id_trial_number(
                    self._study_id, number + self._older_count
                )
                return trial_id, self._storage.get_trial(trial_id)
            except (KeyError, ValueError):
                remedy = "use the key that the study gave"
                raise StudyError(Fault(f"the trial {key!r}", "be one of the study", "an unknown key", remedy)) from None

    def _store_attribute(self, trial_id: int, name: str, value: object) -> None:
        with self._faults():
            self._storage.set_trial_user_attr(trial_id, name, value)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        with database.faults(self._storage.url):
            if self._claim is not None:
                self._claim.ensure()
            yield
