"""Heads that start from a language-model head: a class is a word that may come next (PET, arXiv 2001.07676)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tutti.errors import BackboneError, Fault, TrialError
from tutti.modeling.decoders import is_decoder
from tutti.modeling.heads import Head
from tutti.modeling.language_head import head_rows
from tutti.modeling.model import MultiTaskModel
from tutti.tasks.task import Task


def word_tokens(words: Mapping[str | int, str], tokenizer: Any) -> dict[str, int]:
    """The one token of each class's word.

    Raises:
        TrialError: if a word is not one token, or two classes have the same one.
    """
    tokens, what = {}, "the training key words"
    for name, word in words.items():
        ids = tokenizer(word, add_special_tokens=False)["input_ids"]
        if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
            pieces = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(ids)))
            rule, remedy = "be one token of the backbone each", "choose another word, perhaps with a space before it"
            raise TrialError(Fault(what, rule, f"{word!r} for {name}, which is {pieces or 'none'}", remedy))
        tokens[str(name)] = int(ids[0])
    if len(set(tokens.values())) < len(tokens):
        got = ", ".join(f"{name}: {word!r}" for name, word in words.items())
        raise TrialError(Fault(what, "differ from class to class", got, "choose other words"))
    return tokens


def letter_tokens(names: Sequence[str], tokenizer: Any) -> dict[str, int]:
    """The one token of each letter: as it is after a space, or where that is none, by itself; raises as
    ``word_tokens`` does.
    """
    try:
        return word_tokens({name: f" {name}" for name in names}, tokenizer)
    except TrialError:
        return word_tokens({name: name for name in names}, tokenizer)


def verbalized(tasks: Sequence[Task], words: Mapping[str | int, str]) -> list[Task]:
    """The tasks all of whose classes have a word.

    Raises:
        TrialError: if there is none.
    """
    known = set(map(str, words))
    found = [task for task in tasks if task.kind.exclusive and known.issuperset(task.names)]
    if not found:
        rule = "have a word for each class of a task"
        names = " or ".join(", ".join(task.names) for task in tasks if task.names)
        got = ", ".join(sorted(known)) or "none"
        raise TrialError(Fault("the training key words", rule, got, f"name the classes {names}"))
    return found


@torch.no_grad()
def start_from_words(model: MultiTaskModel, backbone: str, words: Mapping[str | int, str], tokenizer: Any) -> None:
    """Sets the linear layers of the heads of ``verbalized`` tasks, and of those whose candidates have letters, to the
    rows of the language-model head.

    Raises:
        TrialError: if the words do not serve, or the backbone is no decoder.
        BackboneError: if its files have no language-model head.
    """
    if not is_decoder(model.config):
        rule, remedy = "be linear for an encoder, which guesses no next token", "leave it out, or name a decoder"
        raise TrialError(Fault("the training key head", rule, "verbalizer", remedy))
    tokens, tasks = word_tokens(words, tokenizer), [*model.tasks.values()]
    lettered = [task for task in tasks if task.kind.exchangeable and not set(map(str, words)).issuperset(task.names)]
    by_task = {task.name: letter_tokens(task.names, tokenizer) for task in lettered}
    if words or not lettered:
        by_task |= {task.name: {name: tokens[name] for name in task.names} for task in verbalized(tasks, words)}
    for name, own in by_task.items():
        head = model.head(name)
        assert isinstance(head, Head)
        linear = head.linear
        linear.weight.copy_(_head_rows(model, backbone, [*own.values()]))
        linear.bias.zero_()


def _head_rows(model: MultiTaskModel, backbone: str, tokens: Sequence[int]) -> Tensor:
    """``(tokens, hidden)`` rows of the language-model head, which is not loaded whole."""
    rows = [head_rows(backbone, slice(token, token + 1)) for token in tokens]
    if own := [row for row in rows if row is not None]:
        return torch.cat(own)
    if getattr(model.config, "tie_word_embeddings", True):
        return model.get_input_embeddings().weight[list(tokens)]  # type: ignore[index]
    rule, remedy = "hold a language-model head", "name a backbone that has one, or leave `head: verbalizer` out"
    raise BackboneError(Fault(f"the backbone {backbone!r}", rule, "weights without lm_head", remedy))
