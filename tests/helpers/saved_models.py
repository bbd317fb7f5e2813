"""A model saved as a trial's best checkpoint, and a task of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tutti.data.encode import load_tokenizer
from tutti.modeling.checkpoint import save_checkpoint
from tutti.modeling.model import MultiTaskModel
from tutti.records import TextLimit
from tutti.tasks.task import Generation, Task


def save_model(folder: Path, model: MultiTaskModel, backbone: Path | str, **changes: Any) -> Path:
    """Saves a model with scores of 0.5; ``changes`` are arguments of ``save_checkpoint``."""
    given = {"key": "t0000", "number": 0, "epoch": 1, "limit": TextLimit(16), "tasks": [*model.tasks.values()]}
    scores = {"score": 0.5, "task_scores": dict.fromkeys(model.tasks, 0.5)}
    save_checkpoint(folder, model=model, tokenizer=load_tokenizer(str(backbone)), **{**given, **scores, **changes})
    return folder


def text_task(metric: str = "perplexity", **changes: Any) -> Task:
    given = {"names": (), "pair": False, "submission": "csv", "kind_name": "text", "generation": Generation()}
    return Task(name="answers", metric=metric, **{**given, **changes})
