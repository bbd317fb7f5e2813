"""Checks across the sections of a study file: values that are valid by themselves but do not fit together.

All of them read the raw mapping, so that their faults are reported together with those of other kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tutti.config.layouts import layout_faults
from tutti.config.metric_facts import FACTS, KIND_WORDS, kind_fault, kind_of, kinds_of
from tutti.config.raw import entries, metric_of, objective_weights_of, section, tasks_of
from tutti.config.search import search_faults
from tutti.config.space import sound_distributions
from tutti.config.stages import STAGES, WEIGHTS
from tutti.config.study import CHANGING, TEXTS, Search
from tutti.config.training import LIMIT_KEYS
from tutti.config.yaml_file import show
from tutti.errors import Fault, nearest

MIN_POPULATION = 4  # trials, of which an exchange replaces one


def task_name_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault where a task has the name under which MLflow shows the metrics of optimizer steps."""
    names = [name for name in tasks_of(raw) if name.lower() == "train"]
    if not names:
        return []
    rule = "have no task 'train', as MLflow names the optimizer steps"
    return [Fault(what("tasks"), rule, repr(names[0]), "rename the task")]


def unknown_task_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each task that weights, in whatever section, or groups name and the study does not have."""
    tasks, training = section(raw, "tasks"), section(raw, "training")
    by_task = {"split.group": section(raw, "split").get("group"), "objective_weights": raw.get("objective_weights")}
    by_task |= {f"training.{key}": training.get(key) for key in WEIGHTS}
    for index, stage in enumerate(entries(training, STAGES)):
        by_task |= {f"training.{STAGES}.{index}.{key}": stage.get(key) for key in WEIGHTS if isinstance(stage, dict)}
    named = [(place, name) for place, names in by_task.items() if isinstance(names, dict) for name in names]
    for key in map(str, section(raw, "search_space")):
        weights, _, name = key.partition(".")
        named += [(f"search_space.{weights}", name)] if name and weights in WEIGHTS else []
    rule, otherwise = "name a task of the study", f"name one of {', '.join(tasks)}"
    return [
        Fault(what(f"{place}.{name}"), rule, repr(name), nearest(str(name), list(tasks), otherwise=otherwise))
        for place, name in named
        if tasks and name not in tasks
    ]


def fold_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each key that holds out validation rows although folds do so already."""
    split = section(raw, "split")
    key_of_folds = next((key for key in ("fold_column", "folds") if split.get(key) is not None), None)
    folds = split.get("folds")
    if key_of_folds is None or isinstance(folds, int):
        wrong = [
            Fault(what(f"tasks.{name}.extra_train.{index}.fold"), rule, show(fold), "correct it, or take it out")
            for name, task in tasks_of(raw).items()
            for index, fold in _folds_of_extra(task)
            if not (isinstance(folds, int) and 0 <= fold < folds)
            for rule in [f"be one of the {folds} folds, from 0" if folds else "be left out without split.folds"]
        ]
        if wrong or key_of_folds is None:
            return wrong
    holdouts = {"split.validation": split.get("validation")}
    holdouts |= {f"tasks.{name}.validation": task.get("validation") for name, task in tasks_of(raw).items()}
    rule = f"be left out with split.{key_of_folds}, by which every training row validates once"
    remedy = f"take it out, or take split.{key_of_folds} out"
    return [Fault(what(key), rule, show(value), remedy) for key, value in holdouts.items() if value is not None]


