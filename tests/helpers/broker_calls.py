"""Calls of a broker as Tune and the workers of a pool make them, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tutti.orchestration.broker.broker import Broker
from tutti.orchestration.broker.messages import Report
from tutti.search.trial_attributes import Resumption


def trial(number: int, **resumption: Any) -> dict[str, Any]:
    known = Resumption(**resumption)
    return {"key": f"t{number:04d}", "number": number, "parameters": {}, "resumption": known, "optuna_number": number}


async def soon(waiting: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A call that has begun, and has gone as far as it can by itself."""
    task = asyncio.ensure_future(waiting)
    for _ in range(20):
        await asyncio.sleep(0)
    return task


async def report(broker: Broker, attempt: int, message: Report, key: str = "t0000") -> bool:
    """Reports as a worker does; whether to continue."""
    count = await broker.report(key, attempt, message)
    while count is not None:
        if (decision := await broker.await_decision(key, attempt, count)) is not None:
            return decision
    return False


async def take(broker: Broker, pool: str) -> tuple[Any, int]:
    """A trial that a pool's workers take and begin, and the attempt."""
    config, attempt = await broker.take(pool)
    await broker.begin(config["key"], attempt)
    return config, attempt


async def begun(broker: Broker, pool: str = "one") -> int:
    """The trial t0000, submitted and taken by a pool; the attempt."""
    assert await broker.submit(trial(0)) == (1, 0)
    config, attempt = await take(broker, pool)
    assert config == trial(0)
    return attempt
