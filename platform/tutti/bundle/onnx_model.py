"""A model as an ONNX file, and its speed with onnxruntime."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tutti.errors import Fault, StudyError
from tutti.modeling.model import MultiTaskModel
from tutti.modeling.plain import Outputs
from tutti.records import TextLimit

FILE = "model.onnx"
Batch = Mapping[str, torch.Tensor]


def check_onnx(model: MultiTaskModel, limit: TextLimit) -> None:
    """Raises StudyError if packages are missing, or the model is none of one input for each row."""
    (task,) = model.tasks.values()
    if missing := [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]:
        rule, remedy = "have the packages that write ONNX", "install them with: pip install 'tutti[onnx]'"
        raise StudyError(Fault("--format onnx", rule, f"no {' and no '.join(missing)}", remedy))
    several = limit.truncation == "windows" or task.swaps(limit)
    if task.kind.sequential or task.kind.exchangeable or several or model.head(task.name).is_bi_encoder:
        rule, got = "have one input for each row", "a task or a model with several, or with words"
        raise StudyError(Fault("--format onnx", rule, got, "export it as a bundle"))


def write_onnx(file: Path, model: MultiTaskModel, batch: Batch) -> None:
    """Writes the model, whose inputs are those of the batch, of any number of rows and tokens."""
    names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in batch]
    axes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("tokens")}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for name in ("onnxscript", "torch.onnx"):  # of operators that this model has not
            logging.getLogger(name).setLevel(logging.ERROR)
        torch.onnx.export(
            Outputs(model),
            tuple(batch[name] for name in names),
            str(file),
            input_names=names,
            output_names=["outputs"],
            dynamic_shapes=tuple(axes for _ in names),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


class OnnxModel:
    """Predicts batches with a file of ``write_onnx``, on the CPU.

    Args:
        threads: of onnxruntime; by default those of torch.
    """

    def __init__(self, file: Path, *, threads: int | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or torch.get_num_threads()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self._names = [each.name for each in self._session.get_inputs()]

    def predict(self, batch: Batch) -> np.ndarray:
        """``(rows, outputs)`` float32."""
        inputs: dict[str, Any] = {name: self._of(batch, name) for name in self._names}
        return np.asarray(self._session.run(None, inputs)[0])

    def _of(self, batch: Batch, name: str) -> np.ndarray:
        if name in batch:
            return batch[name].numpy()
        return np.zeros(batch["input_ids"].shape, dtype=np.int64)  # token types, which are all 0

    def compared(self, model: MultiTaskModel, batches: Sequence[Batch]) -> tuple[float, float, float]:
        """The greatest difference from the model's outputs, and seconds for all batches, of it and of the model."""
        own = Outputs(model)
        self.predict(batches[0])
        began = time.perf_counter()
        found = [self.predict(batch) for batch in batches]
        middle = time.perf_counter()
        with torch.no_grad():
            exact = [own(**{name: batch[name] for name in batch if name in self._names}) for batch in batches]
        ended = time.perf_counter()
        apart = [float(np.abs(one - other.numpy()).max()) for one, other in zip(found, exact, strict=True)]
        return max(apart), middle - began, ended - middle