def _folds_of_extra(task: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    for index, entry in enumerate(entries(task, "extra_train")):
        fold = entry.get("fold") if isinstance(entry, dict) else None
        if isinstance(fold, int):
            yield index, fold


def split_column_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each task without the column that ``split.group`` or ``split.fold_column`` names, as far as is known.

    Whether tables and data sets have a column is known once they are read.
    """
    split, tasks = section(raw, "split"), tasks_of(raw)
    group, faults = split.get("group"), []
    for name, task in tasks.items():
        if task.get("layout") not in ("competition", "glue"):
            continue
        key, column = ("split.group", group) if isinstance(group, str) else (f"split.group.{name}", None)
        column = group.get(name) if isinstance(group, dict) else column
        got = f"the layout {task['layout']} of {name}, whose columns have no names"
        if isinstance(column, str) and column not in TEXTS:
            remedy = "name `text` or `text_b`, or use the layout table"
            rule = f"name text or text_b, or a column of a table or data set, and not {column!r}"
            faults.append(Fault(what(key), rule, got, remedy))
        if split.get("fold_column") is not None:
            remedy = "use the layout table, or set split.folds"
            faults.append(Fault(what("split.fold_column"), "name a column of tables or data sets", got, remedy))
    return faults


def objective_weight_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault where no task has a weight above 0."""
    weights = objective_weights_of(raw)
    if not weights or any(weights.values()):
        return []
    rule, remedy = "be above 0 for a task at least, whose score trials are compared by", "raise one"
    return [Fault(what("objective_weights"), rule, "0 for every task", remedy)]


def kind_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each task whose metric does not fit what its labels are, or whose keys name two sorts of them."""
    faults: list[Fault] = []
    for name, task in tasks_of(raw).items():
        kind, metric, columns = kind_of(task), metric_of(task), section(task, "columns")
        faults += _pair_faults(name, task, columns, what)
        sorts = [key for key in ("labels", "values", "choices", "better") if columns.get(key)]
        sorts += ["label"] * (bool(sorts) and isinstance(columns.get("label"), list | tuple))
        sorts += ["ordered"] * bool(task.get("ordered"))
        if len(sorts) > 1:
            got, remedy = " and ".join(sorts), "keep one of them"
            faults.append(Fault(what(f"tasks.{name}"), "have one sort of labels", got, remedy))
        elif isinstance(metric, dict):
            if kind not in kinds_of(metric):
                rule, got = f"be what tasks of {KIND_WORDS[kind]} have", show(metric.get("needs"))
                faults.append(Fault(what(f"tasks.{name}.metric.needs"), rule, got, "correct it"))
        elif (
            isinstance(metric, str)
            and metric in FACTS
            and (fault := kind_fault(FACTS[metric], kind, what=what(f"tasks.{name}.metric")))
        ):
            faults.append(fault)
    return faults


def _pair_faults(
    name: str, task: Mapping[str, Any], columns: Mapping[str, Any], what: Callable[[str], str]
) -> Iterator[Fault]:
    """Faults of the columns of pairs of which one text is better."""
    if not {"better", "worse", "prompt"} & {key for key, column in columns.items() if column}:
        return
    for key in ("better", "worse"):
        if not columns.get(key):
            rule = "be named beside " + ("prompt" if columns.get("prompt") else "better" if key == "worse" else "worse")
            yield Fault(what(f"tasks.{name}.columns.{key}"), rule, "none", "name the column of that text")
    for key in ("template", "template_b"):
        if task.get(key):
            rule, remedy = "be left out with pairs of which one text is better", "name columns.better, worse and prompt"
            yield Fault(what(f"tasks.{name}.{key}"), rule, show(task[key]), remedy)
    if columns.get("text_b"):
        rule, remedy = "be left out with pairs of which one text is better", "name what stands before both as `prompt`"
        yield Fault(what(f"tasks.{name}.columns.text_b"), rule, show(columns["text_b"]), remedy)


def packing_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault where rows with candidates or texts to compare, which are several inputs, are to be packed."""
    training, space = section(raw, "training"), section(raw, "search_space")
    heads = _choices(space, "head") or [training.get("head")]
    several = ("preference",) if {*heads} == {"verbalizer"} else ("choice", "preference")  # letters share an input
    tasks = [name for name, task in tasks_of(raw).items() if kind_of(task) in several]
    choices = _choices(space, "batching")
    set_to = {"training.batching": [training.get("batching")], "search_space.batching": choices}
    rule = (
        f"not be packed beside candidates or texts to compare, each of which is an input by itself: {', '.join(tasks)}"
    )
    return [
        Fault(what(key), rule, "packed", "take it out: rows are then padded")
        for key, values in set_to.items()
        if tasks and "packed" in values
    ]


def chain_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault where a chain of tags is to be learnt of entities that may overlap, which are no chain."""
    tasks = [name for name, task in tasks_of(raw).items() if kind_of(task) == "overlapping"]
    heads = {
        "training.tag_head": [section(raw, "training").get("tag_head")],
        "search_space.tag_head": _choices(section(raw, "search_space"), "tag_head"),
    }
    rule = f"be softmax beside entities that may overlap, whose types have tags of their own: {', '.join(tasks)}"
    return [Fault(what(key), rule, "crf", "take it out") for key, own in heads.items() if tasks and "crf" in own]


def report_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each metric of a task's ``report`` that no kind of task has together with the metric that decides."""
    faults = []
    for name, task in tasks_of(raw).items():
        kind = kind_of(task)
        for index, metric in enumerate(entries(task, "report")):
            if kind not in kinds_of(metric):
                rule = "be a metric for the kind of task that the metric of the task is for"
                got = f"{metric!r}, which is for {' or '.join(KIND_WORDS[kind] for kind in kinds_of(metric))}"
                faults.append(Fault(what(f"tasks.{name}.report.{index}"), rule, got, "take it out"))
    return faults


def worker_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault where FSDP is to shard the weights over a single worker, or where a search space varies FSDP."""
    space, workers = section(raw, "search_space"), section(raw, "resources").get("workers", 1)
    rule, got = "be the same in all trials, which differ in what is trained and not in how", "a key of the search space"
    varied = [key for key in ("fsdp", "fsdp_config") if key in space]
    faults = [Fault(what(f"search_space.{key}"), rule, got, "set it under training:") for key in varied]
    writing = [name for name, task in tasks_of(raw).items() if kind_of(task) == "text"]
    if section(raw, "training").get("fsdp") is True and writing:
        rule = f"be left out with tasks of texts, whose head is the embeddings' table: {', '.join(writing)}"
        faults.append(Fault(what("training.fsdp"), rule, "true", "take it out: workers then hold whole copies"))
    heads = [section(raw, "training").get("tag_head"), *_choices(space, "tag_head")]
    if section(raw, "training").get("fsdp") is True and "crf" in heads:
        rule = "be left out with tag_head: crf, whose transitions are needed whole beside the head"
        faults.append(Fault(what("training.fsdp"), rule, "true", "take it out: workers then hold whole copies"))
    if "gain" in entries(section(raw, "search"), "objectives") and writing:
        rule = f"not have gain with tasks of texts, which have no mean to gain for: {', '.join(writing)}"
        faults.append(Fault(what("search.objectives"), rule, "gain", "take it out"))
    if section(raw, "training").get("fsdp") is True and workers == 1:
        rule, remedy = "be at least 2 with training.fsdp, which shares each weight out", "set it, or take fsdp out"
        faults.append(Fault(what("resources.workers"), rule, "1", remedy))
    return faults


def _choices(space: Mapping[str, Any], key: str) -> list[Any]:
    return entries(section(space, key), "choices")


def device_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault where workers request a GPU that trials would leave idle."""
    training, gpus = section(raw, "training"), section(raw, "resources").get("gpus_per_worker", 0)
    if training.get("use_cpu") is not True or not isinstance(gpus, int | float) or gpus <= 0:
        return []
    rule = f"be left out where resources.gpus_per_worker is {gpus:g}: each worker would keep a GPU that nothing uses"
    remedy = "take one of the two out: without gpus_per_worker a trial trains on the CPU"
    return [Fault(what("training.use_cpu"), rule, "true", remedy)]


def precision_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each precision of GPUs alone that all trials would have although their workers have none."""
    if section(raw, "resources").get("gpus_per_worker", 0) != 0:
        return []
    training, space = section(raw, "training"), sound_distributions(raw.get("search_space"))
    faults = []
    for key in ("fp16", "tf32"):
        place, values = f"training.{key}", [training.get(key)]
        if key in space:
            distribution = space[key]
            values = [] if distribution.when else [value for _, value in distribution.checked]
            place = f"search_space.{key}"
        if values and all(value is True for value in values):
            rule = "be left out where resources.gpus_per_worker is 0, since a CPU does not compute in it"
            remedy = "give each worker a GPU, or take it out: a trial finds the fastest precision by itself"
            faults.append(Fault(what(place), rule, "true", remedy))
    return faults


def population_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each setting that population-based training (``scheduler: pbt``) does not support."""
    search = section(raw, "search")
    if search.get("scheduler") != "pbt":
        return []
    faults = []
    space, training = section(raw, "search_space"), section(raw, "training")
    if not any(key in CHANGING for key in space):
        rule = f"vary a key that may change while a trial trains, for the scheduler pbt: {', '.join(CHANGING)}"
        faults.append(Fault(what("search_space"), rule, ", ".join(space) or "nothing", "add one, or name asha"))
    for key in ("ema_decay", "head_learning_rate"):  # a trial cannot go on from weights or rates that another lacks
        choices = _choices(space, key)
        if None in choices and len(choices) > 1:
            rule = "have no null beside numbers with the scheduler pbt: trials go on from each other's states"
            faults.append(Fault(what(f"search_space.{key}.choices"), rule, show(choices), "take it out"))
    choosing = any(kind_of(task) == "choice" for task in tasks_of(raw).values())
    # A trial keeps its own best checkpoint, which reads texts as it was trained to.
    for key in (*LIMIT_KEYS, "backbone"):
        if key in space and (key != "head" or choosing):
            rule = "be the same in all trials with the scheduler pbt: trials go on from each other's states"
            faults.append(Fault(what(f"search_space.{key}"), rule, "varied", "set it under training:"))
    trials = search.get("trials", Search().trials)
    if type(trials) in (int, float) and trials < MIN_POPULATION:
        rule = f"be at least {MIN_POPULATION} with the scheduler pbt: all trials are one population"
        faults.append(Fault(what("search.trials"), rule, str(trials), "raise it, or name another scheduler"))
    unsupported = {
        "search.patience": (search.get("patience"), "a population is asked for at once"),
        "search.max_trial_hours": (search.get("max_trial_hours"), "a trial waits for the others when they meet"),
        "split.folds": (section(raw, "split").get("folds"), "a trial meets the others after epochs"),
        "split.fold_column": (section(raw, "split").get("fold_column"), "a trial meets the others after epochs"),
        f"training.{STAGES}": (training.get(STAGES), "states of different stages do not fit"),
    }
    if training.get("evals_per_epoch", 1) != 1:
        unsupported["training.evals_per_epoch"] = (True, "a trial meets the others after whole epochs")
    if training.get("best_by") == "loss":
        unsupported["training.best_by"] = (True, "a trial's own best weights are kept by its score")
    keys_of_stages = [keys for keys in entries(training, STAGES) if isinstance(keys, dict)]
    for place, keys in (("training", [training, *keys_of_stages]), ("search_space", [space])):
        stops = any(each.get("early_stopping_patience") is not None for each in keys)
        unsupported[f"{place}.early_stopping_patience"] = (stops, "a trial would be missing where all meet")
    for key, (value, reason) in unsupported.items():
        if value:
            rule = f"be left out with the scheduler pbt: {reason}"
            faults.append(Fault(what(key), rule, "it there", "take it out, or name another scheduler"))
    return faults


CHECKS = (
    layout_faults,
    task_name_faults,
    unknown_task_faults,
    fold_faults,
    split_column_faults,
    objective_weight_faults,
    search_faults,
    kind_faults,
    chain_faults,
    packing_faults,
    report_faults,
    worker_faults,
    device_faults,
    precision_faults,
    population_faults,
)
"""All checks of a raw study file, in the order in which their faults are told."""
