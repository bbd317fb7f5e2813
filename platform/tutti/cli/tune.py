"""``tutti tune``: run a study."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tutti.cli import stores, tracking_metadata
from tutti.cli.console import console, program
from tutti.cluster.ending import EXIT_CODE, terminated_as_interrupted
from tutti.config.address import without_password
from tutti.config.folder import StudyFolder, check_inside
from tutti.config.study import StudyConfig
from tutti.errors import ClaimLostError, Fault, StorageError, StudyError, counted
from tutti.records import Predictions, TrialRecord, TrialState, best_trial

if TYPE_CHECKING:
    from tutti.data.prepare import Prepared
    from tutti.orchestration.study import StudyOutcome


def tune(
    study_file: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="The study file.")],
    trials: Annotated[
        str | None, typer.Option(metavar="N|+N", help="How many trials the study shall have, or how many more.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key; may be repeated.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a study that is there already.")] = False,
) -> None:
    """Runs a study: trials on Ray, searched by Optuna, logged to MLflow.

    Runs on the cluster that RAY_ADDRESS names, otherwise on a Ray of its own on this machine.

    Example: `tutti tune examples/glue_trio.yaml --trials 12 --set training.num_train_epochs=2`
    """
    given = overrides or []
    count = None if trials is None else _budget(trials, study_file, overrides=given)
    wanted = [] if count is None else [f"search.trials={count}"]
    study, folder = stores.read_study_file(study_file, overrides=[*given, *wanted])
    again = partial(command_to_go_on, study_file, trials=count, overrides=given)
    run(stores.with_stores(study, folder), folder, resume=resume, again=again)


def _budget(trials: str, study_file: Path, *, overrides: list[str]) -> int:
    """What ``--trials`` asks for: ``12``, or with ``+12`` as many more than the study has."""
    if not re.fullmatch(r"\+?0*[1-9]\d*", trials):
        hint = "Must be a whole number of at least 1, as in 12, or +12 for so many more than the study has"
        raise typer.BadParameter(f"{hint}; got {trials!r}.", param_hint="'--trials'")
    if not trials.startswith("+"):
        return int(trials)
    # Until it is known how many trials there are, no number must be held against the search space or a population.
    unknown = ["search.trials=1", "search.scheduler=none"]
    study, folder = stores.read_study_file(study_file, overrides=[*overrides, *unknown])
    return int(trials) + stores.count_trials(stores.with_stores(study, folder), folder)


def command_to_go_on(
    study_file: Path, *, trials: int | None = None, overrides: Sequence[str] = (), but: str = ""
) -> str:
    """The command that goes on with a study as it was started, but for what was set of the key ``but``."""
    given = [text.partition("=") for text in overrides]
    kept = [
        key + mark + (without_password(value) if "://" in value else value)
        for key, mark, value in given
        if key.strip() != but
    ]
    options = [*(["--trials", str(trials)] if trials else []), *(part for text in kept for part in ("--set", text))]
    return f"{program()} tune {shlex.join([str(study_file), '--resume', *options])}"


def run(study: StudyConfig, folder: StudyFolder, *, resume: bool, again: Callable[..., str]) -> list[TrialRecord]:
    """Prepares a study's data, runs its trials, and prints what to do next; exits with 130 when interrupted.

    Args:
        again: what goes on with the study, see ``command_to_go_on``; called with ``but`` alone.
    """
    try:
        with terminated_as_interrupted():
            return _run(study, folder, resume=resume, again=again)
    except KeyboardInterrupt:
        console.print(f"Interrupted; go on with `{again()}`.", soft_wrap=True)
        sys.exit(EXIT_CODE)


def _run(study: StudyConfig, folder: StudyFolder, *, resume: bool, again: Callable[..., str]) -> list[TrialRecord]:
    from tutti.cli.progress import cut_off, number, summary, trials_table
    from tutti.cluster.connect import connected
    from tutti.orchestration.study import clear_ended, study_lock
    from tutti.search.objectives import pareto_front

    began = time.monotonic()
    _check_place(folder)
    stores.check_stores(study, folder)
    with study_lock(folder):
        if not folder.begun:
            if resume:
                console.print(f"There is no {study.study} in {folder.path.parent} yet: it begins now", soft_wrap=True)
            for older, count in stores.fitting_trials(study, folder).items():
                console.print(f"The sampler is told of {counted(count, 'trial')} of the study {older}")
        prepared = prepare_study(study, folder, resume=resume)
        tracking_metadata.write_split(prepared, folder)
        resources = study.resources
        if _is_over(study, folder):  # there is nothing to run: what the tracker is still to be told needs no Ray
            outcome = _run_trials(study, folder, prepared, concurrent=1)
        else:
            console.print("Starting Ray")
            with connected(  # before the study's stores are opened: one that does not fit the cluster has not begun
                workers=resources.workers,
                cpus_per_worker=resources.cpus_per_worker,
                gpus_per_worker=resources.gpus_per_worker,
                concurrent_trials=resources.concurrent_trials,
            ) as concurrent:
                outcome = _run_trials(study, folder, prepared, concurrent=concurrent)
            clear_ended(folder, outcome.trials)  # with the Ray that was connected the last workers have gone
    best, records = best_trial(outcome.trials), cut_off(outcome.trials)
    total, command = max(study.search.trials, len(records)), program()
    columns: dict[str, Any] = {"tasks": [*study.tasks], "objectives": study.search.objectives}
    front = pareto_front(records, study.search.objectives)
    console.print(trials_table(records, **columns, best=best, front=front, title=f"Study {study.study}"))
    console.print(f"{summary(records, total=total, best=best)}, in {time.monotonic() - began:.0f} s")
    if outcome.ending:
        limit = f"search.{outcome.ending.limit}"
        go_on = f"raise or remove {limit} and run `{again(but=limit)}`"
        console.print(f"Ended early: {outcome.ending.reason}. To go on, {go_on}.", soft_wrap=True)
    elif not outcome.complete:
        cut = counted(len(outcome.interrupted), "trial")
        console.print(f"Interrupted with {cut} cut off; go on with `{again()}`.", soft_wrap=True)
        sys.exit(EXIT_CODE)
    if best:
        console.print(f"Best: {best.key}, score {number(best.score)}. Next:")
        recipe = shlex.quote(study.ensemble.recipe)
        console.print(f"  {command} ensemble {shown(folder)} --recipe {recipe}", soft_wrap=True)
        console.print(f"  {command} ui {shown(folder)}", soft_wrap=True)
    return records


def _is_over(study: StudyConfig, folder: StudyFolder) -> bool:
    """Whether the study has all its trials, and each has ended, or has reached a limit."""
    from tutti.search.limits import is_over

    store = stores.load_begun_store(study, folder)
    if store is None:
        return False
    try:
        return is_over(study.search, store.records(), seconds=store.run_seconds())
    finally:
        store.close()


def _run_trials(study: StudyConfig, folder: StudyFolder, prepared: Prepared, *, concurrent: int) -> StudyOutcome:
    """Runs the study's trials on the Ray that is connected, with its store, its tracker and a live table."""
    from tutti.cli.progress import Progress
    from tutti.orchestration.study import run_study
    from tutti.outputs.pictures import confusion_matrix_png, scatter_png
    from tutti.tracking.protocol import BEST_SCORE

    class_names = {task.name: task.class_names for task in prepared.tasks}
    store = stores.open_store(study, folder)
    try:
        tracker = stores.open_tracker(study, folder)
    except BaseException:  # as where the disk is full: on a server the study would stay claimed
        store.close()
        raise

    def picture(task: str, predictions: Predictions) -> bytes:
        assert predictions.labels is not None
        if predictions.values is not None:
            return scatter_png(predictions.labels, predictions.values, title=task)
        assert predictions.probabilities is not None
        return confusion_matrix_png(predictions.labels, predictions.probabilities, class_names[task], title=task)

    patience = 60.0
    try:
        tracker.start_study(
            parameters=tracking_metadata.study_parameters(study, prepared),
            tags=tracking_metadata.study_tags(prepared),
            files=[folder.study_file, *sorted(folder.data.glob("*.json"))],
            columns=tracking_metadata.study_columns(study),
        )
        shown: dict[str, Any] = {
            "tasks": [*study.tasks],
            "folds": study.split.folds,
            "evals_per_epoch": study.evals_per_epoch,
            "objectives": study.search.objectives,
        }
        with Progress(console, store.records, total=study.search.trials, **shown) as progress:
            outcome = run_study(
                stores.without_passwords(study),  # its workers have no need of them, and Ray shows what it runs
                folder,
                store=store,
                tracker=tracker,
                concurrent_trials=concurrent,
                tags=tracking_metadata.run_tags(),
                watch=progress,
                notify=lambda text: console.print(text, soft_wrap=True),
                picture=picture,
            )
        best = best_trial(outcome.trials)
        tracker.end_study(
            state=TrialState.FINISHED if outcome.complete or outcome.ending else TrialState.INTERRUPTED,
            metrics={BEST_SCORE: best.score} if best and best.score is not None else {},
        )
    except BaseException as error:
        if isinstance(error, StorageError):  # most likely of the tracker's storage too
            patience = 5.0
        if not isinstance(error, ClaimLostError):  # its run is another driver's by now
            tracker.end_study(state=TrialState.INTERRUPTED, metrics={})
        raise
    finally:
        store.close()  # SQLite then puts all into the one file, which may be copied
        left = tracker.close(timeout=patience)
        if left:
            kept, them = counted(left, "event"), "it is" if left == 1 else "they are"
            console.print(
                f"{kept} did not reach the tracking store; {them} kept in {folder.path} and delivered by the next "
                "`tutti tune --resume`.",
                soft_wrap=True,
            )
    return outcome


