"""The broker between Ray Tune's trials and the pools of workers that train them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from tutti.errors import Fault
from tutti.orchestration.broker.failure_kind import Failure
from tutti.orchestration.broker.messages import Report, TrialConfig
from tutti.orchestration.broker.trial_state import BrokerTrial
from tutti.records import TrialState

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

    from tutti.orchestration.broker.population import Population

PATIENCE = 60.0
"""Seconds after which a call of a worker returns empty-handed. Rank 0 must not block for longer, since the other ranks
wait for it in a collective operation that times out."""


class Broker:
    """Assigns submitted trials to pools and passes the pools' reports on to Ray Tune; Ray runs it as an actor.

    Ray Tune calls ``submit``, ``next_report`` and ``stop``. The workers of a pool call ``take``, ``begin``,
    ``report`` and ``await_decision``. A pool's host calls the remaining methods.

    A worker waits for Tune's decision on each report, so a trial that Tune stops does not train one step further.

    Args:
        retries: how often a trial whose pool was lost is assigned to another pool.
        population: plans the exchanges of population based training; none if trials are independent.
    """

    def __init__(self, retries: int, population: Population | None = None) -> None:
        self._retries = retries
        self._population = population
        # Trials at an exchange, by key: they continue once Tune has decided on this many reports of each.
        self._at_exchange: dict[str, int] = {}
        self._stopped_before_submission: set[str] = set()
        self._trials: dict[str, BrokerTrial] = {}
        self._queue: deque[str] = deque()  # keys of trials that need a pool
        self._worker_generations: Counter[str] = Counter()  # by pool, incremented when its workers are replaced
        self._began_trial: set[str] = set()  # pools that have begun a trial since their last loss
        self._closed = False
        self._placement_groups: dict[str, PlacementGroup] = {}  # by pool
        self._posted_notices: set[str] = set()
        self._halt_fault: Fault | None = None
        self._blind_nodes: dict[str, str] = {}  # address by id
        self._lock = asyncio.Lock()
        # Who waits is woken by what concerns it alone: of hundreds of trials in progress, each report would wake all.
        self._queued = asyncio.Condition(self._lock)  # the queue or the pools have changed
        self._changed: dict[str, asyncio.Condition] = {}  # by trial

    @property
    def _is_over(self) -> bool:
        """Whether no trial is trained any more."""
        return self._closed or self._halt_fault is not None

    async def submit(self, config: TrialConfig) -> tuple[int, int]:
        """Queues a trial, unless it is in progress or has ended: its earlier submitter has died then.

        Returns:
            The ticket, and the index of the first report to request: that of the first that is not decided on.
        """
        async with self._lock:
            key = config["key"]
            trial = self._trials.get(key)
            if trial is None or trial.state is TrialState.INTERRUPTED:
                trial = self._trials[key] = trial.restarted() if trial else BrokerTrial(config)
                self._changed.setdefault(key, asyncio.Condition(self._lock))
                self._queue.append(key)
                self._queued.notify_all()
            trial.ticket += 1
            return trial.ticket, trial.decided_count

    async def next_report(self, key: str, report_index: int) -> Report:
        """Waits for the trial's report at an index. The request means that Tune continues the trial after all earlier
        reports.

        Returns:
            An empty report if the trial was stopped, or the study is over.
        """
        async with self._lock:
            trial = self._trials[key]
            for decided_index in range(trial.decided_count, report_index):
                trial.reports[decided_index] = {}
            trial.decided_count = max(trial.decided_count, report_index)
            self._release_population()
            self._changed[key].notify_all()
            await self._changed[key].wait_for(
                lambda: len(trial.reports) > report_index or trial.state.is_over or self._closed
            )
            return trial.reports[report_index] if len(trial.reports) > report_index else {}

    async def stop(self, key: str, ticket: int | None = None) -> None:
        """Stops a trial that Tune no longer waits for.

        Args:
            ticket: of the submission to stop; by default of the latest.
        """
        async with self._lock:
            trial = self._trials.get(key)
            if trial is None:
                self._stopped_before_submission.add(key)
                self._exchange_if_all_waiting()
            if trial and not trial.state.is_over and ticket in (None, trial.ticket):
                trial.become(TrialState.INTERRUPTED)
                if key in self._queue:
                    self._queue.remove(key)
                self._at_exchange.pop(key, None)
                self._release_population()
                self._exchange_if_all_waiting()
                self._changed[key].notify_all()

    async def take(self, pool: str, patience: float = PATIENCE) -> tuple[TrialConfig, int] | tuple[()] | None:
        """Assigns the next queued trial to a pool.

        A pool that still has an unfinished trial lost its workers: idle workers alone call this.

        Returns:
            The config and the attempt, which identifies the pool's later calls. ``()`` if no trial was queued in time,
            or if the pool's workers were replaced meanwhile. None if the study is over.
        """
        async with self._lock:
            self._lose_pool(pool, Failure("the workers died and were replaced"))
            generation = self._worker_generations[pool]

            def is_replaced() -> bool:
                return self._worker_generations[pool] != generation

            await self._wait_until(self._queued, lambda: self._is_over or bool(self._queue) or is_replaced(), patience)
            if self._is_over:
                return None
            if is_replaced() or not self._queue:
                return ()
            trial = self._trials[self._queue.popleft()]
            trial.become(TrialState.ASSIGNED)
            trial.pool, trial.attempt = pool, trial.attempt + 1
            return trial.config, trial.attempt

    async def begin(self, key: str, attempt: int) -> None:
        """Tells that the workers train the trial that they took. Lost before that, they had died as they waited."""
        trial = self._trials[key]
        if trial.attempt == attempt and trial.state is TrialState.ASSIGNED:
            trial.become(TrialState.RUNNING)
            self._began_trial.add(str(trial.pool))

    async def report(self, key: str, attempt: int, report: Report) -> int | None:
        """Accepts a report of a trial.

        Returns:
            The report count to pass to ``await_decision``; none if the workers have to leave the trial.
        """
        async with self._lock:
            trial = self._trials[key]
            if self._is_over or trial.state.is_over or trial.attempt != attempt:
                return None
            await self.begin(key, attempt)  # whose call may have been lost
            had_evaluation = trial.last_evaluation is not None
            if not trial.add(report):
                return len(trial.reports)
            report_count = None if trial.state.is_over else len(trial.reports)
            # The first one, if repeated, may come from before an exchange that an earlier run carried out.
            if had_evaluation or not report.get("repeated"):
                self._pause_for_exchange(trial, report)
            self._exchange_if_all_waiting()
            self._changed[key].notify_all()
            return report_count

    async def await_decision(
        self, key: str, attempt: int, report_count: int, patience: float = PATIENCE
    ) -> bool | None:
        """Whether these workers continue the trial after its first ``report_count`` reports; none if it is undecided.

        They leave a trial that waits for an exchange, but only once Tune has decided: they would train further trials
        that Tune, after a Ctrl-C, no longer asks for.
        """
        async with self._lock:
            trial = self._trials[key]

            def is_cancelled() -> bool:
                return self._is_over or trial.state.is_over or trial.attempt != attempt

            def is_answered() -> bool:
                is_waiting = trial.state is TrialState.WAITING and not self._is_over
                return trial.decided_count >= report_count or (is_cancelled() and not is_waiting)

            is_answered_in_time = await self._wait_until(self._changed[key], is_answered, patience)
            return not is_cancelled() if is_answered_in_time else None

    async def report_loss(self, pool: str, failure: Failure) -> bool:
        """Reassigns the trial of a pool whose workers died, or fails it after too many losses.

        A trial that ran out of memory before it completed an epoch of its stage restarts once with half its batch size.
        If that does not fit either, it is infeasible: at once, or after too many losses if its node ran low on memory,
        which other processes may have caused.

        Returns:
            Whether the pool has begun a trial since its last loss.
        """
        async with self._lock:
            self._lose_pool(pool, failure)
            began_trial = pool in self._began_trial
            self._began_trial.discard(pool)
            return began_trial

    async def wait_for_trial(self, patience: float = PATIENCE) -> bool:
        """Whether a trial is queued. Waits until one is, or the study is over."""
        async with self._lock:
            await self._wait_until(self._queued, lambda: self._is_over or bool(self._queue), patience)
            return bool(self._queue) and not self._is_over

    async def post_notice(self, text: str) -> None:
        """Shows users why the next trial is still queued, each text once. Does nothing while no trial is queued."""
        async with self._lock:
            if self._queue and text not in self._posted_notices:
                self._posted_notices.add(text)
                self._trials[self._queue[0]].reports.append({"notice": text})
                self._changed[self._queue[0]].notify_all()

    async def register_placement_group(self, pool: str, placement_group: PlacementGroup) -> None:
        """Stores the placement group of a pool's workers, which outlives the host if that is killed."""
        self._placement_groups[pool] = placement_group

    async def placement_groups(self, pool: str | None = None) -> list[PlacementGroup]:
        """The last placement group of each pool, or of a single one. It may have been removed."""
        return [group for name, group in self._placement_groups.items() if pool in (None, name)]

    async def avoid(self, node_id: str, address: str) -> None:
        """Has every pool avoid a node that does not see the study's folder."""
        self._blind_nodes[node_id] = address

    async def blind_nodes(self) -> dict[str, str]:
        """The addresses of the nodes to avoid, by their ids."""
        return self._blind_nodes

    async def count_by_state(self) -> dict[TrialState, int]:
        """How many of this run's trials are in each state."""
        return Counter(trial.state for trial in self._trials.values())

    async def is_over(self) -> bool:
        """Whether the study is closed or halted."""
        return self._is_over

    async def halt(self, fault: Fault) -> None:
        """Ends all pools because the storage fails. Trials get no last report, so a resumed study continues them."""
        async with self._lock:
            self._halt_fault = self._halt_fault or fault
            self._wake_all()

    async def halt_fault(self) -> Fault | None:
        """The first fault that the study was halted for, if any."""
        return self._halt_fault

    async def close(self) -> bool:
        """Ends all pools; whether all of them were idle."""
        async with self._lock:
            self._closed = True
            self._wake_all()
            return all(trial.state.is_over or trial.pool is None for trial in self._trials.values())

    def _lose_pool(self, pool: str, failure: Failure) -> None:
        self._worker_generations[pool] += 1
        if self._halt_fault:  # a resumed study continues the trial, whatever its losses in this run
            return
        for trial in [trial for trial in self._trials.values() if trial.pool == pool and not trial.state.is_over]:
            if trial.state is TrialState.ASSIGNED or self._goes_on(trial, failure):
                trial.become(TrialState.QUEUED)
                self._queue.appendleft(trial.config["key"])
            self._changed[trial.config["key"]].notify_all()
        self._exchange_if_all_waiting()
        self._queued.notify_all()

    def _goes_on(self, trial: BrokerTrial, failure: Failure) -> bool:
        """Whether a trial whose pool was lost needs another one; if not, it has failed."""
        known = trial.resumption
        fits = not failure.out_of_memory or (known.fitted and not known.in_new_stage)
        if not fits and known.halved is None:
            trial.last_evaluation = None
            trial.tell({"halved": failure.reason})
            return True
        trial.loss_count += 1
        if (fits or failure.for_its_node) and not failure.final and trial.loss_count <= self._retries:
            return True
        if failure.out_of_memory:
            halved = "" if known.halved is None else ", with half the batch too"
            trial.tell({"failed": f"out of memory{halved}: {failure.reason}", "infeasible": True})
        else:
            trial.tell({"failed": failure.reason})
        return False

    def _pause_for_exchange(self, trial: BrokerTrial, report: Report) -> None:
        """Pauses the trial if an exchange is due. Its workers are freed, and it resumes from its saved state."""
        if self._population is None or trial.state.is_over or "score" not in report:
            return
        if report["epoch"] % self._population.every == 0:
            trial.become(TrialState.WAITING)
            trial.epoch, trial.score = report["epoch"], report["score"]

    def _exchange_if_all_waiting(self) -> None:
        """Exchanges states once every live trial waits, among those with the fewest epochs."""
        if self._population is None or self._at_exchange:
            return
        live = {key: trial for key, trial in self._trials.items() if not trial.state.is_over}
        if not live or len(self._trials.keys() | self._stopped_before_submission) < self._population.size:
            return
        if any(trial.state is not TrialState.WAITING for trial in live.values()):
            return
        epoch = min(trial.epoch for trial in live.values())
        members = {key: trial for key, trial in live.items() if trial.epoch == epoch}
        for halved in (False, True):  # an epoch of halved batches may have another number of steps
            alike = {key: trial for key, trial in members.items() if (trial.resumption.halved is not None) == halved}
            scores = {key: trial.score for key, trial in alike.items()}
            parameters = {key: trial.config["parameters"] for key, trial in alike.items()}
            for key, exchange in self._population.plan_exchanges(epoch, scores, parameters).items():
                alike[key].exchange(asdict(exchange), exchange.parameters)
        self._at_exchange = {key: len(trial.reports) for key, trial in members.items()}
        self._release_population()
        self._wake_all()

    def _release_population(self) -> None:
        """Queues the trials of an exchange again, once Tune's driver has their reports and copied every state."""
        if any(self._trials[key].decided_count < count for key, count in self._at_exchange.items()):
            return
        for key in self._at_exchange:
            self._trials[key].become(TrialState.QUEUED)
            self._queue.append(key)
        if self._at_exchange:
            self._at_exchange = {}
            self._wake_all()

    def _wake_all(self) -> None:
        for changed in (self._queued, *self._changed.values()):
            changed.notify_all()

    async def _wait_until(self, changed: asyncio.Condition, condition: Callable[[], bool], patience: float) -> bool:
        """Waits until the condition holds; false after ``patience`` seconds without it."""
        try:
            await asyncio.wait_for(changed.wait_for(condition), patience)
        except TimeoutError:
            return False
        return True
