"""Tries an encoder on one short row, since not every model that AutoModel loads computes texts as Tutti needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tutti.errors import BackboneError, Fault, first_line
from tutti.modeling.decoders import is_decoder
from tutti.modeling.layers import mixable_layers
from tutti.modeling.model import REMEDY


@torch.no_grad()
def probed_layers(backbone: str, encoder: PreTrainedModel, ids: Sequence[int]) -> int | None:
    """The number of last layers that heads can mix; None if unknown. In some encoders only the last few layers have a
    state for each token: the others compute shorter rows, as in Funnel and CANINE. Decoders have no weights yet to be
    tried with.

    Args:
        encoder: in evaluation mode.
        ids: the tokens of a short text.

    Raises:
        BackboneError: if the encoder needs more than tokens, as DPR and models of images do; if it does not return
            ``hidden_size`` numbers for each token; or if it reads from left to right but is no known decoder.
    """
    if is_decoder(encoder.config):
        return mixable_layers(encoder)
    try:
        outputs = _outputs(encoder, ids)
        states, all_states = outputs.last_hidden_state, outputs.hidden_states or ()
    except (TypeError, ValueError, RuntimeError, AttributeError, LookupError) as error:
        rule = "compute a state of each token from the tokens alone"
        raise _fault(backbone, encoder, rule, first_line(error)) from error
    expected = (1, len(ids), encoder.config.hidden_size)
    if states.shape != expected:
        rule = f"give a text of {len(ids)} tokens {len(ids)} states of hidden_size, {expected[2]}"
        raise _fault(backbone, encoder, rule, f"a tensor of shape {tuple(states.shape)}")
    if ids[0] != ids[-1] and torch.equal(states[:, 0], _outputs(encoder, [*ids[:-1], ids[0]]).last_hidden_state[:, 0]):
        rule = "be an encoder, in which the first token sees all others"
        raise _fault(backbone, encoder, rule, "one in which it does not see the last")
    layers = mixable_layers(encoder)
    return layers if layers is None else min(layers, _of_shape(states, all_states))


def _outputs(encoder: PreTrainedModel, ids: Sequence[int]) -> Any:
    row = torch.tensor([ids], device=encoder.device)
    return encoder(input_ids=row, attention_mask=torch.ones_like(row), output_hidden_states=True)


def _of_shape(states: Tensor, all_states: Sequence[Tensor]) -> int:
    """How many of the last layers' states, at least one, have the shape of the final ones."""
    differing = (index for index, each in enumerate(reversed(all_states)) if each.shape != states.shape)
    return max(next(differing, len(all_states)), 1)


def _fault(backbone: str, encoder: PreTrainedModel, rule: str, got: str) -> BackboneError:
    got = f"{got.rstrip('.')} (a model of type {encoder.config.model_type!r})"
    return BackboneError(Fault(f"the backbone {backbone!r}", rule, got, REMEDY))
