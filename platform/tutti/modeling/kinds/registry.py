"""The heads by the kind of their task, and of some kinds by the option that chooses one."""

from __future__ import annotations

from collections.abc import Mapping

from tutti.modeling.kinds.choice import ChoiceHead, LettersHead
from tutti.modeling.kinds.classes import ClassesHead
from tutti.modeling.kinds.labels import LabelsHead
from tutti.modeling.kinds.ordered import CornHead, OrderedValueHead
from tutti.modeling.kinds.preference import MarginHead, PreferenceHead
from tutti.modeling.kinds.protocol import HeadKind
from tutti.modeling.kinds.text import TextHead
from tutti.modeling.kinds.tokens import ChainHead, LanesHead, TokensHead
from tutti.modeling.kinds.values import ValuesHead

_ORDERED: Mapping[str, HeadKind] = {"softmax": ClassesHead(), "regression": OrderedValueHead(), "corn": CornHead()}
_HEADS: Mapping[str, HeadKind] = {
    "classes": ClassesHead(),
    "labels": LabelsHead(),
    "value": ValuesHead(),
    "values": ValuesHead(),
    "text": TextHead(),
    "overlapping": LanesHead(),
}
_CHOICE: Mapping[str, HeadKind] = {"inputs": ChoiceHead(), "letters": LettersHead()}
_PREFERENCE: Mapping[str, HeadKind] = {"logistic": PreferenceHead(), "margin": MarginHead()}
_TAGS: Mapping[str, HeadKind] = {"softmax": TokensHead(), "crf": ChainHead()}


def head_kind(
    kind: str, *, ordered: str = "softmax", tags: str = "softmax", pairs: str = "logistic", choices: str = "inputs"
) -> HeadKind:
    """The head of a kind of task.

    Args:
        kind: a name of ``tutti.tasks.kinds.registry.KINDS``.
        ordered: ``softmax``, ``regression`` or ``corn``, for ordered classes alone.
        tags: ``softmax`` or ``crf``, for tags alone.
        pairs: ``logistic`` or ``margin``, for preferences alone.
        choices: ``inputs`` or ``letters``, for candidates alone.
    """
    if kind in ("tokens", "span", "tags"):
        return _TAGS[tags]
    if kind == "preference":
        return _PREFERENCE[pairs]
    if kind == "choice":
        return _CHOICE[choices]
    return _ORDERED[ordered] if kind == "ordered" else _HEADS[kind]
