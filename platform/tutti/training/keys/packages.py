"""Packages that values of training keys need. They are looked for without being imported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from tutti.errors import Fault
from tutti.modeling.adapters import INSTALL

_OPTIMIZERS: Mapping[str, str] = {  # package to the values of `optim` that need it
    "bitsandbytes": "paged_|lion_|ademamix|rmsprop_bnb|adamw_8bit|adamw_bnb",
    "torchao": "adamw_torch_[48]bit",
    "schedulefree": "schedule_free",
    "galore_torch": "galore",
    "apollo_torch": "apollo",
    "lomo_optim": "lomo|adalomo",
    "grokadamw": "grokadamw",
    "torch-optimi": "stable_adamw",
    "torchdistx": "adamw_anyprecision",
    "torch_xla": "adamw_torch_xla",
    "torch_npu": "adamw_torch_npu",
}


def missing_package_faults(what: str, key: str, value: Any) -> list[Fault]:
    """The fault of a value that needs a package which is not installed: every trial would fail."""
    package = package_of(key, value)
    if package is None or find_spec("optimi" if package == "torch-optimi" else package) is not None:
        return []
    remedy = INSTALL if package == "bitsandbytes" else "install it on every node, or choose another optim"
    return [Fault(what, f"have the package {package} installed", f"{value!r} without it", remedy)]


def package_of(key: str, value: Any) -> str | None:
    """The package that a value of a training key needs; None for no other than torch."""
    if key == "bits" and value:
        return "bitsandbytes"
    names = (name for name, optimizers in _OPTIMIZERS.items() if key == "optim" and re.match(optimizers, str(value)))
    return next(names, None)
