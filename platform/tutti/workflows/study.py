"""``Study``: what a user does with a study, from Python."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from tutti import mirror
from tutti.config.address import without_password
from tutti.config.folder import StudyFolder, find_study
from tutti.config.load import parse_study
from tutti.config.study import StudyConfig
from tutti.errors import Fault, StudyError
from tutti.workflows import doctor as _doctor
from tutti.workflows import export as _export
from tutti.workflows import guests as _guests
from tutti.workflows import predict as _predict
from tutti.workflows import predict_sets as _predict_sets
from tutti.workflows import report as _report
from tutti.workflows import soup as _soup
from tutti.workflows import stores
from tutti.workflows import trials as _trials
from tutti.workflows.base import StudyBase, open_stored
from tutti.workflows.choose import choose_submissions as _choose_submissions
from tutti.workflows.console import console as shared_console
from tutti.workflows.console import quiet_console
from tutti.workflows.generation import generate as _generate
from tutti.workflows.pretraining import pretrain_backbone
from tutti.workflows.probe import probe_run
from tutti.workflows.pseudo import pseudo_labels as _pseudo_labels
from tutti.workflows.pseudo import pseudo_labels_by_fold as _pseudo_labels_by_fold
from tutti.workflows.refit import refit as _refit
from tutti.workflows.round import run_rounds
from tutti.workflows.scores import add_public_score as _add_public_score
from tutti.workflows.scores import leaderboard as _leaderboard
from tutti.workflows.second import second as _second
from tutti.workflows.submit import Job
from tutti.workflows.tune import Tuned, budget, parse_trials, run
from tutti.workflows.vote import ensemble as _ensemble

if TYPE_CHECKING:
    from tutti.cluster.kubernetes import RayJob

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=StudyBase)
Overrides = Mapping[str, Any] | Sequence[str]


def _stored(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method after which what it has written into the study is on its object storage, if the study is on one."""

    @wraps(method)
    def call(study: S, *arguments: P.args, **options: P.kwargs) -> R:
        result = method(study, *arguments, **options)
        mirror.push(study.folder.path)
        return result

    return call


