"""What is done about a trial whose batch does not fit into memory: half a batch, twice as often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tutti.config.stages import STAGES, staged
from tutti.errors import Fault, TrialMemoryError

# What allocators say that have no exception of their own: torch's of the CPU, and NVIDIA's libraries.
_SAID = ("can't allocate memory", "CUDA out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
_SHORTEST = 8  # max_tokens_per_batch at its least


def cause_of(error: BaseException) -> BaseException:
    """What a worker's error was made of: of Ray Train's that a worker no longer answers, what Ray says became of it."""
    return getattr(error, "health_check_failure", None) or getattr(error, "cause", None) or error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a worker's error says that an allocation failed, or that Ray ended it because its node ran low on memory.

    One whose process the system killed has not said anything.
    """
    cause = cause_of(error)
    if isinstance(cause, MemoryError) or _is_named_so(cause, "torch") or for_its_node(error):
        return True
    return isinstance(cause, RuntimeError) and any(said in str(cause) for said in _SAID)


def for_its_node(error: BaseException) -> bool:
    """Whether Ray ended a worker because its node ran low on memory, most of which its neighbours may have."""
    return _is_named_so(cause_of(error), "ray")


def _is_named_so(error: BaseException, library: str) -> bool:
    kind = type(error)
    return kind.__name__ == "OutOfMemoryError" and kind.__module__.split(".")[0] == library


def with_smaller_batches(training: Mapping[str, Any]) -> dict[str, Any]:
    """Training keys under which a step has the same rows in less memory, in every stage.

    Half of ``max_tokens_per_batch`` or, where that is not set, of ``per_device_train_batch_size`` (of an odd one its
    largest factor), and so many times the ``gradient_accumulation_steps``; evaluation takes half its rows at a time.

    Raises:
        TrialMemoryError: where the batch cannot be cut: of one row, or attacked by ``adversarial``.
    """
    if training.get(STAGES):
        return {**training, STAGES: [{**keys, **_smaller(keys)} for keys in staged(training)]}
    return {**training, **_smaller(training)}


def _smaller(keys: Mapping[str, Any]) -> dict[str, Any]:
    from tutti.training.options import DEFAULTS

    rows = keys.get("per_device_train_batch_size", DEFAULTS["per_device_train_batch_size"])
    tokens = keys.get("max_tokens_per_batch")
    if keys.get("adversarial"):
        raise _too_large(f"adversarial={keys['adversarial']}, which takes a batch as a whole")
    if tokens is not None:
        if tokens < 2 * _SHORTEST:
            raise _too_large(f"max_tokens_per_batch={tokens}")
        parts, cut = 2, {"max_tokens_per_batch": tokens // 2}
    else:
        if rows < 2:
            raise _too_large("a batch of one row")
        parts = next(number for number in range(2, rows + 1) if rows % number == 0)
        cut = {"per_device_train_batch_size": rows // parts}
    evaluated = keys.get("per_device_eval_batch_size", DEFAULTS["per_device_eval_batch_size"])
    return {
        **cut,
        "gradient_accumulation_steps": keys.get("gradient_accumulation_steps", 1) * parts,
        "per_device_eval_batch_size": max(evaluated // 2, 1),
    }


def _too_large(got: str) -> TrialMemoryError:
    remedy = "narrow the search space, shorten max_length, or give workers more memory"
    return TrialMemoryError(Fault("out of memory: the batch", "be one that can be cut into smaller ones", got, remedy))
