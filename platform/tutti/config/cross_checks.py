"""Checks across the sections of a study file: values that are valid by themselves but do not fit together.

All of them read the raw mapping, so that their faults are reported together with those of other kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from tutti.config.metric_facts import FACTS, KIND_WORDS, kind_fault, kind_of, kinds_of
from tutti.config.paths import has_begun
from tutti.config.raw import metric_of, metrics_of, objective_weights_of, section, tasks_of
from tutti.config.stages import STAGES
from tutti.config.study import CHANGING, TEXTS, Scheduler, Search
from tutti.config.training import LIMIT_KEYS
from tutti.config.yaml_file import show
from tutti.errors import Fault, nearest

_SETTINGS: dict[str, tuple[Scheduler, ...]] = {
    "grace_epochs": ("asha", "hyperband", "median"),
    "reduction_factor": ("asha", "hyperband"),
    "exchange_epochs": ("pbt",),
}
MIN_POPULATION = 4  # trials, of which an exchange replaces one


def task_name_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault where a task of a new study has the name under which MLflow shows the metrics of optimizer steps."""
    names = [name for name in tasks_of(raw) if name.lower() == "train"]
    if not names or has_begun(raw):
        return []
    rule = "have no task 'train', as MLflow names the optimizer steps"
    return [Fault(what("tasks"), rule, repr(names[0]), "rename the task")]


def fold_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each key that holds out validation rows although folds do so already."""
    split = section(raw, "split")
    key_of_folds = next((key for key in ("fold_column", "folds") if split.get(key) is not None), None)
    if key_of_folds is None:
        return []
    holdouts = {"split.validation": split.get("validation")}
    holdouts |= {f"tasks.{name}.validation": task.get("validation") for name, task in tasks_of(raw).items()}
    return [
        Fault(
            what(key),
            f"be left out with split.{key_of_folds}, by which every training row validates once",
            show(value),
            f"take it out, or take split.{key_of_folds} out",
        )
        for key, value in holdouts.items()
        if value is not None
    ]


def split_column_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each task without the column that ``split.group`` or ``split.fold_column`` names, as far as is known.

    Whether tables and data sets have a column is known once they are read.
    """
    split, tasks = section(raw, "split"), tasks_of(raw)
    group, faults = split.get("group"), []
    for name in group if isinstance(group, dict) else ():
        if tasks and name not in tasks:
            remedy = nearest(name, list(tasks), otherwise=f"name one of {', '.join(tasks)}")
            faults.append(Fault(what(f"split.group.{name}"), "name a task of the study", repr(name), remedy))
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
    """A fault for each weight of a task that the study does not have, and where no task has a weight above 0."""
    tasks, faults = tasks_of(raw), []
    for name in section(raw, "objective_weights") if tasks else ():
        if name not in tasks:
            remedy = nearest(str(name), list(tasks), otherwise=f"name one of {', '.join(tasks)}")
            faults.append(Fault(what(f"objective_weights.{name}"), "name a task of the study", repr(name), remedy))
    weights = objective_weights_of(raw)
    if weights and not any(weights.values()):
        rule, remedy = "be above 0 for a task at least, whose score trials are compared by", "raise one"
        faults.append(Fault(what("objective_weights"), rule, "0 for every task", remedy))
    return faults


def target_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault where no trial can reach ``search.target_score``, such as 85 where scores are from 0 to 1.

    The score of a trial is the weighted mean of its tasks' metrics.
    """
    target = section(raw, "search").get("target_score")
    metrics = list(metrics_of(raw).values())
    if isinstance(target, bool) or not isinstance(target, int | float) or not metrics:
        return []
    if not all(isinstance(metric, str) and metric in FACTS for metric in metrics):
        return []  # the range of one's own metric is not known
    facts = [FACTS[metric] for metric in metrics]
    bests = [each.best for each in facts if each.best is not None]
    weights = [*objective_weights_of(raw).values()]
    if len(bests) < len(facts) or not any(weights):
        return []
    best = sum(best * weight for best, weight in zip(bests, weights, strict=True)) / sum(weights)
    if target <= best:
        return []
    mean = "" if len(metrics) == 1 else "the mean of " if len(set(weights)) == 1 else "the weighted mean of "
    rule = f"be at most {best:g}, the best that {mean}{', '.join(metrics)} can be"
    if not all(each.higher_is_better for each in facts):
        rule += ", where what is better lower counts with a minus"
    remedy = f"write {target / 100:g} for {target:g} %" if 1 < target <= 100 * best else "lower it"
    return [Fault(what("search.target_score"), rule, f"{target:g}", remedy)]


def kind_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each task whose metric does not fit what its labels are, or whose keys name two sorts of them."""
    faults = []
    for name, task in tasks_of(raw).items():
        kind, metric, columns = kind_of(task), metric_of(task), task.get("columns")
        columns = columns if isinstance(columns, dict) else {}
        sorts = [key for key in ("labels", "values") if columns.get(key)] + ["ordered"] * bool(task.get("ordered"))
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


