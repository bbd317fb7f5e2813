"""Notices on keys at a study's start: those that no trial uses, and those by which scores do not compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tutti.config.conditions import fixed_values, meets, written
from tutti.config.layouts import GLUE_NAMES
from tutti.config.metric_facts import FACTS
from tutti.config.possible import possible_values, stages_of
from tutti.config.search_facts import SCHEDULERS
from tutti.config.space import Categorical
from tutti.config.stages import STAGES, without_task
from tutti.config.study import Search, StudyConfig, TaskConfig
from tutti.tasks.layouts.glue import Glue
from tutti.tasks.objective import weighted_mean
from tutti.training.keys.options import COMPILERS, DEFAULTS

Need = tuple[str, Callable[[Any], object], str]
"""Another key, which of its values (None: the default) let a key have an effect, and in words what is in the way."""


def _with(key: str, value: Any = None) -> Need:
    if value is None:
        return key, bool, f"without {key}"
    return key, lambda got: got == value, f"without {key}: {written(value)}"


def _beside(key: str) -> Need:
    return key, lambda got: not got, f"beside {key}"


def _unlike(*optimizers: str) -> Need:
    return "optim", lambda got: not str(got).startswith(optimizers), "with this optim, which does not read it"


_FROZEN = _beside("freeze_encoder")
_WARM = ("lr_scheduler_type", lambda got: got != "constant", "with lr_scheduler_type: constant")
_WITHOUT_ADAM = ("adafactor", "adagrad", "rmsprop", "sgd")  # optimizers to which transformers passes none of them
_LORA = ("lora_r", "lora_alpha", "lora_dropout", "lora_targets", "lora_layers", "use_rslora", "use_dora")
_NEEDS: Mapping[str, tuple[Need, ...]] = {
    **dict.fromkeys((*_LORA, "weights"), (_with("adapter"),)),
    "words": (_with("head", "verbalizer"),),
    "double_quant": (_with("bits", 4),),
    "quant_type": (_with("bits", 4),),
    **dict.fromkeys(("adapter", "mixout", "layer_lr_decay", "activation_checkpointing"), (_FROZEN,)),
    "gradient_checkpointing": (_FROZEN, _beside("activation_checkpointing")),  # the latter is its present name
    "fsdp_config": (_with("fsdp"),),
    "dataloader_persistent_workers": (_with("dataloader_num_workers"),),
    **dict.fromkeys(("adversarial_epsilon", "adversarial_start"), (_with("adversarial"),)),
    "sampling_temperature": (_with("task_sampling", "temperature"),),
    "sampling_weights": (_with("task_sampling", "weights"),),
    "stride": (_with("truncation", "windows"),),
    "early_stopping_threshold": (_with("early_stopping_patience"),),
    "head_dropout_samples": (("head_dropout", lambda got: got != 0, "with head_dropout: 0"),),
    "per_device_train_batch_size": (_beside("max_tokens_per_batch"),),
    "group_by_length": (("batching", lambda got: got != "packed", "with batching: packed"),),
    "num_train_epochs": (("max_steps", lambda got: (got or -1) < 1, "beside max_steps"),),
    **dict.fromkeys(("warmup_steps", "lr_scheduler_kwargs"), (_WARM,)),
    "logging_steps": (("logging_strategy", lambda got: got != "epoch", "with logging_strategy: epoch"),),
    **dict.fromkeys(("adam_beta1", "adam_beta2"), (_unlike(*_WITHOUT_ADAM),)),
    "adam_epsilon": (_unlike(*_WITHOUT_ADAM, "lion", "paged_lion"),),
    "optim_target_modules": (
        ("optim", lambda got: str(got).startswith(("galore", "apollo")), "without an optim of GaLore or APOLLO"),
    ),
    **dict.fromkeys(COMPILERS, (("torch_compile", lambda got: got is not False, "with torch_compile: false"),)),
}
_TAGGED = {"tokens", "overlapping", "span", "tags"}
_OFF = (None, 0, False, "softmax", "proportional", "fixed", "uncertainty")  # values that switch nothing on


def idle_notices(study: StudyConfig) -> list[str]:
    """One line about all keys that no trial of a study uses; none where each has its use.

    >>> idle_notices(study)  # doctest: +SKIP
    ['notice: training.lora_r has no effect without adapter']
    """
    idle = [f"{key} has no effect {why}" for key, why in (*_idle_keys(study), *_idle_settings(study))]
    return [f"notice: {', '.join(idle)}"] if idle else []


def _idle_keys(study: StudyConfig) -> Iterator[tuple[str, str]]:
    fixed, space = fixed_values(study.training), study.search_space.root
    for full, value in fixed.items():
        if full in space and not space[full].when:
            yield f"training.{full}", "as the search space varies it"
        if full in space or value in _OFF:
            continue
        if reason := _idle_on_tasks(study, _name(full)) or _idle_by_keys(study, full, value):
            yield f"training.{full}", reason
    for full, distribution in space.items():
        own = [f"{STAGES}.{index}.{_name(full)}" for index in range(len(study.training.get(STAGES) or ()))]
        unmet = (key for key in distribution.when if key not in space and not meets(distribution, key, fixed))
        if key := next(unmet, None):
            yield f"search_space.{full}", f"with {key}: {written(fixed.get(key))}"
        elif own and full not in own and all(key in fixed or (key in space and not space[key].when) for key in own):
            yield f"search_space.{full}", "as each stage has its own"
        elif reason := _idle_by_keys(study, full, None):
            yield f"search_space.{full}", reason


def _idle_by_keys(study: StudyConfig, full: str, value: Any) -> str | None:
    """What keeps a key from having an effect in each stage that it is for; None where it has one in some trial."""
    stages = [stage for stage in stages_of(study) if full.startswith(stage)] if full.startswith(f"{STAGES}.") else []
    stages = stages or stages_of(study)
    name = _name(full)

    def never(need: Need) -> bool:
        other, lets, _ = need
        return not any(lets(got) for stage in stages for _, got in possible_values(study, other, stage))

    for need in _NEEDS.get(name, ()):
        if never(need):
            return need[2]
    longest = max((_epochs(study, stage) for stage in stages), default=0)
    if name == "adversarial_start" and value is not None and value >= longest:
        return "after the last epoch"
    if name == "loss_balancing" and value == "dynamic" and longest <= 2:
        return "before the third epoch"
    if (
        name == "truncation"
        and value == "windows"
        and {task.kind for task in study.tasks.values()} <= {"choice", "preference"}
    ):
        return "with candidates, of which the context of each is cut, and with texts that are compared, which are cut"
    if name == "swa_epochs" and value == 1:
        return "as the mean over a single epoch"
    return None


def _epochs(study: StudyConfig, stage: str) -> float:
    """The most epochs that a stage may have; without a limit where it counts steps."""
    if any((steps or -1) > 0 for _, steps in possible_values(study, "max_steps", stage)):
        return float("inf")
    default = DEFAULTS["num_train_epochs"]
    return float(max(default if got is None else got for _, got in possible_values(study, "num_train_epochs", stage)))


def _idle_on_tasks(study: StudyConfig, key: str) -> str | None:
    """What the study's tasks lack for a key under ``training:``. Search spaces are for any tasks."""
    kinds = {task.kind for task in study.tasks.values()}
    learnt_as_number = {"ordered"} if study.training.get("ordered_head") == "regression" else set()
    if key == "ordered_head" and "ordered" not in kinds:
        return "without a task of ordered classes"
    if key in ("tag_head", "word_pooling") and not kinds & _TAGGED:
        return "without a task of the layout tokens"
    if key == "pair_loss" and "preference" not in kinds:
        return "without a task of pairs of which one text is better"
    if key == "pooling" and kinds <= _TAGGED:
        return "in a study of tags alone, whose words are pooled by word_pooling"
    if key in ("class_weights", "focal_gamma", "label_smoothing_factor") and kinds <= {"value", "values"}:
        return "without a task of classes or labels"
    if key == "class_weights" and kinds <= {"value", "values", "choice", "preference"}:
        return "with candidates or pairs, whose places are no classes"
    if key == "swap" and kinds <= {"choice", "preference"}:
        return "with candidates, which follow their context, and with texts that are read by themselves"
    if key == "swap" and not any(_reads_pairs(name, task) for name, task in study.tasks.items()):
        return "without pairs, whose texts are named as columns.text and columns.text_b, beside a template too"
    if key in ("focal_gamma", "label_smoothing_factor") and kinds <= {"value", "values"} | learnt_as_number:
        return "with ordered_head: regression"
    if key in ("task_sampling", "loss_balancing") and len(study.tasks) == 1:
        return "in a study of one task"
    return None


