"""The study's single source of truth: every trial, asked for and told to one Optuna study in a database."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import optuna
from optuna.storages import RDBStorage
from optuna.study._constrained_optimization import _CONSTRAINTS_KEY
from optuna.trial import FrozenTrial

from tutti.config.space import SearchSpace
from tutti.config.study import Objective, Sampler
from tutti.errors import Fault, StudyError
from tutti.records import Scalar, TrialRecord, TrialState
from tutti.search import checks, database
from tutti.search.grid import PROPOSED, Grid, Point, enqueue
from tutti.search.objectives import DIRECTIONS
from tutti.search.samplers import first_generation, make_sampler
from tutti.search.space import distributions, draw
from tutti.search.trial_attributes import (
    ENDING,
    EXCHANGES,
    MEASURED,
    STATES,
    Proposal,
    proposal,
    record,
    reported,
    score_of,
    task_scores_of,
    trial_key,
)
from tutti.search.warm_start import OlderStudy, fitting_trials, is_older, take_over

_CONSTRAINT = f"{_CONSTRAINTS_KEY}:memory"  # as Trial.set_constraint keeps it, which needs a trial that was just asked
_RUN_SECONDS = "run_seconds"  # the study's attribute


class StudyStore:
    """One study, kept in a database, its objectives optimised. Made by ``open`` (to run it) or ``load`` (to read it).

    Nothing changes a trial that has ended: whatever is reported, bound or told afterwards is ignored, so that a driver
    that died may repeat its last calls. One driver at a time writes; any number of readers may look on.
    """

    def __init__(
        self, study: optuna.Study, storage: RDBStorage, *, space: SearchSpace, fixed: Mapping[str, Any]
    ) -> None:
        self._study = study
        self._storage = storage
        self._study_id = storage.get_study_id_from_name(study.study_name)
        self._space = space
        self._fixed = fixed
        self._grid: Grid | None = None
        self._claim: database.Claim | None = None
        self._objectives: list[Objective] = checks.objectives_of(study)
        self._older = sum(map(is_older, study.get_trials(deepcopy=False)))  # Optuna's numbers are so much higher

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
    ) -> StudyStore:
        """Opens the study ``name``, or makes it.

        Args:
            url: any SQLAlchemy URL; a SQLite file is made where there is none, and kept in write-ahead mode.
            sampler: see ``samplers.make_sampler``.
            seed: the same seed from an empty study gives the same proposals. A resumed study counts its trials in, so
                that it does not repeat them.
            objectives: what ``finish`` tells of a trial, in this order.
            fixed: what the study sets for all trials, by key: conditions of the space may ask for it.
            enqueued: points that are the study's first trials, in order; what they do not name is drawn.
            older: studies whose trials the sampler learns from, where this one has no trials yet; later it
                has them by itself.
            owner: of a database that several studies share: what tells this one from another of its name.

        Raises:
            StudyError: where another driver runs the study, it is another owner's, it is kept with other objectives,
                its trials do not fit ``space``, or no trial of an older study does.
            StorageError: where a database cannot be opened.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with database.faults(url):
            storage = database.to_write(url)
            directions = [DIRECTIONS[objective] for objective in objectives]
            with database.claimed(storage, name) as claim:
                if owner is not None:
                    checks.forget_dead_start(storage, name, owner)
                study = optuna.create_study(
                    storage=storage, study_name=name, directions=directions, load_if_exists=True
                )
                if not study.get_trials(deepcopy=False) and list(objectives) != ["score"]:
                    study.set_user_attr(checks.OBJECTIVES, list(objectives))
                checks.check_objectives(study, objectives)
                store = cls(study, storage, space=space, fixed=fixed or {})
                store._claim = claim
                if owner is not None:
                    checks.own(study, owner)
                checks.check_space(study.study_name, store._own_trials(), distributions(space))
                store._begin(sampler, seed=seed, older=older)
                store._complete()
                store._grid = Grid(space, fixed=store._fixed, seed=seed) if sampler == "grid" else None
                trials = store._own_trials()
                enqueue(study, enqueued, space=distributions(space), trials=trials, grid=store._grid)
        return store

    @classmethod
    def load(cls, url: str, *, name: str, mend: bool = False) -> StudyStore:
        """Opens the study ``name`` to read its ``records``; the database is not written to.

        Args:
            mend: whether its trials may be told all the same; nobody else may hold the study then.

        Raises:
            StudyError: where there is no such study, or another process holds it in a server's database.
            StorageError: where the database cannot be read.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with database.faults(url):
            storage = database.to_mend(url) if mend else database.to_read(url)
            if storage is None:
                raise checks.no_study(name, "no database at all")
            try:
                study = optuna.load_study(storage=storage, study_name=name)
            except KeyError:
                raise checks.no_study(name, "a database without it") from None
            store = cls(study, storage, space=SearchSpace(), fixed={})
            if mend:
                with database.claimed(storage, name) as store._claim:
                    pass
        return store

    def close(self) -> None:
        """Gives the database's connections back. The store cannot be used afterwards."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None
        self._storage.remove_session()
        self._storage.engine.dispose()

    def ask(self, **attributes: Scalar) -> Proposal:
        """A new trial, kept as running until ``finish``. ``attributes`` are bound to it as by ``bind``.

        Raises:
            StorageError: where the database cannot be written.
        """
        with self._faults():
            if self._grid and (point := self._grid.next(self._own_trials())) is not None:
                self._study.enqueue_trial(point)
            trial = self._study.ask()
            self._choose(trial, attributes)
            number = trial.number - self._older
        return Proposal(trial_key(number), number, trial.params, optuna_number=trial.number)

    def unfinished(self) -> list[Proposal]:
        """Trials that a driver left running, by number: to be run again as they are. ``ask`` sees them as running.

        Raises:
            StorageError: where the database cannot be read.
        """
        return [proposal(trial, number) for number, trial in self._running()]

    def bind(self, key: str, /, **attributes: Scalar) -> None:
        """Keeps attributes with a running trial, such as the ids that Ray and MLflow know it by.

        Raises:
            StudyError: where the study has no such trial.
            StorageError: where the database cannot be written.
        """
        trial_id, trial = self._trial(key)
        if not trial.state.is_finished():
            self._keep(trial_id, attributes)

    def exchange(self, key: str, *, epoch: int, donor: str, parameters: Mapping[str, Scalar]) -> None:
        """Keeps that a running trial goes on from another one's state, once for an epoch.

        Raises:
            StudyError: where the study has no such trial.
            StorageError: where the database cannot be written.
        """
        trial_id, trial = self._trial(key)
        known = trial.user_attrs.get(EXCHANGES, [])
        if not trial.state.is_finished() and all(each["epoch"] < epoch for each in known):
            new = {"epoch": epoch, "donor": donor, "parameters": dict(parameters)}
            self._keep(trial_id, {EXCHANGES: [*known, new]})

    def report(self, key: str, *, epoch: int, score: float, task_scores: Mapping[str, float]) -> None:
        """Keeps what a running trial scored after ``epoch``. An epoch that was reported stays as it was.

        Raises:
            ValueError: where a score is not a finite number: the trial is then to be told as failed.
            StudyError: where the study has no such trial.
            StorageError: where the database cannot be written.
        """
        for what, value in {"the score": score, **task_scores}.items():
            if not math.isfinite(value):
                raise ValueError(f"{what} of trial {key} after epoch {epoch} is {value}, not a finite number")
        trial_id, trial = self._trial(key)
        if trial.state.is_finished() or epoch in reported(trial):
            return
        # The task scores go first: an epoch whose score is kept has them too, whenever the driver dies.
        self._keep(trial_id, {task_scores_of(epoch): {name: float(value) for name, value in task_scores.items()}})
        if self._objectives != ["score"]:  # Optuna would take a stopped trial's last score for its value
            self._keep(trial_id, {score_of(epoch): float(score)})
            return
        with self._faults():
            self._storage.set_trial_intermediate_value(trial_id, epoch, float(score))

    def forget_reports(self, key: str) -> None:
        """Takes back what a running trial reported: it begins anew, and will report other scores of the same epochs.

        Raises:
            StudyError: where the study has no such trial.
            StorageError: where the database cannot be written.
        """
        trial_id, trial = self._trial(key)
        if not trial.state.is_finished():
            kept = [name(epoch) for epoch in reported(trial) for name in (score_of, task_scores_of)]
            with self._faults():
                database.take_back(self._storage, trial_id, kept)

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
        """Ends a trial; an ended one stays as it was.

        A finished trial is told with ``score``, by default the best reported one, or with the study's other objectives.
        Without a finite value of each it is told as failed: left running it would never end. A trial stopped early is
        told as pruned, with its last score.

        Args:
            task_scores: given with ``score`` where these are the trial's record, whatever was reported: of a finished
                trial, and with folds, whose reports are not comparable with its score.
            infeasible: of a failed trial, whether its parameters are why: it does not fit into memory. It is told as
                pruned and in violation of a constraint, from which samplers learn; of other failed ones they do not.
            measured: of a finished trial, the study's objectives but for the score, by name.

        Raises:
            ValueError: where ``state`` is RUNNING.
            StudyError: where the study has no such trial.
            StorageError: where the database cannot be written.
        """
        if state is TrialState.RUNNING:
            raise ValueError("a trial cannot end in the state running")
        trial_id, trial = self._trial(key)
        if trial.state.is_finished():
            return
        values: dict[str, float] = {}
        if state is TrialState.FINISHED:
            score = max(reported(trial).values(), default=None) if score is None else float(score)
            known = {"score": score, **(measured or {})}
            for name in ("score", *self._objectives):
                if (value := known.get(name)) is None or not math.isfinite(value):
                    state = TrialState.FAILED
                    reason = reason or f"it ended with the {name} {value}, not a finite number"
                    break
                values[name] = float(value)
        last = None
        if task_scores is not None and score is not None and math.isfinite(score):
            last = {"score": float(score), "task_scores": dict(task_scores)}
        kept = values if state is TrialState.FINISHED and self._objectives != ["score"] else None
        ending = {ENDING: last, "seconds": seconds, MEASURED: kept}
        # The reason always: a driver that died here may have left that of another end.
        self._keep(trial_id, {name: value for name, value in ending.items() if value is not None} | {"reason": reason})
        optuna_state = next(kept for kept, ours in STATES.items() if ours is state)
        with self._faults():
            if infeasible:
                self._storage.set_trial_system_attr(trial_id, _CONSTRAINT, 1.0)  # above 0: violated
                optuna_state = optuna.trial.TrialState.PRUNED
            told = [values[name] for name in self._objectives] if state is TrialState.FINISHED else None
            self._study.tell(trial.number, told, state=optuna_state)

    def run_seconds(self) -> float:
        """How long the study's runs took so far, together, as ``keep_run_seconds`` was told last.

        Raises:
            StorageError: where the database cannot be read.
        """
        with self._faults():
            return float(self._storage.get_study_user_attrs(self._study_id).get(_RUN_SECONDS, 0.0))

    def keep_run_seconds(self, seconds: float) -> None:
        """Keeps how long the study's runs took so far.

        Raises:
            StorageError: where the database cannot be written.
        """
        with self._faults():
            self._storage.set_study_user_attr(self._study_id, _RUN_SECONDS, seconds)

    def records(self) -> list[TrialRecord]:
        """Every trial, by number, running ones too; none of an older study, and no point that is still to be run.

        Raises:
            StorageError: where the database cannot be read.
        """
        return [record(trial, number) for number, trial in enumerate(self._own_trials()) if trial.state in STATES]

    def record(self, key: str) -> TrialRecord:
        """One of the ``records``, without the others.

        Raises:
            StudyError: where the study has no such trial.
            StorageError: where the database cannot be read.
        """
        _, trial = self._trial(key)
        return record(trial, trial.number - self._older)

    def _own_trials(self) -> list[FrozenTrial]:
        """By number, without those of older studies, which come before all others."""
        with self._faults():
            return [trial for trial in self._study.get_trials(deepcopy=False) if not is_older(trial)]

    def _running(self) -> list[tuple[int, FrozenTrial]]:
        """The number of each running trial, and the trial."""
        running = optuna.trial.TrialState.RUNNING
        return [(number, trial) for number, trial in enumerate(self._own_trials()) if trial.state is running]

    def _begin(self, sampler: Sampler, *, seed: int, older: Sequence[OlderStudy]) -> None:
        """Gives the study its sampler, and where it has no trial yet, the trials of older studies."""
        kept = len(self._own_trials())
        if not kept:
            fitting = partial(fitting_trials, space=self._space, fixed=self._fixed, objectives=self._objectives)
            trials = [trial for study in older for trial in fitting(study)]
            take_over(self._study, trials, attributes=first_generation(sampler))
        taken = [trial for trial in self._study.get_trials(deepcopy=False) if is_older(trial)]
        self._older = len(taken)
        self._study.sampler = make_sampler(
            sampler,
            seed=seed,
            kept=kept,
            space=distributions(self._space),
            conditional=[key for key, given in self._space.root.items() if given.when],
            older=taken,
        )

    def _complete(self) -> None:
        """Completes what a driver ended in: the choice of a trial's parameters, or an end that it had not told yet."""
        for _, trial in self._running():
            if trial.constraints:
                self._study.tell(trial.number, state=optuna.trial.TrialState.PRUNED)
            elif PROPOSED not in trial.user_attrs:
                self._choose(optuna.Trial(self._study, trial._trial_id), {})

    def _choose(self, trial: optuna.Trial, attributes: Mapping[str, Scalar]) -> None:
        """Draws what the trial does not have yet."""
        draw(trial, self._space, fixed=self._fixed)
        for name, value in {**attributes, PROPOSED: True}.items():
            trial.set_user_attr(name, value)

    def _trial(self, key: str) -> tuple[int, FrozenTrial]:
        """The storage's id of a trial, and the trial. Whoever writes then asks for the claim, so this does not."""
        with database.faults(self._storage.url):
            try:
                number = int(key.removeprefix("t"))
                if number < 0:
                    raise KeyError(key)
                trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number + self._older)
                return trial_id, self._storage.get_trial(trial_id)
            except (KeyError, ValueError):
                remedy = "use the key that the study gave"
                raise StudyError(Fault(f"the trial {key!r}", "be one of the study", "an unknown key", remedy)) from None

    def _keep(self, trial_id: int, attributes: Mapping[str, object]) -> None:
        with self._faults():
            for name, value in attributes.items():
                self._storage.set_trial_user_attr(trial_id, name, value)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        with database.faults(self._storage.url):
            if self._claim is not None:
                self._claim.keep()
            yield
