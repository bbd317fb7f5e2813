"""Exports a vote or a checkpoint: a folder that predicts by itself."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from tutti.bank.electorate import located
from tutti.errors import Fault, StudyError, TaskFileError, check_left_out, counted
from tutti.files import new_folder_fault, storage_faults, whole_folder, write_whole
from tutti.workflows import stores
from tutti.workflows.base import StudyBase
from tutti.workflows.electorate import chosen_recipe, voting_studies
from tutti.workflows.predict import Predictors, chosen_members, single_checkpoint, task_named

if TYPE_CHECKING:
    from tutti.config.recipe import Recipe
    from tutti.outputs.election.bundle_card import Speed
    from tutti.tasks.build import TaskSpec
    from tutti.tasks.layouts.table import Table
    from tutti.tasks.layouts.tagged import Tagged
    from tutti.tasks.task import Task

Format = Literal["bundle", "transformers", "onnx"]
_MEASURED = 512  # rows, of the validation rows first, on which speed and quantisation are measured
_EXAMPLES = 2


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        speed: as measured here.
        model: its address in MLflow's registry, if it was registered.
    """

    folder: Path
    speed: Speed
    model: str | None = None


@dataclass(frozen=True)
class _Source:
    """What is exported, of one task."""

    study: StudyBase
    task: Task
    name: str
    studies: Mapping[str, StudyBase]
    recipe: Recipe | None
    predictors: Predictors
    refit: bool = False


def export(
    study: StudyBase,
    out: Path | str,
    *,
    task: str | None = None,
    recipe: str | tuple[str, Recipe] | None = None,
    others: Sequence[str] = (),
    checkpoint: Path | str | None = None,
    refit: bool = False,
    members: int | None = None,
    quantize: str | None = None,
    max_hours: float | None = None,
    rows: int | None = None,
    form: Format = "bundle",
    register: str | None = None,
    alias: str | None = None,
) -> Exported:
    """Writes a folder that predicts by itself, offline and without Tutti: a bundle, which is also an MLflow model.

    Args:
        out: a new or empty folder.
        task, recipe, others, checkpoint, refit: as in ``predict``; a recipe may also be its name and its content.
        members: most trials that vote; by default as the recipe says.
        quantize: ``int8`` for linear layers of 8 bits on CPUs; which labels that changes is measured.
        max_hours, rows: predicting so many rows shall take so long at most on this machine: of the members those are
            kept that are worth most in the vote.
        form: ``bundle``; or of the best member alone ``transformers``, a plain model of that library, or ``onnx``.
        register, alias: a name in the registry of the study's MLflow, and an alias such as ``champion``.

    Raises:
        StudyError: if weights are missing, or what is asked for cannot be made.
        TrackingError: if MLflow cannot be reached.

    Example:
        >>> study.export("bundle", recipe="auto").speed.seconds
    """
    study, out = study.stored, Path(out)
    _check(out, quantize=quantize, max_hours=max_hours, rows=rows, form=form, register=register, alias=alias)
    if checkpoint:
        given = {
            "--recipe": recipe[0] if isinstance(recipe, tuple) else recipe,
            "--with": others,
            "--members": members,
            "--refit": refit,
        }
        check_left_out(given, beside="--checkpoint")
    source = _source(study, task, recipe, others, checkpoint, members, refit=refit)
    if form != "bundle":
        from tutti.workflows.export_one import export_one

        return export_one(source.study, source.task, source.predictors, out, form=form)
    with whole_folder(out) as folder:
        speed = _fill(folder, source, quantize)
        if max_hours is not None and rows is not None and speed.seconds * rows > 1000 * max_hours * 3600:
            source = _within(source, speed, 1000 * max_hours * 3600 / rows)
            shutil.rmtree(folder)
            folder.mkdir()
            speed = _fill(folder, source, quantize)
    study.console.print(f"{out}: {speed.text}")
    study.console.print(f"Next: `python {out / 'predict.py'} --input new.csv --out predictions.csv`")
    address = None
    if register:
        address = stores.open_run(study.config, study.folder).register(out, register, alias=alias)
        study.console.print(f"registered as {address}")
    return Exported(out, speed, address)


