"""Pretraining by several workers of a Ray Train run, each with its share of every batch."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tutti.config.pretraining import PretrainingRun
from tutti.config.study import Resources
from tutti.errors import Fault, TrialError, TuttiError
from tutti.launchers import forget_launcher
from tutti.orchestration.worker.cpus import private_cpus
from tutti.orchestration.worker.memory import cause_of
from tutti.orchestration.worker.pool import beside_driver, reason_of, set_train_environment

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

    from tutti.training.pretraining.loop import Progress
    from tutti.training.pretraining.run import Pretrained


def resources_of(run: PretrainingRun) -> Resources:
    """The workers of a run, and what each of them has."""
    import torch

    share = 1 if os.environ.get("RAY_ADDRESS") else max(1, private_cpus() // run.workers)
    gpus = int(torch.cuda.is_available()) if run.gpus_per_worker is None else run.gpus_per_worker
    return Resources(workers=run.workers, cpus_per_worker=run.cpus_per_worker or share, gpus_per_worker=gpus)


def pretrain_on_workers(
    arguments: Mapping[str, Any], *, resources: Resources, told: Mapping[str, Callable[[Any], None]]
) -> Pretrained:
    """Runs ``tutti.training.pretraining.run.pretrain`` on every worker of a connected Ray.

    A worker that dies ends the run; called again, it goes on from the last state.

    Args:
        arguments: of ``pretrain``. Their files are on storage that all nodes share.
        resources: of which ``workers`` and those of each worker count.
        told: what is called here with what rank 0 tells there: ``on_progress`` and ``on_notice``.

    Raises:
        TuttiError: as ``pretrain`` does.
        TrialError: if a worker fails otherwise.
    """
    import ray
    from ray.exceptions import RayActorError
    from ray.util.placement_group import remove_placement_group

    from tutti.training.pretraining.loop import Progress
    from tutti.training.pretraining.run import Pretrained

    options = beside_driver()
    messages = ray.remote(Messages).options(**options).remote()
    host = ray.remote(PretrainingHost).options(**options).remote()
    out, result, placement_groups = Path(arguments["out"]), None, []
    # Ray Train's records, of which nothing is kept, are where all nodes can write.
    with TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent, ignore_cleanup_errors=True) as folder:
        # Neither the host nor what passes messages on loads torch's and transformers' classes: for that the arguments
        # go to the workers by reference, and values of messages are plain.
        given = [ray.put(dict(arguments))]
        run = host.run.remote(given, resources, messages, folder)
        try:
            while True:
                message = messages.take.remote()
                if run in ray.wait([message, run])[0]:
                    ray.get(run)  # raises if its process died, which tells nothing more
                name, value = ray.get(message)
                if name == "end":
                    break
                if name == "result":
                    result = Pretrained(**value)
                elif name == "placement_group":
                    placement_groups.append(value)
                else:
                    told[name](Progress(**value) if name == "on_progress" else value)
        except RayActorError as error:
            raise _own(error) from error
        finally:
            ray.kill(host)  # and its workers with it
            for group in placement_groups:
                remove_placement_group(group)  # does nothing if it was removed
    if value is not None:
        raise value
    assert result is not None
    return result


class Messages:
    """What rank 0 and the host tell the driver; Ray runs it as an actor."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    async def put(self, name: str, value: Any) -> None:
        await self._queue.put((name, value))

    async def take(self) -> tuple[str, Any]:
        """The next message, once there is one."""
        return await self._queue.get()


class PretrainingHost:
    """Runs the workers; Ray runs it as an actor, as Ray Train's controller has to be in one."""

    def run(
        self, arguments: list[ObjectRef[Any]], resources: Resources, messages: ActorHandle[Messages], folder: str
    ) -> None:
        """Runs all workers to their end, and tells it, with the error if there was one."""
        set_train_environment(warm=False)
        import ray

        from tutti.orchestration.worker.worker_group import WorkerGroup

        failed = None
        try:
            WorkerGroup(
                _pretrain,
                train_loop_config={"arguments": arguments, "resources": resources, "messages": messages},
                resources=resources,
                on_placement_group=lambda group: ray.get(messages.put.remote("placement_group", group)),
                name="pretraining",
                records=folder,
            ).fit()
        except Exception as error:  # of a worker, of Ray Train's controller, or of Ray itself
            failed = _own(error)
        ray.get(messages.put.remote("end", failed))


def _pretrain(loop_config: Mapping[str, Any]) -> None:
    """Runs on every worker."""
    import ray
    import torch

    from tutti.training.machine.ranks import rank
    from tutti.training.pretraining.run import pretrain

    forget_launcher(single=False)
    torch.set_num_threads(loop_config["resources"].cpus_per_worker)
    messages = loop_config["messages"]

    def tell(progress: Progress) -> None:
        if rank() == 0:
            messages.put.remote("on_progress", asdict(progress))

    result = pretrain(
        **ray.get(loop_config["arguments"][0]),
        on_progress=tell,
        on_notice=lambda sentence: messages.put.remote("on_notice", sentence),
    )
    if rank() == 0:
        ray.get(messages.put.remote("result", asdict(result)))


def _own(error: Exception) -> TuttiError:
    """The error that ended the run: Tutti's own if a worker raised one."""
    failures = getattr(error, "worker_failures", None) or {0: getattr(error, "controller_failure", None) or error}
    causes = [cause_of(each) for _, each in sorted(failures.items())]
    if own := next((each for each in causes if isinstance(each, TuttiError)), None):
        return own
    remedy = "correct the cause; the same command goes on after the last saved state"
    return TrialError(Fault("the workers", "pretrain to the end", reason_of(failures), remedy))
