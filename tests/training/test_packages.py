from __future__ import annotations

import pytest
from training_faults import training_faults
from transformers import Trainer, TrainingArguments
from transformers.trainer_optimizer import _BITSANDBYTES_OPTIMIZERS
from transformers.training_args import OptimizerNames

from tutti.training.keys import packages


def test_what_needs_bitsandbytes_says_so_before_any_trial_where_it_is_not_installed(monkeypatch):
    training = {"adapter": "lora", "bits": 4, "optim": "paged_adamw_32bit"}
    space = {"optim": {"type": "categorical", "choices": ["adamw_torch", "adamw_8bit"]}}
    monkeypatch.setattr(packages, "find_spec", lambda name: name)
    assert not training_faults(training)
    assert not training_faults({}, space)
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    rule, rest = "must have the package bitsandbytes installed", "install it with: pip install 'bitsandbytes>=0.50'."
    assert training_faults(training) == [
        f"study.yaml: training.bits {rule}; got 4 without it; {rest}",
        f"study.yaml: training.optim {rule}; got 'paged_adamw_32bit' without it; {rest}",
    ]
    assert training_faults({}, space) == [
        f"study.yaml: search_space.optim.choices.1 {rule}; got 'adamw_8bit' without it; {rest}"
    ]
    assert not training_faults({"adapter": "lora", "bits": None, "optim": "adamw_torch"})


@pytest.mark.parametrize("name", ["galore_adamw", "adamw_torch_8bit", "lomo", "schedule_free_adamw", "stable_adamw"])
def test_an_optimizer_whose_package_is_missing_is_refused_before_any_trial(name, monkeypatch):
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    package = packages.package_of("optim", name)
    (fault,) = training_faults({"optim": name})
    assert fault.startswith(f"study.yaml: training.optim must have the package {package} ins")
    assert fault.endswith(f"got {name!r} without it; install it on every node, or choose another optim.")


def test_the_optimizers_that_need_a_package_are_those_that_transformers_takes_from_one() -> None:
    of_bitsandbytes = {name for name in OptimizerNames if packages.package_of("optim", name.value) == "bitsandbytes"}
    assert of_bitsandbytes == set(_BITSANDBYTES_OPTIMIZERS)
    for name in OptimizerNames:
        if packages.package_of("optim", name.value) is None:
            Trainer.get_optimizer_cls_and_kwargs(TrainingArguments(optim=name, use_cpu=True))
