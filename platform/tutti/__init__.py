"""Tutti tunes many fine-tuned text encoders and decoders on a Ray cluster; begin with ``Study`` and docs/python.md."""

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tutti.errors import TuttiError as TuttiError
    from tutti.modeling.new_backbone import new_backbone as new_backbone
    from tutti.workflows.demo import run_demo as run_demo
    from tutti.workflows.new import new_study as new_study
    from tutti.workflows.pretraining import pretrain as pretrain
    from tutti.workflows.push import push as push
    from tutti.workflows.study import Study as Study
    from tutti.workflows.study import open_study as open  # noqa: F401
    from tutti.workflows.submit import jobs as jobs
    from tutti.workflows.submit import submit_pretraining as submit_pretraining
    from tutti.workflows.tune_pretraining import tune_pretraining as tune_pretraining

# transformers imports it where it is installed, and it warns of faster kernels and of every layer's casts.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

__version__ = "0.1.0"

_PUBLIC = {
    "Study": "tutti.workflows.study:Study",
    "open": "tutti.workflows.study:open_study",
    "new_study": "tutti.workflows.new:new_study",
    "run_demo": "tutti.workflows.demo:run_demo",
    "pretrain": "tutti.workflows.pretraining:pretrain",
    "jobs": "tutti.workflows.submit:jobs",
    "push": "tutti.workflows.push:push",
    "submit_pretraining": "tutti.workflows.submit:submit_pretraining",
    "tune_pretraining": "tutti.workflows.tune_pretraining:tune_pretraining",
    "new_backbone": "tutti.modeling.new_backbone:new_backbone",
    "TuttiError": "tutti.errors:TuttiError",
}


def __getattr__(name: str) -> Any:
    """Imports the public names when they are first used: ``import tutti`` itself takes no time."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, _, own = _PUBLIC[name].partition(":")
    return getattr(import_module(module), own)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
