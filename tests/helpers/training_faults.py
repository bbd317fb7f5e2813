"""The faults of training keys and of a search space, as a study file reports them."""

from __future__ import annotations

from tutti.config.space import SearchSpace
from tutti.training.keys.options import check_training


def training_faults(training: dict[str, object], space: dict[str, object] | None = None) -> list[str]:
    checked = SearchSpace.model_validate(space or {}).root
    return [str(fault) for fault in check_training(training, checked, "study.yaml")]
