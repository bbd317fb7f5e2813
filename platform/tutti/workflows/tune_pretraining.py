"""Searches over a pretraining file: a study whose trials pretrain, on the same Ray, Optuna and MLflow as any other."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.config.folder import StudyFolder
from tutti.config.pretraining import PretrainingConfig, PretrainingPoint, load_pretraining
from tutti.config.study import Storage, StudyConfig, Tracking
from tutti.errors import BackboneError, ConfigError, Fault, StudyError
from tutti.files import new_folder_fault, resolved, sha256_of, storage_faults, whole_folder, write_whole
from tutti.records import TextLimit, TrialRecord, TrialState, best_trial
from tutti.workflows import stores, tracking_metadata
from tutti.workflows.console import console as default_console
from tutti.workflows.console import quiet_console
from tutti.workflows.progress import cut_off, failures, summary
from tutti.workflows.trials_table import ranked, trials_table
from tutti.workflows.tune import InterruptedStudy, left_to_do, parse_trials, run_trials

if TYPE_CHECKING:
    from rich.console import Console

    from tutti.orchestration.driver.study import StudyOutcome
    from tutti.orchestration.worker.pretraining_trial import Downstream
    from tutti.search.study_store import StudyStore

_DEFINITION = "search.json"
_MAY_CHANGE = {"trials", "max_hours", "max_trial_hours", "patience", "retries", "concurrent_trials"}
_NO_PART = {"out", "cache", "processes", "tracking", "workers", "cpus_per_worker", "gpus_per_worker"}


@dataclass(frozen=True)
class TunedPretraining:
    """The result of a search over a pretraining file.

    Attributes:
        trials: every trial, those of earlier runs too.
        best: the finished trial with the best score: the negative held-out loss, or that of the downstream study.
        path: the best trial's backbone; none if no trial has finished.
    """

    trials: tuple[TrialRecord, ...]
    best: TrialRecord | None
    path: Path | None


def tune_pretraining(
    file: Path | str | Mapping[str, Any],
    *,
    trials: int | str | None = None,
    resume: bool = True,
    overrides: Sequence[str] = (),
    quiet: bool = False,
    option: Callable[[str], str] = "tutti.tune_pretraining: {}".format,
    **options: Any,
) -> TunedPretraining:
    """Searches over a pretraining file: short trials on Ray, proposed by Optuna, stopped early, logged to MLflow.

    Every trial takes ``steps`` steps with the values it draws from ``search_space``; ``search`` says by what they are
    compared. The best trial's backbone is written to ``out``, all else is in ``OUT.search``. Interrupted, or called
    with more trials, it goes on from the last states.

    Args:
        file: a pretraining file, or its content as a mapping.
        trials: how many trials the search shall have, or ``"+4"`` for so many more; by default ``search.trials``.
        resume: whether to go on with a search that has begun, which is an error otherwise.
        overrides: the arguments of ``--set``, by dotted key.
        options: keys of the file, which take the place of those in it.

    Raises:
        ConfigError: with every fault of the file.
        StudyError: if it has no search space, another process searches, or the file has changed since it began.
        KeyboardInterrupt: after Ctrl-C, once all trials have ended in order.
        BackboneError, TaskFileError, TrialError, ClusterError, StorageError: as of ``Study.tune``.

    Example:
        >>> tutti.tune_pretraining("pretraining.yaml", trials=12).best.parameters
    """
    console = quiet_console() if quiet else default_console
    count, is_more = parse_trials(trials) if trials is not None else (None, False)
    changes = [*overrides, *([f"search.trials={count}"] if count and not is_more else [])]
    run = load_pretraining(PretrainingConfig, file, options, option=option, overrides=changes)
    if not run.search_space.root:
        rule = "have a search space to be tuned"
        remedy = "add `search_space:`, or pretrain with `tutti backbone pretrain`"
        raise StudyError(Fault("the pretraining file", rule, "none", remedy))
    from tutti.orchestration.upkeep.lock import study_lock

    folder = StudyFolder(resolved(run.out).with_name(f"{resolved(run.out).name}.search"))
    if not (folder.path / _DEFINITION).is_file() and (fault := new_folder_fault(run.out)):
        raise BackboneError(fault)
    with study_lock(folder):
        downstream = _prepare(run, folder, resume=resume, console=console)
        if is_more:
            assert count is not None
            with closing(_open_store(run, folder)) as store:
                count += len(store.records())
            run = run.model_copy(update={"search": run.search.model_copy(update={"trials": count})})
        outcome = _run_trials(run, folder, downstream, console)
    return _ended(run, folder, outcome, console)


def _prepare(run: PretrainingConfig, folder: StudyFolder, *, resume: bool, console: Console) -> Downstream | None:
    """Tokenizes the texts, prepares the downstream study, and writes down what the search is."""
    from tutti.modeling.adapters import backbone_files
    from tutti.orchestration.worker.pretraining_trial import Downstream, corpus_cache
    from tutti.orchestration.worker.probe import definition, fixed_study
    from tutti.training.pretraining.run import TextFiles, encode_texts

    downstream = None
    if run.search.objective == "downstream":
        assert run.search.study is not None
        named = [f"backbone={json.dumps(run.backbone)}"]
        fixed = fixed_study(stores.read_study_file(run.search.study, overrides=named)[0])
        downstream = Downstream(fixed, StudyFolder(folder.path / "downstream" / fixed.study))
    document = run.model_dump(mode="json", exclude={"search": _MAY_CHANGE} | dict.fromkeys(_NO_PART, True))
    document |= {"files": {each: backbone_files(each) for each in run.backbones}}
    document |= {"content of texts": [*map(sha256_of, run.texts)]}
    document |= {"downstream": downstream and definition(downstream.study)}
    file = folder.path / _DEFINITION
    if file.is_file():
        if not resume:
            got, remedy = "a search that has begun", "add --resume to go on with it, or give `out:` another name"
            raise StudyError(Fault(str(folder.path), "be new", got, remedy))
        if (saved := json.loads(file.read_text(encoding="utf8"))) != document:
            differing = ", ".join(sorted(key for key in document if document[key] != saved.get(key)))
            remedy = f"undo the change, give `out:` another name, or remove {folder.path}"
            raise StudyError(Fault(str(file), "be of the same search", f"one with other {differing}", remedy))
    if downstream:
        from tutti.orchestration.before.abilities import abilities_of, check_backbone
        from tutti.orchestration.before.rows import prepare_rows

        for each in run.backbones:
            check_backbone(downstream.study.model_copy(update={"backbone": each}), abilities_of(each), begun=False)
        prepare_rows(downstream.study, downstream.folder)
    else:
        _check_alike(run)
    console.print("Encoding the texts")
    texts, choices = TextFiles.of(run, cache=corpus_cache(folder)), run.search_space.root.get("masks")
    for masks, backbone in product({run.masks, *(getattr(choices, "choices", ()))}, run.backbones):
        settings = run.with_point({"masks": masks}).settings
        encode_texts(texts, backbone=backbone, out=run.out, settings=settings)  # once for all with one tokenizer
    if not file.is_file():
        write_whole(folder.owner_file, f"{uuid.uuid4()}\n")
        write_whole(file, json.dumps(document, indent=1))
    return downstream


def _check_alike(run: PretrainingConfig) -> None:
    """Raises ConfigError where held-out losses of backbones are not of the same guesses about the same tokens."""
    from tutti.data.encode import load_tokenizer
    from tutti.data.encoding_key import encoding_key
    from tutti.training.pretraining.language_model import objective_of

    limit = TextLimit(run.max_length)
    kinds = {(encoding_key(load_tokenizer(each), limit), run.objective or objective_of(each)) for each in run.backbones}
    if len(kinds) > 1:
        rule = "be backbones of one tokenizer and one objective where trials are compared by their held-out loss"
        remedy = "set `search.objective: downstream` and `search.study`"
        raise ConfigError(Fault("search_space.backbone.choices", rule, ", ".join(run.backbones), remedy))


def _open_store(run: PretrainingConfig, folder: StudyFolder) -> StudyStore:
    from tutti.search.study_store import StudyStore

    search = run.search
    return StudyStore.open(
        folder.optuna_url,
        name=folder.name,
        space=run.search_space,
        sampler=search.sampler,
        seed=search.seed,
        fixed=run.model_dump(include={"backbone", *PretrainingPoint.model_fields}),
        enqueued=search.enqueue,
    )


def _as_study(run: PretrainingConfig, folder: StudyFolder, downstream: Downstream | None) -> StudyConfig:
    """The search as the orchestration knows a study: an epoch is an evaluation, a task is what one measures."""
    from tutti.orchestration.worker.pretraining import resources_of
    from tutti.orchestration.worker.pretraining_trial import LOSS

    resources = resources_of(run.model_copy(update={"cpus_per_worker": run.cpus_per_worker or 1}))
    _, evaluations = run.trial_evaluations
    return StudyConfig.model_construct(
        study=run.out.name,
        backbone=run.backbone,
        tasks=dict.fromkeys([*(downstream.study.tasks if downstream else ()), LOSS]),  # type: ignore[arg-type]
        training={"num_train_epochs": evaluations},
        search_space=run.search_space,
        search=run.search.as_of_study,
        resources=resources.model_copy(update={"concurrent_trials": run.search.concurrent_trials}),
        storage=Storage(path=folder.path.parent),
        tracking=Tracking(uri=run.tracking or os.environ.get("MLFLOW_TRACKING_URI") or None),
    )


def _run_trials(
    run: PretrainingConfig, folder: StudyFolder, downstream: Downstream | None, console: Console
) -> StudyOutcome:
    from tutti.cluster.connect import connected
    from tutti.orchestration.driver.study import clear_ended
    from tutti.orchestration.worker.pretraining_trial import PretrainingTrials

    study = _as_study(run, folder, downstream)
    document = run.model_dump(mode="json", exclude={"search_space", "tracking"})
    start = {
        "parameters": {key: str(value) for key, value in tracking_metadata.flat(document).items() if value is not None},
        "tags": {**tracking_metadata.run_tags(), "tutti.kind": "pretraining search"},
        "files": [folder.path / _DEFINITION],
        "columns": tracking_metadata.study_columns(study),
    }
    resources = study.resources
    with connected(resources, tell=console.print) as concurrent:
        outcome = run_trials(
            study,
            folder,
            store=_open_store(run, folder),
            console=console,
            start=start,
            concurrent=concurrent,
            picture=None,  # a trial predicts nothing
            train=PretrainingTrials(run.model_copy(update={"tracking": None}), downstream),
        )
    clear_ended(folder, outcome.trials)
    return outcome


def _ended(run: PretrainingConfig, folder: StudyFolder, outcome: StudyOutcome, console: Console) -> TunedPretraining:
    """Leaves the best backbone, removes the others, and prints the trials; raises if trials were cut off."""
    from tutti.orchestration.worker.pretraining_trial import LOSS

    records, best = cut_off(outcome.trials), best_trial(outcome.trials)
    tasks = [*dict.fromkeys(name for record in records for name in record.task_scores)] or [LOSS]
    shown = ranked(records, tasks=tasks)
    console.print(trials_table(shown, tasks=tasks, best=best, width=console.width, title=f"Pretraining {run.out.name}"))
    for line in failures(records):
        console.print(line)
    console.print(summary(records, total=run.search.trials, best=best))
    if outcome.ending:
        console.print(f"Ended early: {outcome.ending.reason}. To go on, raise search.{outcome.ending.limit}.")
    elif not outcome.complete:
        raise InterruptedStudy(left_to_do(outcome, run.search.trials))
    if best is None:
        console.print("No trial finished: loosen or remove search.scheduler, or add trials.")
        return TunedPretraining(tuple(records), None, None)
    with whole_folder(run.out) as temporary:
        shutil.copytree(folder.trial(best.key).best, temporary, dirs_exist_ok=True)
    with storage_faults(folder.path):
        for record in records:
            place = folder.trial(record.key).best
            if record.state is TrialState.FINISHED and record.key != best.key and place.exists():
                shutil.rmtree(place)
    console.print(f"wrote {run.out}: the backbone of {best.key}. Next: `backbone: {run.out}` in a study file")
    return TunedPretraining(tuple(records), best, run.out)
