"""The shapes of known solutions, to start from: what they trained, on which folds, with which tricks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

ShapeName = Literal["feedback3", "aes2", "jigsaw", "lmsys", "ner", "tianchi"]


@dataclass(frozen=True)
class Shape:
    """A known solution.

    Attributes:
        of: what it solved, for a comment.
        metric: the competition's.
        backbone: by language, or ``""`` for any.
        longest: most tokens; the rows' own length where they are shorter.
        split, training, search_space, task: keys of the study file.
        words: what it did besides, one sentence each.
    """

    of: str
    metric: str
    backbone: str
    longest: int
    split: Mapping[str, Any]
    training: Mapping[str, Any]
    search_space: Mapping[str, Any]
    task: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()


def _log(low: float, high: float) -> dict[str, Any]:
    return {"type": "log_uniform", "low": low, "high": high}


def _one_of(*choices: Any, when: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "categorical", "choices": [*choices], **({"when": dict(when)} if when else {})}


def _epochs(low: int, high: int) -> dict[str, Any]:
    return {"type": "int", "low": low, "high": high}


_DEBERTA = "microsoft/deberta-v3-base"
_BATCH = {"per_device_train_batch_size": 8}

SHAPES: Mapping[ShapeName, Shape] = {
    "feedback3": Shape(
        of="Feedback Prize, English Language Learning (six scores of an essay, MCRMSE)",
        metric="mcrmse",
        backbone=_DEBERTA,
        longest=1024,
        split={"folds": 4},
        training={**_BATCH, "layer_lr_decay": 0.9, "early_stopping_patience": 3, "evals_per_epoch": 2},
        search_space={
            "learning_rate": _log(8e-6, 4e-5),
            "num_train_epochs": _epochs(3, 5),
            "pooling": _one_of("attention", "mean", "cls"),
            "reinit_layers": _one_of(0, 1),
            "adversarial": _one_of(None, "awp"),
        },
        words=("Several backbones under search_space.backbone, then a weighted vote.", "Rounds of pseudo-labels."),
    ),
    "aes2": Shape(
        of="Automated Essay Scoring 2.0 (a grade per essay, quadratic weighted kappa)",
        metric="quadratic_kappa",
        backbone=_DEBERTA,
        longest=1024,
        split={"folds": 5},
        training={**_BATCH, "layer_lr_decay": 0.95, "head_dropout": 0.0},
        search_space={
            "learning_rate": _log(8e-6, 4e-5),
            "num_train_epochs": _epochs(2, 4),
            "pooling": _one_of("attention", "mean", "cls"),
            "ordered_head": _one_of("regression", "corn"),
        },
        words=(
            "Older essays first, then these alone: training.stages with tasks.",
            "Cut points are fitted out of fold.",
        ),
    ),
    "jigsaw": Shape(
        of="Jigsaw toxic comments (several labels per comment, ROC AUC)",
        metric="roc_auc",
        backbone="FacebookAI/roberta-base",
        longest=256,
        split={"validation": 0.1},
        training={"per_device_train_batch_size": 32, "head_dropout_samples": 5, "evals_per_epoch": 4},
        search_space={
            "learning_rate": _log(1e-5, 5e-5),
            "num_train_epochs": _epochs(1, 2),
            "pooling": _one_of("attention", "mean", "cls"),
            "ema_decay": _one_of(None, 0.999),
        },
        words=("A vote by ranks (method: rank) where models are scaled differently.",),
    ),
    "lmsys": Shape(
        of="LMSYS, which of two answers people prefer (three outcomes, log loss)",
        metric="log_loss",
        backbone="Qwen/Qwen2.5-1.5B-Instruct",
        longest=2048,
        split={"folds": 5},
        training={"adapter": "lora", "bits": 4, "lora_alpha": 16, "truncation": "head_tail", "pooling": "last"}
        | {"activation_checkpointing": True, "gradient_accumulation_steps": 4, "per_device_train_batch_size": 2},
        search_space={
            "learning_rate": _log(1e-4, 3e-4),
            "num_train_epochs": _epochs(1, 2),
            "lora_r": _one_of(16, 64),
        },
        words=("Rows with both answers swapped as more training rows.", "Larger teachers, and soft labels of theirs."),
    ),
    "ner": Shape(
        of="personal data in essays (entities, F5 of tags)",
        metric="tag_f5",
        backbone=_DEBERTA,
        longest=1024,
        split={"folds": 4},
        training={"per_device_train_batch_size": 4, "truncation": "windows", "layer_lr_decay": 0.95},
        search_space={
            "learning_rate": _log(1e-5, 5e-5),
            "num_train_epochs": _epochs(3, 4),
            "tag_head": _one_of("softmax", "crf"),
            "word_pooling": _one_of("first", "mean"),
        },
        words=("Thresholds of O are fitted to the metric: rare entities count.",),
    ),
    "tianchi": Shape(
        of="the Tianchi competition of three Chinese tasks with one model (macro F1)",
        metric="macro_f1",
        backbone="hfl/chinese-roberta-wwm-ext",
        longest=256,
        split={"validation": 0.1},
        training={"per_device_train_batch_size": 32, "class_weights": "balanced"},
        search_space={
            "learning_rate": _log(1e-5, 5e-5),
            "num_train_epochs": _epochs(3, 6),
            "pooling": _one_of("attention", "cls", "mean"),
            "adversarial": _one_of(None, "fgm"),
            "task_sampling": _one_of("proportional", "temperature"),
        },
        task={"cleaning": {"emoji": "zh", "emoticons": True, "duplicates": True}},
        words=("Rounds of pseudo-labels: `unlabeled:` and `tutti round`.",),
    ),
}