def report_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each metric of a task's ``report`` that no kind of task has together with the metric that decides."""
    faults = []
    for name, task in tasks_of(raw).items():
        kind, report = kind_of(task), task.get("report")
        for index, metric in enumerate(report if isinstance(report, list | tuple) else ()):
            if kind not in kinds_of(metric):
                rule = "be a metric for the kind of task that the metric of the task is for"
                got = f"{metric!r}, which is for {' or '.join(KIND_WORDS[kind] for kind in kinds_of(metric))}"
                faults.append(Fault(what(f"tasks.{name}.report.{index}"), rule, got, "take it out"))
    return faults


def worker_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault where FSDP is to shard the weights over a single worker, or where a search space varies FSDP."""
    space, workers = section(raw, "search_space"), section(raw, "resources").get("workers", 1)
    faults = [
        Fault(
            what(f"search_space.{key}"),
            "be the same in all trials, which differ in what is trained and not in how",
            "a key of the search space",
            "set it under training:",
        )
        for key in ("fsdp", "fsdp_config")
        if key in space
    ]
    if section(raw, "training").get("fsdp") is True and workers == 1:
        rule, remedy = "be at least 2 with training.fsdp, which shares each weight out", "set it, or take fsdp out"
        faults.append(Fault(what("resources.workers"), rule, "1", remedy))
    return faults


def precision_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each precision of GPUs alone that all trials would have although their workers have none."""
    if section(raw, "resources").get("gpus_per_worker", 0) != 0:
        return []
    training, space = section(raw, "training"), section(raw, "search_space")
    faults = []
    for key in ("fp16", "tf32"):
        place, values = f"training.{key}", [training.get(key)]
        if key in space:
            distribution = space[key] if isinstance(space[key], dict) and not space[key].get("when") else {}
            choices = distribution.get("choices")
            place, values = f"search_space.{key}", list(choices) if isinstance(choices, list | tuple) else []
        if values and all(value is True for value in values):
            rule = "be left out where resources.gpus_per_worker is 0, since a CPU does not compute in it"
            remedy = "give each worker a GPU, or take it out: a trial finds the fastest precision by itself"
            faults.append(Fault(what(place), rule, "true", remedy))
    return faults


def scheduler_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """A fault for each setting of another scheduler than the study's. ``none`` switches any off, with its settings.

    A setting with its default value counts as absent, because a study file written by Tutti has all keys.
    """
    search, defaults = section(raw, "search"), Search()
    by_default = defaults.scheduler if search.get("objectives", ["score"]) == ["score"] else "none"
    scheduler = search.get("scheduler", by_default)
    return [
        Fault(
            what(f"search.{key}"),
            f"be used with the scheduler {' or '.join(schedulers)} only",
            f"{show(search[key])} with the scheduler {scheduler}",
            "take it out, or name another scheduler",
        )
        for key, schedulers in _SETTINGS.items()
        if search.get(key, getattr(defaults, key)) != getattr(defaults, key)
        and scheduler in get_args(Scheduler)
        and scheduler not in (*schedulers, "none")
    ]


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
        distribution = space.get(key)
        choices = distribution.get("choices") if isinstance(distribution, dict) else None
        if isinstance(choices, list | tuple) and None in choices and len(choices) > 1:
            rule = "have no null beside numbers with the scheduler pbt: trials go on from each other's states"
            faults.append(Fault(what(f"search_space.{key}.choices"), rule, show([*choices]), "take it out"))
    for key in (
        *LIMIT_KEYS,
        "backbone",
    ):  # a trial keeps its own best checkpoint, which reads texts as it was trained to
        if key in space:
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
        unsupported["training.best_by"] = (
            True,
            "a trial's own best weights are kept by its score",
        )
    for key, (value, reason) in unsupported.items():
        if value:
            rule = f"be left out with the scheduler pbt: {reason}"
            faults.append(Fault(what(key), rule, "it there", "take it out, or name another scheduler"))
    return faults