class Study(StudyBase):
    """A study: several tasks, a backbone, a search space, a budget. Nothing is written until ``tune``.

    Args:
        file: a study file, or its content as a mapping, in which paths are relative to the current folder, or the
            folder of a study that has begun, as ``open`` finds it.
        overrides: by dotted key, ``{"search.trials": 4}``, or texts as for ``--set``; None removes a key.
        quiet: whether nothing is printed. Otherwise methods say what they do meanwhile; results are returned.
        shared: whether the study will run on a cluster whose storage this machine need not see: see ``submit``.

    Raises:
        ConfigError: with every fault of the file.

    Example:
        >>> study = tutti.Study("study.yaml")
        >>> study.tune(trials=24)
        >>> study.ensemble("auto").write()
    """

    def __init__(
        self,
        file: Path | str | Mapping[str, Any] | StudyFolder,
        *,
        overrides: Overrides = (),
        quiet: bool = False,
        shared: bool = False,
    ) -> None:
        self._overrides = _texts(overrides)
        if isinstance(file, StudyFolder):  # which may have moved
            self._source: Path | Mapping[str, Any] = file.study_file
            self._overrides.append(f"storage.path={json.dumps(str(file.path.parent))}")
            config, folder = parse_study(file.study_file), file
        else:
            self._source = Path(file) if isinstance(file, str | Path) else file
            config, folder = stores.read_study_file(self._source, overrides=self._overrides, shared=shared)
        super().__init__(config, folder, console=quiet_console() if quiet else shared_console)

    def __repr__(self) -> str:
        return f"<Study {self.name} in {self.folder.path}>"

    @property
    def stored(self) -> StudyBase:
        """The study as its folder holds it, read anew: another process may be running it.

        Raises:
            StudyError: if it has not begun.
        """
        if not self.folder.study_file.is_file():
            got, remedy = f"none in {self.folder.path.parent}", "call tune first, or correct storage.path"
            raise StudyError(Fault(f"the study {self.name!r}", "have begun", got, remedy))
        return open_stored(self.folder, like=self)

    def tune(self, trials: int | str | None = None, *, resume: bool = True) -> Tuned:
        """Runs the study: trials on Ray, searched by Optuna, logged to MLflow. Shows its progress.

        Runs on the cluster that RAY_ADDRESS names, otherwise on a Ray of its own on this machine. Interrupted, it goes
        on from the last epochs when it is called again.

        Args:
            trials: how many trials the study shall have, or ``"+4"`` for so many more; by default ``search.trials``.
            resume: whether to go on with a study that has begun, which is an error otherwise.

        Raises:
            KeyboardInterrupt: after Ctrl-C, once all trials have ended in order.
            StudyError: if another process runs the study, or its settings have changed.
            BackboneError, TaskFileError: if the backbone or a task's file cannot be used.
            TrialError: if all trials failed.
            ClusterError: if Ray cannot be reached, or lacks the resources.
        """
        config = self.config
        if trials is not None:
            count = budget(trials, self._source, overrides=self._overrides)
            total = [*self._overrides, f"search.trials={count}"]
            config, _ = stores.read_study_file(self._source, overrides=total)
        return run(self.with_config(stores.with_stores(config, self.folder)), resume=resume)

    def submit(
        self,
        *,
        address: str = "http://127.0.0.1:8265",
        trials: int | str | None = None,
        resume: bool = False,
        command: str | None = None,
    ) -> Job:
        """Runs the study as a job on a Ray cluster, on storage that every node sees: ``storage.path``.

        Args:
            address: of the cluster's dashboard.
            trials, resume: as in ``tune``; how many more there shall be, the cluster counts.
            command: what its user would type to submit it again, which the job's log names.

        Raises:
            StudyError: if ``storage.path`` is not set, or the files to ship are too large.
            ClusterError: if the cluster does not answer or refuses the job.

        Example:
            >>> tutti.Study("study.yaml", shared=True).submit(address="http://head:8265").follow()
        """
        again = command or f"tutti submit STUDY.yaml --address {shlex.quote(address)}"
        from tutti.cluster.submit import submit_study

        config, folder, given = self._job(trials, resume=resume, again=again)
        return Job(submit_study(config, address=address, tell=self.console.print, **given), address, folder)

    def ray_job(
        self,
        *,
        image: str = "tutti:latest",
        trials: int | str | None = None,
        resume: bool = False,
        command: str | None = None,
    ) -> RayJob:
        """The study as a RayJob of Kubernetes, with the files that it names; ``.apply()`` creates it by kubectl.

        Args:
            image: with Tutti, which every pod runs.
            trials, resume, command: as in ``submit``.

        Raises:
            StudyError: if ``storage.path`` or ``resources.concurrent_trials`` is not set, or the files are too large.

        Example:
            >>> tutti.Study("study.yaml", shared=True).ray_job(image="registry/tutti:1").apply()
        """
        again = command or "tutti submit STUDY.yaml --kubernetes"
        from tutti.cluster.kubernetes import ray_job

        config, _, given = self._job(trials, resume=resume, again=again)
        return ray_job(stores.without_passwords(config), image=image, **given)

    def _job(
        self, trials: int | str | None, *, resume: bool, again: str
    ) -> tuple[StudyConfig, StudyFolder, dict[str, Any]]:
        """The study that a job runs; further options of its ``tutti tune``, and how it was submitted."""
        settings, options = self._overrides, ["--resume"] if resume else []
        if trials is not None:
            count, is_more = parse_trials(trials)
            if is_more:  # than there are, which only the cluster knows
                options += ["--trials", f"+{count}"]
            else:
                settings = [*settings, f"search.trials={count}"]
        config, folder = stores.read_study_file(self._source, overrides=settings, shared=True)
        submitted = json.dumps((again, overrides_without_passwords(settings)))
        return config, folder, {"options": options, "submitted": submitted}

    is_running = property(_trials.is_running)
    records = _trials.records
    trials = _trials.trials
    ui = _trials.ui
    doctor = _stored(_doctor.doctor)
    ensemble = _stored(_ensemble)
    pseudo_labels = _stored(_pseudo_labels)
    pseudo_labels_by_fold = _stored(_pseudo_labels_by_fold)
    predict = _predict.predict
    predict_tests = _stored(_predict_sets.predict_tests)
    fill_bank = _stored(_predict_sets.fill_bank)
    soup = _stored(_soup.soup)
    export = _export.export
    refit = _stored(_refit)
    report = _stored(_report.report)
    round = _stored(run_rounds)
    pretrain = pretrain_backbone
    probe = probe_run
    guests = _guests.guests
    import_predictions = _stored(_guests.import_predictions)
    export_predictions = _guests.export_predictions
    second = _stored(_second)
    generate = _stored(_generate)
    leaderboard = _leaderboard
    add_public_score = _stored(_add_public_score)
    choose_submissions = _choose_submissions


def open_study(name: Path | str, *, quiet: bool = False) -> Study:
    """A study that ``tune`` made, by its name in the folder of studies, by its own folder, or by its address.

    Raises:
        StudyError: if there is no such study.
        ConfigError: if its file is damaged.

    Example:
        >>> tutti.open("studies/demo").trials()
    """
    return Study(find_study(str(name)), quiet=quiet)


def overrides_without_passwords(overrides: Sequence[str]) -> list[str]:
    """The texts of ``--set``, in which no address has its password."""
    return [
        key + equals + (without_password(value) if "://" in value else value)
        for key, equals, value in (text.partition("=") for text in overrides)
    ]


def _texts(overrides: Overrides) -> list[str]:
    """Overrides as the texts of ``--set``: JSON is YAML too."""
    if not isinstance(overrides, Mapping):
        return [*overrides]
    return [f"{key}={json.dumps(value, default=str)}" for key, value in overrides.items()]
