"""Backbones with their language-model heads, and what such a head learns: masked tokens, or the next ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

from tutti.errors import BackboneError, Fault, first_line
from tutti.modeling.decoders import is_decoder
from tutti.modeling.model import check_backbone_folder, check_complete, no_progress_bars

Objective = Literal["masked", "causal"]
MASKED_SHARE = 0.15  # of the tokens, as in BERT
IGNORED = -100  # the label of a token that is not to be predicted
_REMEDIES = {"masked": "name an encoder such as BERT or RoBERTa", "causal": "name a decoder such as Qwen2 or Llama"}


def make_collator(objective: Objective, tokenizer: Any, *, longest: int) -> Callable[[Sequence[Any]], dict[str, Any]]:
    """Makes batches of rows for an objective, each with ``labels``: what to predict at each token.

    Args:
        longest: of all rows, in tokens. Rows of this length may have been cut, so a decoder learns no end of them.

    Raises:
        BackboneError: if the tokenizer has no mask token, or no token for the end of a text.
    """
    name = "mask_token" if objective == "masked" else "eos_token"
    if getattr(tokenizer, name) is None:
        what, rule = f"the tokenizer of {tokenizer.name_or_path}", f"have a {name.replace('_', ' ')}"
        raise BackboneError(Fault(what, rule, "none", _REMEDIES[objective]))
    if objective == "masked":
        return DataCollatorForLanguageModeling(tokenizer, mlm_probability=MASKED_SHARE)
    return NextTokens(pad=tokenizer.pad_token_id, end=tokenizer.eos_token_id, longest=longest)


class NextTokens:
    """Pads rows, after an ``end`` where one is missing, and labels each token with the one after it.

    >>> batch = NextTokens(pad=0, end=9, longest=4)([{"input_ids": [1, 5, 6]}, {"input_ids": [1, 2, 3, 4]}])
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[1, 5, 6, 9], [1, 2, 3, 4]], [[5, 6, 9, -100], [2, 3, 4, -100]])
    """

    def __init__(self, *, pad: int, end: int, longest: int) -> None:
        self._pad, self._end, self._longest = pad, end, longest

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """``input_ids``, ``attention_mask`` and ``labels``, each ``(rows, tokens)`` int64."""
        texts = [torch.tensor(self._ended([*row["input_ids"]])) for row in rows]
        following = [nn.functional.pad(text[1:], (0, 1), value=IGNORED) for text in texts]
        return {
            "input_ids": pad_sequence(texts, batch_first=True, padding_value=self._pad),
            "attention_mask": pad_sequence([torch.ones_like(text) for text in texts], batch_first=True),
            "labels": pad_sequence(following, batch_first=True, padding_value=IGNORED),
        }

    def _ended(self, ids: list[int]) -> list[int]:
        return ids if len(ids) >= self._longest or ids[-1:] == [self._end] else [*ids, self._end]


def objective_of(backbone: str) -> Objective:
    """What the backbone can learn from texts alone: ``causal`` for a decoder, ``masked`` for an encoder.

    Raises:
        BackboneError: if it does not load.
    """
    return "causal" if is_decoder(_config(backbone)) else "masked"


def _config(backbone: str) -> Any:
    check_backbone_folder(backbone)
    try:
        return AutoConfig.from_pretrained(backbone, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise _not_loaded(backbone, error) from error


def _not_loaded(backbone: str, error: Exception) -> BackboneError:
    remedy = "check that the id is right and the hub can be reached, or name a folder"
    return BackboneError(Fault(f"the backbone {backbone!r}", "load", first_line(error).rstrip("."), remedy))


def load_language_model(backbone: str, objective: Objective) -> PreTrainedModel:
    """The backbone with its language-model head, in float32; a head that its files lack is new.

    Raises:
        BackboneError: if the backbone does not load, lacks weights, or has no form for the objective.
    """
    config = _config(backbone)
    fits = is_decoder(config) if objective == "causal" else type(config) in MODEL_FOR_MASKED_LM_MAPPING
    if not fits:
        rule = f"have a form that guesses {'the next token' if objective == 'causal' else 'masked tokens'}"
        raise BackboneError(Fault(f"the backbone {backbone!r}", rule, config.model_type, _REMEDIES[objective]))
    auto = AutoModelForCausalLM if objective == "causal" else AutoModelForMaskedLM
    try:
        with no_progress_bars():
            model, loading = auto.from_pretrained(
                backbone, config=config, dtype=torch.float32, output_loading_info=True
            )
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise _not_loaded(backbone, error) from error
    assert isinstance(model, PreTrainedModel)
    encoder = f"{model.base_model_prefix}."
    check_complete(backbone, [name for name in loading["missing_keys"] if name.startswith(encoder)])
    _zero_new_biases(model, {name for name in loading["missing_keys"] if not name.startswith(encoder)})
    return model


def _zero_new_biases(model: PreTrainedModel, missing: Set[str]) -> None:
    """Zeroes the biases of a new head, as its constructor does.

    transformers allocates missing weights without contents and then initialises those of known modules. The heads of
    FNet, Longformer and Data2VecText hold a bias of their own that it leaves out.

    Args:
        missing: names that the backbone's files lack. A bias that is tied to a weight that was loaded is kept.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    loaded = {id(parameter) for name, parameter in parameters.items() if name not in missing}
    for name in missing & parameters.keys():
        if name.rpartition(".")[2] == "bias" and id(parameters[name]) not in loaded:
            nn.init.zeros_(parameters[name])