def shown(folder: StudyFolder) -> str:
    """The study's name where that finds it from here, otherwise its folder, as a shell takes it."""
    from tutti.config.folder import studies_folder

    return folder.name if folder.path.parent == studies_folder() else shlex.quote(str(folder.path))


def prepare_study(study: StudyConfig, folder: StudyFolder, *, resume: bool) -> Prepared:
    """Reads, cleans, splits and encodes the study's data into its folder, and writes the study file there.

    Raises:
        StudyError: where the study is there and ``resume`` is not asked for, or is not what it was.
        BackboneError: where the backbone or its tokenizer does not serve.
        ConfigError, TaskFileError: with the faults of all tasks, or where ``max_length`` is beyond the backbone.
        StorageError: where the folder cannot be written.
    """
    from tutti.config.load import dump_study
    from tutti.data.encode import load_tokenizer, marks_second_text, starts_special
    from tutti.data.prepare import prepare
    from tutti.files import write_whole
    from tutti.modeling.layers import layer_count, own_layers
    from tutti.modeling.model import load_encoder, positions
    from tutti.orchestration.build import Abilities, check_backbone, encode_study
    from tutti.tasks.build import task_specs

    begun = folder.begun
    if begun and not resume:
        raise StudyError(
            Fault(
                f"the study {study.study!r}",
                f"be new in {folder.path.parent}",
                "one that is there already",
                "add --resume to go on with it, or give `study:` another name",
            )
        )
    if begun:
        _check_unchanged(study, folder)
    # A backbone that does not serve is found now, and one from the hub is fetched once.
    encoder = load_encoder(study.backbone)
    tokenizer = load_tokenizer(study.backbone)
    able = Abilities(
        positions=positions(encoder),
        layers=layer_count(encoder),
        own_layers=own_layers(encoder),
        marks_pairs=marks_second_text(tokenizer),
        starts_special=starts_special(tokenizer),
    )
    check_backbone(study, able)
    if not begun:  # what a start that failed left there would bind this one to its files and settings
        shutil.rmtree(folder.data, ignore_errors=True)
    console.print("Reading the tasks")
    split = study.split
    prepared = prepare(
        task_specs(study.tasks), validation=split.validation, folds=split.folds, seed=split.seed, folder=folder.data
    )
    for task in prepared.tasks:
        rows = ", ".join(f"{part} {info.rows:,}" for part, info in prepared.parts[task.name].items())
        labels = "numbers as labels" if task.regression else f"{len(task.class_names)} classes"
        folds = f", validated in {split.folds} folds" if split.folds else ""
        console.print(f"  {task.name}: {labels}; rows: {rows}{folds}")
    console.print("Encoding the texts")
    encode_study(study, folder, prepared)
    write_whole(folder.study_file, dump_study(stores.without_passwords(study)))
    return prepared


