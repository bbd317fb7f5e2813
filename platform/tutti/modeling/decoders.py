"""Which backbones are decoders: each token sees those before it alone, and a language-model head guesses the next."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES


def is_decoder(config: Any) -> bool:
    """Whether a model with this configuration reads from left to right, as Qwen, Llama and GPT-2 do.

    XLNet, and Gemma where it is told to attend in both directions (EmbeddingGemma), do not.
    """
    return (
        config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        and config.model_type not in {*MODEL_FOR_MASKED_LM_MAPPING_NAMES, "xlnet"}
        and not config.is_encoder_decoder
        and not getattr(config, "use_bidirectional_attention", False)
    )


def token_positions(mask: Tensor) -> Tensor:
    """The position of each token in its row, ``(rows, tokens)`` int64, wherever its padding is; padding has any.

    >>> token_positions(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 0, 0]]))
    tensor([[0, 0, 0, 1, 2],
            [0, 1, 1, 1, 1]])
    """
    return (mask.cumsum(dim=1) - 1).clamp(min=0)


def last_tokens(mask: Tensor) -> Tensor:
    """The place of the last token of each row that is not padding, ``(rows,)`` int64, whichever side has the padding.

    >>> last_tokens(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 0, 0]]))
    tensor([4, 1])
    """
    places = torch.arange(mask.shape[1], device=mask.device)
    return (places * (mask != 0)).argmax(dim=1)