def _reads_pairs(name: str, task: TaskConfig) -> bool:
    if task.layout == "glue":
        return Glue(task.glue or GLUE_NAMES[name.lower()]).pair
    return task.pair or bool(task.columns.text_b or task.template_b)


def _idle_settings(study: StudyConfig) -> Iterator[tuple[str, str]]:
    search, defaults = study.search, Search()
    settings = dict.fromkeys(key for facts in SCHEDULERS.values() for key in facts.settings)
    unread = [key for key in settings if key not in SCHEDULERS[search.scheduler].settings]
    for key in unread if search.scheduler != "none" else ():  # which switches any of them off, with its settings
        if getattr(search, key) != getattr(defaults, key):
            yield f"search.{key}", f"with the scheduler {search.scheduler}"
    bests = [FACTS[task.metric_name].best if task.metric_name in FACTS else None for task in study.tasks.values()]
    known = [best for best in bests if best is not None]
    if search.target_score is not None and len(known) == len(bests):
        best = weighted_mean(known, list(study.weights.values()))
        if search.target_score > best:
            yield "search.target_score", f"above {best:g}, the best score that there can be"


def _name(full: str) -> str:
    """A key without its stage or task."""
    return without_task(full.split(".", 2)[-1] if full.startswith(f"{STAGES}.") else full)


def incomparable_notices(study: StudyConfig) -> list[str]:
    """One line about scores that are of the tokens of targets, where the search space varies these.

    >>> incomparable_notices(study)  # doctest: +SKIP
    ['notice: scores of answers do not compare across backbones of other tokens: set `metric: bits_per_character`']
    """
    of_tokens = {name: task for name, task in study.tasks.items() if _is_of_tokens(task)}
    reasons = []
    by_token = [name for name, task in of_tokens.items() if task.metric_name == "perplexity"]
    if by_token and _varies(study, "backbone"):
        why, remedy = "across backbones of other tokens", "set `metric: bits_per_character`, which does"
        reasons.append(f"scores of {', '.join(by_token)} do not compare {why}: {remedy}")
    if of_tokens and _varies(study, "target_max_len"):
        why, remedy = "where target_max_len varies, which cuts the targets", "give it one value that holds them"
        reasons.append(f"scores of {', '.join(of_tokens)} do not compare {why}: {remedy}")
    return [f"notice: {'; '.join(reasons)}"] if reasons else []


def _is_of_tokens(task: TaskConfig) -> bool:
    name = task.metric_name
    by_questions = any(each.decides for each in task.report_sets.values())
    return name in FACTS and FACTS[name].needs == "likelihood" and not by_questions


def _varies(study: StudyConfig, key: str) -> bool:
    distribution = study.search_space.root.get(key)
    if isinstance(distribution, Categorical):
        return len(distribution.choices) > 1
    return distribution is not None
