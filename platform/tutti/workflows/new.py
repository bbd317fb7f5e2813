"""From what a competition hands out to a study file that runs as it is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tutti.data.missed_group import NAMED
from tutti.errors import ConfigError, Fault, StudyError, SubmissionError, nearest
from tutti.files import write_whole
from tutti.workflows import stores
from tutti.workflows.console import console as shared_console
from tutti.workflows.console import quiet_console

if TYPE_CHECKING:
    from tutti.config.study import StudyConfig
    from tutti.data.guess.columns import Guess
    from tutti.data.guess.files import HandedOut
    from tutti.data.guess.seen import Seen
    from tutti.data.guess.shapes import Shape
    from tutti.data.prepared import Prepared

Ask = Callable[[str, Sequence[str]], str]
"""The task and the metrics that fit it, the likeliest first, to the metric that decides."""

_BACKBONES = {  # by language: without a GPU, and with one
    "English": ("sentence-transformers/all-MiniLM-L6-v2", "microsoft/deberta-v3-base"),
    "Chinese": ("hfl/rbt3", "hfl/chinese-roberta-wwm-ext"),
    "": ("intfloat/multilingual-e5-small", "FacebookAI/xlm-roberta-base"),
}
_DECODER = "Qwen/Qwen2.5-0.5B"
_LORA = {"adapter": "lora", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}


@dataclass(frozen=True)
class New:
    """A study file that was written.

    Attributes:
        file: the study file.
        page: what was seen in the files.
        study: its name.
    """

    file: Path
    page: Path
    study: str


def new_study(
    files: Sequence[Path | str] | Path | str,
    out: Path | str = "study.yaml",
    *,
    metric: str | None = None,
    like: str | None = None,
    backbone: str | None = None,
    ask: Ask | None = None,
    quiet: bool = False,
) -> New:
    """Writes a commented study file for files as a competition hands them out, and a page of what they hold.

    Train, test and sample submission are told by their names; columns, ids, groups, kind, order of labels, language and
    lengths by what is in them. The study file is checked: it loads, and its rows can be prepared.

    Args:
        files: a folder, or files: CSV, TSV, JSON, JSON Lines, Parquet, Excel, words with tags; packed or not.
        out: the study file; the page lies beside it, with the suffix ``.md``.
        metric: that decides; by default the likeliest, or what ``ask`` answers.
        like: a known solution to start from: one of data/guess/shapes.yaml.
        backbone: by default one for the language, small without a GPU.

    Raises:
        StudyError: if ``out`` is there already, or another file in the place of the page.
        TaskFileError: if there are no labelled rows, or a file cannot be read.
        ConfigError: if the metric does not fit the labels, or a name is unknown.

    Example:
        >>> tutti.new_study("emotions", metric="macro_f1").file
    """
    from tutti.data.guess.columns import guess
    from tutti.data.guess.files import handed_out, plain_name
    from tutti.data.guess.seen import PAGE_TITLE, page, seen

    out, console = Path(out), quiet_console() if quiet else shared_console
    given = [Path(each) for each in ([files] if isinstance(files, str | Path) else files)]
    written = out.with_suffix(".md")  # the page
    is_ours = written.is_file() and written.read_bytes().startswith(PAGE_TITLE.encode())  # of an earlier study file
    if taken := [each for each in (out, written) if each.exists() and not (each == written and is_ours)]:
        raise StudyError(Fault(str(taken[0]), "be a new file", "one that is there", "name another one with --out"))
    if out == written:
        rule, remedy = "be a study file, beside which the page has the suffix .md", "name it .yaml"
        raise StudyError(Fault(f"--out {out}", rule, "the suffix .md", remedy))
    shape = _shape(like)
    tasks = handed_out(given, unpack=out.absolute().parent)
    guesses: dict[str, Guess] = {}
    for task in tasks:
        chosen = metric or (shape and _fitting(shape, task)) or None
        found = guess(task, metric=chosen)
        if not chosen and ask and len(found.metrics) > 1:
            found = guess(task, metric=ask(task.name, found.metrics))
        guesses[task.name] = found
        console.print(f"Task {task.name}: {', '.join(f'{part} {file.name}' for part, file in _parts(task).items())}")
    name = given[0].absolute().name.split(".")[0] if len(tasks) > 1 or given[0].is_dir() else tasks[0].name
    document = _document(plain_name(name), tasks, guesses, folder=out.absolute().parent)
    with TemporaryDirectory() as place:
        config, prepared = _prepared(document, guesses, out.absolute().parent, Path(place))
        _with_samples(document, config, prepared, tasks, guesses, out.absolute().parent)
        looked = seen(prepared)
        notices = [notice for notice in prepared.notices if not NAMED.fullmatch(notice)]
    _complete(document, looked, guesses, shape, backbone=backbone)
    from tutti.workflows.study_text import study_text

    text = study_text(document, guesses, looked, shape=shape, like=like, given=given, out=out)
    write_whole(out, text)
    files_of = {}
    for task in tasks:  # by the names that the study's parts have
        files_of[task.name] = dict(zip(config.tasks[task.name].files(), map(str, _parts(task).values()), strict=True))
    write_whole(written, page(looked, notices=notices, files=files_of))
    stores.read_study_file(out, overrides=[])
    return New(out, written, document["study"])


def _shape(like: str | None) -> Shape | None:
    from tutti.data.guess.shapes import shapes

    if like is not None and like not in shapes():
        remedy = nearest(like, shapes(), otherwise="name one of them")
        raise ConfigError(Fault("--like", f"be one of {', '.join(shapes())}", repr(like), remedy))
    return None if like is None else shapes()[like]


def _fitting(shape: Shape, task: HandedOut) -> str | None:
    """The shape's metric, where it fits the task's labels."""
    from tutti.data.guess.columns import guess

    try:
        return shape.metric if guess(task, metric=shape.metric) else None
    except ConfigError:
        return None


def _parts(task: HandedOut) -> dict[str, Path]:
    """The files of a task by part; of several sets ``validation-NAME`` and ``test-NAME``."""
    sets = {
        part if len(files) == 1 else f"{part}-{name}": file
        for part, files in (("validation", task.validations), ("test", task.tests))
        for name, file in files.items()
    }
    parts = {"train": task.train, "unlabeled": task.unlabeled, **sets}
    return {part: file for part, file in parts.items() if file is not None}


def _document(name: str, tasks: Sequence[HandedOut], guesses: Mapping[str, Guess], *, folder: Path) -> dict[str, Any]:
    """The study file's content as far as the columns say it, with paths relative to its folder."""
    documents: dict[str, dict[str, Any]] = {}
    for task in tasks:
        found, files = guesses[task.name].keys, {part: _relative(file, folder) for part, file in _parts(task).items()}
        own = documents[task.name] = {"layout": found["layout"]}
        for part, file in files.items():
            key, _, of_set = part.partition("-")
            if of_set:
                own.setdefault(key, {})[of_set] = file
            else:
                own[key] = file
        own |= {key: value for key, value in found.items() if key != "layout"}
    return {"study": name, "backbone": "", "tasks": documents}