def _check(out: Path, **options: Any) -> None:
    """Raises StudyError for options that do not fit, or a folder that cannot be written."""
    faults = []
    if options["form"] not in get_args(Format):
        rule = f"be one of {', '.join(get_args(Format))}"
        faults.append(Fault("--format", rule, repr(options["form"]), "correct it"))
    with storage_faults(out):
        if fault := new_folder_fault(out):
            faults.append(fault)
    if options["quantize"] not in (None, "int8"):
        faults.append(Fault("--quantize", "be int8", repr(options["quantize"]), "leave it out, or write int8"))
    if (options["max_hours"] is None) != (options["rows"] is None):
        got = "--max-hours alone" if options["rows"] is None else "--rows alone"
        faults.append(Fault("--max-hours and --rows", "be given together", got, "add the other one"))
    if options["alias"] and not options["register"]:
        faults.append(Fault("--alias", "be given with --register", "--alias alone", "add --register NAME"))
    if options["form"] != "bundle":
        given = [name for name in ("quantize", "max_hours", "register") if options[name] is not None]
        for name in given:
            option, remedy = f"--{name.replace('_', '-')}", "take one of the two out"
            faults.append(Fault(option, "be left out with --format", options["form"], remedy))
    if faults:
        raise StudyError(*faults)


def _source(
    study: StudyBase,
    task: str | None,
    recipe: str | tuple[str, Recipe] | None,
    others: Sequence[str],
    checkpoint: Path | str | None,
    members: int | None,
    *,
    refit: bool,
) -> _Source:
    own = task_named(study, task)
    if own.kind.generative:
        rule, got = "have labels or numbers to predict", own.kind.describe(own.names)
        remedy = "the checkpoint of a decoder writes texts by itself: see docs/predict.md"
        raise StudyError(Fault(f"the task {own.name}", f"{rule}, to be exported", got, remedy))
    if checkpoint:
        return _Source(study, own, str(checkpoint), {}, None, single_checkpoint(study, own, Path(checkpoint)))
    name, chosen = recipe if isinstance(recipe, tuple) else chosen_recipe(study, recipe)
    if members is not None:
        chosen = chosen.model_copy(update={"members": chosen.members.model_copy(update={"top": members})})
    studies = voting_studies(study, members=chosen.members, others=others)
    predictors = chosen_members(studies, own, name, chosen, refit=refit)
    return _Source(study, own, name, studies, chosen, predictors, refit)


def _within(source: _Source, speed: Speed, seconds: float) -> _Source:
    """With the members that are worth most in the vote among those that take so many seconds for 1,000 rows.

    One after the other goes whose loss lowers the vote's validation score least for the time it saves.
    """
    from tutti.outputs.election.members import score_of

    elected, recipe = source.predictors.elected, source.recipe
    by_key = _by_voter(source.predictors, speed)
    if elected is None or recipe is None or min(by_key.values()) > seconds:
        rule = f"leave a member that takes {seconds:.3g} s for 1,000 rows or less"
        got, remedy = f"{min(by_key.values()):.3g} s for the fastest", "allow more hours, or try --quantize int8"
        raise StudyError(Fault("--max-hours", rule, got, remedy))
    kept, fastest = set(by_key), min(by_key, key=by_key.__getitem__)
    while len(kept) > 1 and sum(by_key[key] for key in kept) > seconds:
        now = score_of(elected, kept)
        kept.remove(min(kept, key=lambda key: (now - score_of(elected, kept - {key})) / by_key[key]))
    kept = kept if sum(by_key[key] for key in kept) <= seconds else {fastest}
    source.study.console.print(f"Within the hours: {counted(len(kept), 'member')}, {', '.join(sorted(kept))}")
    only: dict[str, set[str]] = {name: set() for name in source.studies}
    for owner, key in (located(key, source.studies) for key in kept):
        only[owner].add(key)
    chosen = recipe.model_copy(update={"members": recipe.members.model_copy(update={"filter": None, "within": None})})
    again = chosen_members(source.studies, source.task, source.name, chosen, among=only, refit=source.refit)
    return replace(source, predictors=again)


def _by_voter(predictors: Predictors, speed: Speed) -> dict[str, float]:
    """By the voter's key the seconds that its checkpoints take for 1,000 rows."""
    taken = list(speed.members.values())
    keys = [member.key for member in predictors.elected.members] if predictors.elected else ["the checkpoint"]
    return {keys[place]: sum(taken[each] for each in own) for place, own in predictors.vote.groups.items()}


