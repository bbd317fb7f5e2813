"""Keys whose values change what a score is of, so that trials with others do not compare."""

from __future__ import annotations

from tutti.config.metric_facts import FACTS
from tutti.config.space import Categorical
from tutti.config.study import StudyConfig, TaskConfig


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
