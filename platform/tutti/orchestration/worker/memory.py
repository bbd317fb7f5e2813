"""Out-of-memory errors, and training keys for smaller batches: half the batch size, twice the accumulation steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tutti.config.stages import STAGES, staged
from tutti.errors import Fault, TrialMemoryError

# Messages of allocators that raise a plain RuntimeError: torch's on the CPU, and NVIDIA's libraries.
_OUT_OF_MEMORY_MESSAGES = (
    "can't allocate memory",
    "CUDA out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
# oneDNN's whole message where it has no memory for its code or a scratchpad on a CPU. It gives no further reason. A
# layer that it does not support is a "primitive descriptor" that it could not create.
_NO_PRIMITIVE = "could not create a primitive"
_MIN_TOKENS = 8  # smallest max_tokens_per_batch


def cause_of(error: BaseException) -> BaseException:
    """The cause that Ray wrapped into a worker's error. If the worker stopped answering, Ray's reason for its death."""
    return getattr(error, "health_check_failure", None) or getattr(error, "cause", None) or error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation of a worker failed, or Ray killed the worker because its node ran low on memory.

    False for a process that the kernel killed, which leaves no message.
    """
    cause = cause_of(error)
    if isinstance(cause, MemoryError) or _is_out_of_memory_error(cause, "torch") or is_node_out_of_memory(error):
        return True
    message = str(cause)
    is_known = message.strip() == _NO_PRIMITIVE or any(known in message for known in _OUT_OF_MEMORY_MESSAGES)
    return isinstance(cause, RuntimeError) and is_known


def is_node_out_of_memory(error: BaseException) -> bool:
    """Whether Ray killed a worker because its node ran low on memory, which other processes may have caused."""
    return _is_out_of_memory_error(cause_of(error), "ray")


def _is_out_of_memory_error(error: BaseException, library: str) -> bool:
    kind = type(error)
    return kind.__name__ == "OutOfMemoryError" and kind.__module__.split(".")[0] == library


def with_smaller_batches(training: Mapping[str, Any], *, lengths: Sequence[np.ndarray]) -> dict[str, Any]:
    """Training keys for the same rows in each optimizer step with less memory, in every stage.

    ``max_tokens_per_batch`` is halved or, if it is not set, ``per_device_train_batch_size`` (an odd one is divided by
    its smallest prime factor). ``gradient_accumulation_steps`` grows by the same factor. Evaluation batches are halved.
    A stage whose batch cannot be split stays as it is: another one may be the one that ran out of memory. With a token
    budget a step has only roughly the same rows, since the number of rows that fit into a budget is rounded down.

    Args:
        lengths: by task ``(rows,)``, the number of tokens of each training row in a batch. A row that is a batch by
            itself needs as much memory with any smaller budget; then only evaluation batches are halved.

    Raises:
        TrialMemoryError: if no stage's batch can be split: it has one row, or ``adversarial`` training needs it whole.
    """
    stages, refusals = [], []
    for keys in staged(training):
        try:
            stages.append({**keys, **_smaller(keys, lengths)})
        except TrialMemoryError as error:
            stages.append(keys)
            refusals.append(error)
    if len(refusals) == len(stages):
        raise refusals[0]
    return {**training, STAGES: stages} if training.get(STAGES) else stages[0]


def _smaller(keys: Mapping[str, Any], lengths: Sequence[np.ndarray]) -> dict[str, Any]:
    from tutti.training.keys.options import DEFAULTS

    rows = keys.get("per_device_train_batch_size", DEFAULTS["per_device_train_batch_size"])
    tokens = keys.get("max_tokens_per_batch")
    eval_rows = keys.get("per_device_eval_batch_size", DEFAULTS["per_device_eval_batch_size"])
    if keys.get("adversarial"):
        raise _cannot_shrink(f"adversarial={keys['adversarial']}, which takes a batch as a whole")
    if tokens is not None:
        if tokens < 2 * _MIN_TOKENS:
            raise _cannot_shrink(f"max_tokens_per_batch={tokens}")
        if longest := _single_row(tokens, lengths, grouped=keys.get("group_by_length", True)):
            if eval_rows == 1:
                raise _cannot_shrink(f"a batch of one row, of {longest} tokens with max_tokens_per_batch={tokens}")
            return {"per_device_eval_batch_size": eval_rows // 2}
        factor, batch = 2, {"max_tokens_per_batch": tokens // 2}
    else:
        if rows < 2:
            raise _cannot_shrink("a batch of one row")
        factor = next(number for number in range(2, rows + 1) if rows % number == 0)
        batch = {"per_device_train_batch_size": rows // factor}
    return {
        **batch,
        "gradient_accumulation_steps": keys.get("gradient_accumulation_steps", 1) * factor,
        "per_device_eval_batch_size": max(eval_rows // 2, 1),
    }


def _single_row(tokens: int, lengths: Sequence[np.ndarray], *, grouped: bool) -> int:
    """The length of the longest row if the largest batch has one row already, else 0."""
    longest = max(int(of_task.max()) for of_task in lengths)
    # Batches of rows of any length have as many rows as the longest ones allow.
    seconds = (np.partition(of_task, 1)[1] if grouped else of_task.max() for of_task in lengths if len(of_task) > 1)
    return longest if tokens <= longest or tokens < 2 * min(seconds, default=longest) else 0


def _cannot_shrink(got: str) -> TrialMemoryError:
    remedy = "narrow the search space, shorten max_length, or give workers more memory"
    return TrialMemoryError(Fault("out of memory: the batch", "be one that can be cut into smaller ones", got, remedy))