def _relative(file: Path, folder: Path) -> str:
    """The path from the study file's folder, unless that would lead far up."""
    path = os.path.relpath(file.absolute(), folder)
    return str(file.absolute()) if path.startswith("../..") else path


def _prepared(
    document: dict[str, Any], guesses: Mapping[str, Guess], folder: Path, place: Path
) -> tuple[StudyConfig, Prepared]:
    """The rows as the study will have them, held out by groups where columns are called so."""
    from tutti.config.load import load_study
    from tutti.config.paths import absolute, map_task_paths
    from tutti.data.prepare import prepare
    from tutti.tasks.build import task_specs

    groups = {name: found.group for name, found in guesses.items() if found.group}

    def hold_out_groups() -> None:
        document["split"] = {"validation": 0.1, "group": groups if len(guesses) > 1 else next(iter(groups.values()))}

    if groups:
        hold_out_groups()
    tasks = {
        name: map_task_paths(task, lambda _, path: str(absolute(path, folder)))
        for name, task in document["tasks"].items()
    }
    draft = {**document, "tasks": tasks, "backbone": "bert-base-uncased", "search": {"trials": 1}}
    config = load_study(draft)
    specs = task_specs(config.tasks, None, config.split)
    prepared = prepare(specs, validation=config.split.validation, seed=0, folder=place, group=config.split.group)
    missed = [named for notice in prepared.notices if (named := NAMED.fullmatch(notice))]
    groups |= {named[1]: named[2] for named in missed}  # columns whose values tell of the labels
    if missed:
        hold_out_groups()
    return config, prepared