def _fill(folder: Path, source: _Source, quantize: str | None) -> Speed:
    """Writes the bundle into an empty folder, measures it, and writes its card."""
    from tutti.bundle.write import write_bundle
    from tutti.data.clean import CLEANED_BY
    from tutti.tasks.build import sample_ids_of, task_spec

    study, task, predictors = source.study, source.task, source.predictors
    config = study.config.tasks[task.name]
    spec = task_spec(task.name, config, sample_ids_of(study.config).get(task.name, ()))
    layout = layout_of(spec)
    members = _named(predictors)
    example = _example(spec, layout, study)
    study.console.print(f"Exporting {predictors.description}")
    _as_mlflow_model(folder, task, example)
    write_bundle(
        folder,
        vote=predictors.vote,
        members=members,
        layout=layout,
        cleaning=spec.cleaning.model_dump(mode="json", include={*CLEANED_BY}),
        training=predictors.training,
    )
    write_whole(folder / "example.json", json.dumps(example, ensure_ascii=False, indent=1) + "\n")
    speed = _measured(folder, study, task, [name for name, _ in members], quantize)
    _write_card(folder, source, spec, speed)
    return speed


def layout_of(spec: TaskSpec) -> Table | Tagged:
    """The layout of files with rows to predict, where the study's own has no columns by name: text and text_b."""
    from tutti.tasks.layouts.hub import Hub
    from tutti.tasks.layouts.table import Table
    from tutti.tasks.layouts.tagged import Tagged

    layout = spec.layout.columns if isinstance(spec.layout, Hub) else spec.layout
    if isinstance(layout, Tagged):
        return replace(layout, dataset=None)
    if isinstance(layout, Table):
        return replace(layout, group=None, fold=None, weight=None)
    return Table(text_b="text_b" if spec.pair else None)


def _named(predictors: Predictors) -> list[tuple[str, Path]]:
    """Each checkpoint with a name of its own: the trial's, and the fold's where there are several."""
    count = len(predictors.checkpoints)
    names = ["model"] if count == 1 else [f"model-fold{fold}" for fold in range(count)]
    elected = predictors.elected
    for place, own in predictors.vote.groups.items() if elected else ():
        assert elected is not None
        key = elected.members[place].key.replace("/", "-")
        for fold, number in enumerate(own):
            names[number] = key if len(own) == 1 else f"{key}-fold{fold}"
    return list(zip(names, (each.folder for each in predictors.checkpoints), strict=True))


def _example(spec: TaskSpec, layout: Table | Tagged, study: StudyBase) -> list[dict[str, Any]]:
    """Rows as files have them: the first of the test or training file, or the study's own texts."""
    from tutti.tasks.layouts.table import Table, table_blocks

    prepared = study.prepared.rows(spec.name, "validation").head(_EXAMPLES)
    if not isinstance(layout, Table):
        column = layout.text if layout.text and not layout.text.isdecimal() else "text"  # of lines a number
        names = {"id": "id", "text": column, **({"text_b": layout.text_b} if layout.text_b else {})}
        return [{theirs: row[ours] for ours, theirs in names.items()} for row in prepared.to_dict("records")]
    names = layout.names(labelled=False)
    composed = {name for ours, name in names.items() if ours in layout.templates()}
    wanted = layout.wanted(names) - composed
    for part in [part for part in spec.sources if part.startswith("test")] + ["train"]:
        try:
            columns = next(table_blocks(spec.sources[part], _EXAMPLES, wanted=wanted))[0]
            rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
            if rows and all(name in columns for name in wanted - {layout.id}):
                plain = [{name: row[name] for name in columns if name in wanted} for row in rows]
                return [{name: v if isinstance(v, list) else str(v) for name, v in row.items()} for row in plain]
        except (TaskFileError, ValueError):
            continue
    listed = prepared.to_dict("records")
    examples = [{names[ours]: row[ours] for ours in ("text", "text_b") if ours in names} for row in listed]
    for row, own in zip(listed, examples, strict=True):
        if "choices" in row:
            cells = json.loads(row["choices"])
            pairs = zip_longest(layout.choices, cells, fillvalue="")
            own |= {layout.choices[0]: cells} if len(layout.choices) == 1 else dict(pairs)
    return examples


