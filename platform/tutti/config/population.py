"""What a study with ``scheduler: pbt`` must be like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tutti.config.stages import STAGES
from tutti.config.study import Search
from tutti.errors import Fault

CHANGING = (
    "learning_rate",
    "head_learning_rate",
    "weight_decay",
    "head_dropout",
    "rdrop_alpha",
    "adversarial_epsilon",
    "focal_gamma",
    "label_smoothing_factor",
    "max_grad_norm",
    "ema_decay",
)
"""Keys that may change while a trial trains. All others say what weights there are, or which steps, and stay theirs."""
LEAST = 4  # trials, of which a meeting replaces one
_PARTS = ("search_space", "training", "split")


def population_faults(raw: Mapping[str, Any], *, what: Callable[[str], str]) -> list[Fault]:
    """Faults of a raw study whose scheduler is ``pbt``; none of any other."""
    search = raw.get("search")
    if not isinstance(search, dict) or search.get("scheduler") != "pbt":
        return []
    faults = []
    space, training, split = (given if isinstance(given, dict) else {} for given in map(raw.get, _PARTS))
    if not any(key in CHANGING for key in space):
        rule = f"vary a key that may change while a trial trains, for the scheduler pbt: {', '.join(CHANGING)}"
        faults.append(Fault(what("search_space"), rule, ", ".join(space) or "nothing", "add one, or name asha"))
    trials = search.get("trials", Search().trials)
    if type(trials) in (int, float) and trials < LEAST:
        rule = f"be at least {LEAST} with the scheduler pbt: all trials are one population"
        faults.append(Fault(what("search.trials"), rule, str(trials), "raise it, or name another scheduler"))
    beside = {
        "search.patience": (search.get("patience"), "a population is asked for at once"),
        "search.max_trial_hours": (search.get("max_trial_hours"), "a trial waits for the others when they meet"),
        "split.folds": (split.get("folds"), "a trial meets the others after epochs"),
        f"training.{STAGES}": (training.get(STAGES), "states of different stages do not fit"),
    }
    if training.get("evals_per_epoch", 1) != 1:
        beside["training.evals_per_epoch"] = (True, "a trial meets the others after whole epochs")
    for key, (given, why) in beside.items():
        if given:
            rule = f"be left out with the scheduler pbt: {why}"
            faults.append(Fault(what(key), rule, "it there", "take it out, or name another scheduler"))
    return faults