def _with_samples(
    document: dict[str, Any],
    config: StudyConfig,
    prepared: Prepared,
    tasks: Sequence[HandedOut],
    guesses: Mapping[str, Guess],
    folder: Path,
) -> None:
    """Names the sample submissions that can be followed."""
    from tutti.outputs.submission.submission import Formats

    for task in tasks:
        own = next(each for each in prepared.tasks if each.name == task.name)
        tests = config.tasks[task.name].test_sets()
        if not task.sample or not tests:
            continue
        ids = {task.name: {part: prepared.ids(task.name, part) for part in tests}}
        try:
            Formats(templates={task.name: task.sample}).check(ids, [own])
        except SubmissionError as error:
            guesses[task.name].why["submission"] = f"{task.sample.name} is not followed: {error.faults[0].got}"
            continue
        document["tasks"][task.name]["submission"] = {"like": _relative(task.sample, folder)}


def _complete(
    document: dict[str, Any],
    looked: Mapping[str, Seen],
    guesses: Mapping[str, Guess],
    shape: Shape | None,
    *,
    backbone: str | None,
) -> None:
    """Adds what the rows say: backbone, lengths, split, search space, resources."""
    has_gpu = shutil.which("nvidia-smi") is not None
    languages = {each.language for each in looked.values()}
    small, large = _BACKBONES.get(languages.pop() if len(languages) == 1 else "", _BACKBONES[""])
    generative = any(each.task.kind.generative for each in looked.values())
    document["backbone"] = backbone or (
        _DECODER if generative else shape.backbone if shape else (small, large)[has_gpu]
    )
    longest = max(each.max_length for each in looked.values())
    needed = max(-(-(each.tokens[2] + 4) // 64) * 64 for each in looked.values())
    document.setdefault("split", {"validation": 0.1})
    if all("validation" in task for task in document["tasks"].values()):
        document["split"] = {}
    document["training"] = {"max_length": longest}
    special = any(each.task.kind.sequential or each.task.kind.exchangeable or generative for each in looked.values())
    space: Any = "base_large" if has_gpu else "small"
    if special:
        rate = {"type": "log_uniform", "low": 3.0e-5, "high": 3.0e-4}
        space = {"learning_rate": rate, "num_train_epochs": {"type": "int", "low": 2, "high": 5}}
        document["training"] |= {} if generative else {"per_device_train_batch_size": 8}
    if generative:
        document["training"] |= {"target_max_len": 128, **_LORA}
    if shape:
        group = document["split"].get("group")
        document["split"] = {**shape.split, **({"group": group} if group else {})} if document["split"] else {}
        document["training"] = {"max_length": int(min(max(longest, needed), shape.longest)), **shape.training}
        space = {key: dict(value) for key, value in shape.search_space.items()}
        for task in document["tasks"].values():
            task |= {key: value for key, value in shape.task.items() if key not in task}
    document["search_space"] = space
    document["search"] = {"trials": 8}
    document["resources"] = {"cpus_per_worker": 1, "gpus_per_worker": 1 if has_gpu else 0}
    document["ensemble"] = {"recipe": "auto"}