def _as_mlflow_model(folder: Path, task: Task, example: list[dict[str, Any]]) -> None:
    stores.quiet_mlflow()
    from tutti.tracking.packaged import package

    texts: dict[str, Any] = {"id": ""}
    if task.kind.sequential:
        texts |= {"tags": "", "entities": "", "confidence": 0.0}
    elif not task.kind.probabilistic:
        texts |= dict.fromkeys(task.names or ("value",), 0.0)
    else:
        texts |= {"label" if task.kind.exclusive else "labels": "", "confidence": 0.0}
        texts |= {f"p_{name}": 0.0 for name in task.names}
    package(folder, example=example, optional=("id",), outputs=texts)


def _measured(folder: Path, study: StudyBase, task: Task, names: Sequence[str], quantize: str | None) -> Speed:
    """The bundle's speed on validation rows, after it was quantised, and what that changes there."""
    from pandas import concat

    from tutti.bundle.predict import Bundle
    from tutti.bundle.write import store_int8
    from tutti.outputs.election.bundle_card import Speed

    rows = concat([study.prepared.rows(task.name, part) for part in ("validation", "train")]).head(_MEASURED)
    texts = {name: rows[name].tolist() for name in ("id", "text", "text_b", "choices") if name in rows}
    exact = None
    if quantize == "int8":
        exact = Bundle(folder, device="cpu").predict_texts(texts)
        store_int8(folder)
    bundle = Bundle(folder, device="cpu")
    bundle.predict_texts(texts)  # kernels are made for each new shape of a batch
    bundle.seconds = [0.0] * len(bundle.seconds)
    began = time.perf_counter()
    predicted = bundle.predict_texts(texts)
    scale = 1000 / len(rows)
    taken = (time.perf_counter() - began) * scale
    members = {name: seconds * scale for name, seconds in zip(names, bundle.seconds, strict=True)}
    speed = Speed(taken, members, len(rows), bundle.precision)
    if exact is None:
        return speed
    flipped, greatest = changed(exact, predicted)
    return replace(speed, flipped=flipped, greatest=greatest)


def changed(exact: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[float, float]:
    """The share of rows whose label differs, and the greatest difference of a number, of two tables of predictions."""
    label = next((name for name in ("label", "labels", "tags") if name in exact), None)
    pairs = list(zip(exact[label], other[label], strict=True)) if label else []
    flipped = sum(one != two for one, two in pairs) / max(len(pairs), 1)
    numbers = [name for name, cells in exact.items() if not isinstance(cells, list) and name != "confidence"]
    greatest = max((float(abs(exact[name] - other[name]).max()) for name in numbers), default=0.0)
    return flipped, greatest


def _write_card(folder: Path, source: _Source, spec: TaskSpec, speed: Speed) -> None:
    from tutti.outputs.election.bundle_card import BundleCard
    from tutti.outputs.election.task_card import task_card

    elected, prepared = source.predictors.elected, source.study.prepared
    parts = prepared.parts[source.task.name]
    origins = prepared.origins[source.task.name]
    data = [
        (part, f"{parts[part].rows:,}", Path(origin["source"]).name)
        for part, origin in origins.items()
        if part in parts
    ]
    if "validation" not in origins:
        data.append(("validation", f"{parts['validation'].rows:,}", "rows of the training file that were held out"))
    described = f"recipe {source.name}" if elected else f"checkpoint {Path(source.name).name}"
    card = BundleCard(
        study=source.study.name,
        recipe=described,
        task=source.task,
        card=None if elected is None else task_card(source.task, elected, rows={}),
        data=data,
        backbones=licences([each.folder for each in source.predictors.checkpoints], source.study.config.backbone),
        size=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        speed=speed,
        calibrated=source.predictors.vote.calibrated,
    )
    write_whole(folder / "README.md", card.to_markdown())


def licences(checkpoints: Sequence[Path], backbone: Any) -> dict[str, str]:
    """By backbone its licence, as its model card or a file of it tells."""
    from tutti.modeling.checkpoint import read_metadata

    bases = {read_metadata(each).base for each in checkpoints}
    names = {base.backbone for base in bases if base is not None} or {str(backbone)}
    found = {}
    for name in sorted(names):
        folder = Path(name).expanduser()
        card = folder / "README.md"
        lines = card.read_text(encoding="utf-8", errors="replace").splitlines()[:50] if card.is_file() else []
        named = next((line.partition(":")[2].strip() for line in lines if line.startswith("license:")), "")
        file = next((file.name for file in folder.glob("LICEN[SC]E*")), "") if folder.is_dir() else ""
        short = folder.name if folder.is_dir() else name
        found[short] = named or (f"see {file}" if file else "not told: look at its page before you pass this on")
    return found