def _check_place(folder: StudyFolder) -> None:
    """A file in the place of a folder, and a link in that of the study's, are found before anything is read."""
    nearest = next(place for place in (folder.path, *folder.path.parents) if place.exists())
    if not nearest.is_dir():
        remedy = "set `storage.path:` of the study file to a folder, or move the file away"
        raise StudyError(Fault(str(nearest), "be a folder, to hold studies", "a file", remedy))
    check_inside(folder)


def _check_unchanged(study: StudyConfig, folder: StudyFolder) -> None:
    from tutti.config.load import parse_study

    changed = changed_keys(parse_study(folder.study_file), study)
    if changed:
        raise StudyError(
            *(
                Fault(
                    f"{key} of the study {study.study!r}",
                    "stay as it was when the study is resumed",
                    f"{new!r} where it was {old!r}",
                    "put it back, with --set if it was given so, or give `study:` another name",
                )
                for key, (old, new) in changed.items()
            )
        )


FREE = {
    "search": {"trials", "max_hours", "target_score", "patience", "max_trial_hours", "retries"},
    "resources": {"cpus_per_worker", "gpus_per_worker", "concurrent_trials", "isolation"},
    "storage": True,
    "tracking": True,
    "ensemble": True,
}


def changed_keys(old: StudyConfig, new: StudyConfig) -> dict[str, tuple[object, object]]:
    """Keys that define a study's results and differ. Files may move: their contents are compared by hash elsewhere."""

    def defining(study: StudyConfig) -> dict[str, object]:
        document = study.model_dump(mode="json", exclude=FREE)  # type: ignore[arg-type]
        for task in document["tasks"].values():
            for key in ("train", "validation", "unlabeled"):
                task[key] = task[key] and Path(task[key]).name
            if isinstance(task["test"], str):
                task["test"] = {"": task["test"]}
            task["test"] = {name: Path(file).name for name, file in (task["test"] or {}).items()}
            task["dataset"] = task["dataset"] and Path(task["dataset"]).name
            task["extra_train"] = [{**extra, "path": Path(extra["path"]).name} for extra in task["extra_train"]]
        document["search"]["warm_start"] = [Path(older).name for older in document["search"]["warm_start"]]
        if Path(document["backbone"]).is_absolute():
            document["backbone"] = Path(document["backbone"]).name
        return tracking_metadata.flat(document)

    before, after = defining(old), defining(new)
    return {
        key: (before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    }
