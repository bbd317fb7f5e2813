"""Makes a model pack rows, in the precision and on the device that it trains on."""

from __future__ import annotations

from tutti.config.training import TrainingOptions
from tutti.modeling.model import MultiTaskModel
from tutti.modeling.packed import pack_rows
from tutti.training.machine.precision import autocast


def pack(model: MultiTaskModel, options: TrainingOptions, precision: str) -> None:
    """Lets a model be given packed rows. Where a mask alone keeps them apart, most of which is computed in vain, it
    predicts padded rows, which are sorted by length.

    Args:
        precision: of its training: ``bf16``, ``fp16``, ``tf32`` or ``float32``.

    Raises:
        TrialError: if the model's encoder cannot keep packed rows apart.
    """
    device = model.encoder.device
    exact = precision == "float32" and options.bits is None and options.weights != "bfloat16"
    with autocast(device, precision):
        pack_rows(model.encoder, asked=options.attn_implementation is not None, exact=exact)
    model.packs = model.encoder.config._attn_implementation not in ("sdpa", "eager")
