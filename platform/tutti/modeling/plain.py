"""A model as a plain one of transformers, where an architecture of that library can express its head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from tutti.errors import Fault, StudyError
from tutti.modeling.heads import ClsPooling, Head, LastPooling
from tutti.modeling.kinds.choice import LettersHead
from tutti.modeling.kinds.ordered import CornHead, OrderedValueHead
from tutti.modeling.kinds.tokens import LanesHead
from tutti.modeling.model import MultiTaskModel, no_progress_bars
from tutti.modeling.token_head import TokenHead
from tutti.records import TextLimit

_SMALL = 1e-4
"""Of a state times this the tanh is this times the state, as far as float32 can tell."""
_HIGH = 40.0
"""Above this, GELU and ReLU return what they are given."""
TOLERANCE = 1e-5
_BUNDLE = "export it as a bundle, which has the head itself"


def plain_model(model: MultiTaskModel, limit: TextLimit) -> PreTrainedModel:
    """A model for sequences, tokens or multiple choice with the weights of a model of one task.

    Heads of transformers for sequences have a dense layer with an activation before the last one; it is set to return
    what it is given. Whether outputs are equal has to be tried: ``difference``.

    Raises:
        StudyError: if no class of transformers has such a head.
    """
    (task,) = model.tasks.values()
    head = model.head(task.name)
    if reason := next(_reasons(model, limit), None):
        raise _refused(reason)
    weight, bias = _linear(head)
    names = task.names if task.kind.probabilistic and not task.kind.exchangeable else ()
    config = model.encoder.config.__class__.from_dict(model.encoder.config.to_dict())
    config.id2label = dict(enumerate(names or [f"LABEL_{number}" for number in range(len(weight))]))
    config.label2id = {name: number for number, name in config.id2label.items()}
    config.problem_type = _problem_type(model)
    vars(config).pop("function_to_apply", None)
    if hasattr(config, "pooler_hidden_act"):  # DeBERTa has the choice
        config.pooler_hidden_act, config.pooler_dropout = "linear", 0.0
    auto: Any = AutoModelForSequenceClassification
    if isinstance(head, TokenHead):
        auto = AutoModelForTokenClassification
    elif task.kind.exchangeable:
        auto = AutoModelForMultipleChoice
    try:
        with no_progress_bars():
            plain: PreTrainedModel = auto.from_config(config).eval()
    except ValueError as error:
        raise _refused(f"transformers has no {auto.__name__} of {config.model_type}") from error
    base = getattr(plain, plain.base_model_prefix)
    loading = base.load_state_dict(model.encoder.state_dict(), strict=False)
    if lost := [name for name in loading.missing_keys if "pooler" not in name]:
        raise _refused(f"{type(plain).__name__} has other weights, such as {lost[0]}")
    _set_head(
        plain, base, weight, bias, pooler=model.encoder.pooler if model.head_options.pooling == "pooler" else None
    )
    return plain


@torch.no_grad()
def difference(model: MultiTaskModel, plain: PreTrainedModel, batch: Mapping[str, Tensor]) -> float:
    """The greatest difference of what the two heads give for a batch of rows, as ``TokenRows`` pads them."""
    (task,) = model.tasks
    raw = model(task, **batch)
    names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in batch]
    head = model.head(task)
    if isinstance(head, TokenHead):
        logits = plain(**{name: batch[name] for name in names}).logits
        windows, units = batch.get("windows"), batch["units"]
        first = torch.arange(len(units)) if windows is None else windows.cumsum(0) - windows
        present = units[..., 0] >= 0
        window, place, _ = units.clamp(min=0).unbind(dim=2)
        return float((logits[first.unsqueeze(1) + window, place] - raw)[present].abs().max())
    if not model.tasks[task].kind.exchangeable:
        return float((plain(**{name: batch[name] for name in names}).logits - raw).abs().max())
    counts = batch["windows"].tolist() if "windows" in batch else [1] * len(batch["input_ids"])
    greatest, start = 0.0, 0
    for row, count in enumerate(counts):
        own = {name: batch[name][start : start + count].unsqueeze(0) for name in names}
        greatest = max(greatest, float((plain(**own).logits[0] - raw[row, :count]).abs().max()))
        start += count
    return greatest


def check_equal(model: MultiTaskModel, plain: PreTrainedModel, batch: Mapping[str, Tensor]) -> float:
    """The ``difference``; raises StudyError if it is above ``TOLERANCE``."""
    found = difference(model, plain, batch)
    if not found <= TOLERANCE:
        raise _refused(f"{type(plain).__name__} gives other values, by {found:.2g}")
    return found


def _refused(reason: str) -> StudyError:
    return StudyError(Fault("--format transformers", "have a head that a class of transformers has", reason, _BUNDLE))


def _reasons(model: MultiTaskModel, limit: TextLimit) -> Iterator[str]:
    """What keeps a class of transformers from having the head."""
    (task,) = model.tasks.values()
    head, options = model.head(task.name), model.head_options
    if options.layers > 1:
        yield f"one that mixes the last {options.layers} layers"
    if limit.truncation == "windows" and not task.kind.sequential:
        yield "one that averages the windows of long rows"
    if task.swaps(limit):
        yield "one that reads pairs in both orders"
    if isinstance(head, TokenHead):
        if isinstance(head.kind, LanesHead):
            yield "one of entities that may overlap"
        if options.tags == "crf":
            yield "a chain of tags (tag_head: crf)"
        if options.word_pooling != "first":
            yield f"one of each word's {options.word_pooling} token"
    elif isinstance(head, Head):
        if not isinstance(head.pooling, ClsPooling | LastPooling):  # of which the backbone's pooler is one
            yield f"the pooling {options.pooling}"
        if isinstance(head.kind, LettersHead):
            yield "one that chooses by letters"
        if isinstance(head.kind, OrderedValueHead | CornHead):
            yield f"the head `ordinal: {options.ordered}` of ordered classes"


def _problem_type(model: MultiTaskModel) -> str | None:
    (task,) = model.tasks.values()
    if task.kind.sequential or task.kind.exchangeable:
        return None
    if not task.kind.probabilistic:
        return "regression"
    return "single_label_classification" if task.kind.exclusive else "multi_label_classification"


def _linear(head: Any) -> tuple[Tensor, Tensor]:
    """Weight and bias of the last layer, with the scale of numbers in them."""
    weight, bias = head.linear.weight.detach().clone(), head.linear.bias.detach().clone()
    if head.kind.standardized:
        scale, shift = head.scale.reshape(-1, 1), head.shift.reshape(-1)
        return weight * scale, bias * scale.squeeze(1) + shift
    return weight, bias


@torch.no_grad()
def _set_head(plain: Any, base: Any, weight: Tensor, bias: Tensor, *, pooler: Any) -> None:
    """Sets the last layer, and makes the dense layer before it the pooler, or return what it is given."""
    last = _last(plain)
    dense, activation = _dense(plain, base)
    if pooler is not None:
        if dense is None or activation != "tanh":
            raise _refused("the pooling pooler")
        dense.load_state_dict(getattr(pooler, "dense", pooler).state_dict())
    elif dense is not None:
        hidden = dense.weight.shape[0]
        dense.bias.zero_()
        dense.weight.copy_(torch.eye(hidden))
        if activation == "tanh":
            dense.weight.mul_(_SMALL)
            weight = weight / _SMALL
        elif activation == "rectified":
            dense.bias.fill_(_HIGH)
            bias = bias - (weight.double().sum(dim=1) * _HIGH).to(bias.dtype)
    last.weight.copy_(weight)
    if last.bias is not None:
        last.bias.copy_(bias)
    elif bool(bias.any()):
        raise _refused(f"one with a bias, which {type(plain).__name__} has not")


def _last(plain: Any) -> nn.Linear:
    for path in ("classifier.out_proj", "classifier", "score"):
        try:
            module = plain.get_submodule(path)
        except AttributeError:
            continue
        if isinstance(module, nn.Linear):
            return module
    raise _refused(f"the head of {type(plain).__name__}, which Tutti does not know")


def _dense(plain: Any, base: Any) -> tuple[nn.Linear | None, str]:
    """The dense layer before the last one, and what follows it: ``tanh``, ``rectified`` or nothing."""
    classifier = getattr(plain, "classifier", None)
    if isinstance(dense := getattr(classifier, "dense", None), nn.Linear):  # RoBERTa, ELECTRA, MPNet
        return dense, "rectified" if hasattr(classifier, "activation") else "tanh"
    if isinstance(dense := getattr(plain, "pre_classifier", None), nn.Linear):  # DistilBERT
        return dense, "rectified"
    if isinstance(dense := getattr(getattr(plain, "pooler", None), "dense", None), nn.Linear):  # DeBERTa
        return dense, ""
    pooler = getattr(base, "pooler", None)
    if isinstance(pooler, nn.Linear):  # ALBERT
        return pooler, "tanh"
    if isinstance(dense := getattr(pooler, "dense", None), nn.Linear):  # BERT
        return dense, "tanh"
    return None, ""


class Outputs(nn.Module):
    """Tokens to the outputs of a task's kind, ``(rows, outputs)`` float32, for export to ONNX."""

    def __init__(self, model: MultiTaskModel) -> None:
        super().__init__()
        (self.task,) = model.tasks
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        head = self.model.head(self.task)
        raw = self.model(self.task, input_ids, attention_mask, token_type_ids)
        predicted: Tensor = head.kind.predict(raw, self.model.tasks[self.task].outputs, scale=head.scale)
        return predicted
