"""Stands between Ray Tune's trials and the pools of workers that train them: who trains what, and who goes on."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tutti.errors import Fault

if TYPE_CHECKING:
    from tutti.orchestration.population import Population
    from tutti.search.trial_attributes import Proposal

Report = dict[str, Any]
FINAL, FAILED, INFEASIBLE = "final", "failed", "infeasible"  # keys of a trial's last report
NOTICE = "notice"  # the key of a report that is a sentence for the user
OVERTIME = "overtime"  # of a report's alone: the trial has trained for as long as it may, and nothing has come since
HALVED = "halved"  # of a trial's config, and a report's alone: why its batches are halved
EXCHANGED = "exchanged"  # a report's alone: the exchange that the trial is to go on with
TRAINED = "trained"  # of a config: for how many seconds earlier runs trained it, as far as they reported
ANEW, FITTED = "anew", "fitted"  # of a config: begins anew, whatever states there are; trained for a whole epoch before
FOLD = "fold"  # of a config: the fold that an earlier run was training when it was cut off
PATIENCE = 60.0
"""Seconds after which a worker hears that there is nothing to hear: ranks that wait for rank 0 give up at last."""


def config_of(proposal: Proposal) -> dict[str, Any]:
    """What Tune, the broker and the log know the trial by."""
    config = {
        "key": proposal.key,
        "number": proposal.number,
        "parameters": dict(proposal.parameters),
        "optuna_number": proposal.optuna_number,
        FOLD: proposal.fold,
        HALVED: proposal.halved,
        FITTED: proposal.fitted or None,
        TRAINED: proposal.seconds or None,
        ANEW: (proposal.halved and not proposal.fitted) or None,  # its states may be of the whole batch
    }
    return {name: value for name, value in config.items() if value is not None}


def shows_fit(report: Report) -> bool:
    """Whether it is of a whole epoch: a part of one may have had the short rows, a notice comes before any."""
    told = report.get("fold_epoch", report)
    return "epoch" in told and bool(told.get("whole", True))


@dataclass
class _Trial:
    """One trial on its way.

    Attributes:
        config: what a pool trains: key, number and parameters.
            Its batches are halved where they did not fit into memory: ``HALVED`` then says why.
        ticket: counts the times that Tune asked for it; who holds an older one is not heard.
        reports: all that were told, in order; empty once Tune has decided on them.
        taken: how many of them Tune has decided on.
        attempt: counts up when a pool takes it and when one is lost; what is told of an older attempt is not heard.
        lost: how many pools it has lost.
        pool: who trains it now.
        met: the epoch after which it waits for the others of its population; none while it does not.
        score: its last one, where it waits.
        fitted: whether it has told of a whole epoch, and so has once fitted into memory.
    """

    config: Mapping[str, Any]
    ticket: int = 0
    reports: list[Report] = field(default_factory=list)
    taken: int = 0
    attempt: int = 0
    lost: int = 0
    pool: str | None = None
    stopped: bool = False
    met: int | None = None
    score: float = 0.0
    fitted: bool = False

    def __post_init__(self) -> None:
        self.fitted = bool(self.config.get(FITTED))

    @property
    def ended(self) -> bool:
        return bool(self.reports) and bool(self.reports[-1].keys() & {FINAL, FAILED})

    @property
    def over(self) -> bool:
        return self.ended or self.stopped


class Broker:
    """The desk at which trials wait for a pool and pools for a trial; Ray runs it as an actor.

    A report is answered only once Tune has decided on it, so a trial that Tune stops does not train one step further.

    Args:
        retries: how often a trial whose pool was lost is given to another one.
        population: where the trials meet; none where each goes its own way.
    """

    def __init__(self, retries: int, population: Population | None = None) -> None:
        self._retries = retries
        self._population = population
        self._exchanging: dict[str, int] = {}  # by key, how many of its reports Tune must have decided on
        self._meeting: list[str] = []  # who goes on then
        self._missing: set[str] = set()  # who ended before it was ever asked for
        self._trials: dict[str, _Trial] = {}
        self._waiting: deque[str] = deque()
        self._generations: Counter[str] = Counter()  # of each pool's workers
        self._closed = False
        self._noticed: set[str] = set()
        self._halted: Fault | None = None
        self._news = asyncio.Condition()

    @property
    def _over(self) -> bool:
        """Whether no trial is trained any more."""
        return self._closed or self._halted is not None

    async def submit(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """Asks for a trial to be trained. One that is under way stays so: whoever asked for it before has died.

        Returns:
            The ticket, and how many of its reports were decided on: the place of the one to ask for first.
        """
        async with self._news:
            key = config["key"]
            old = self._trials.get(key)
            if old is None or old.stopped:
                self._trials[key] = _Trial(config, attempt=old.attempt + 1 if old else 0)
                self._waiting.append(key)
                self._news.notify_all()
            trial = self._trials[key]
            trial.ticket = (old.ticket if old else 0) + 1
            return trial.ticket, trial.taken

    async def next(self, key: str, place: int) -> Report:
        """The trial's report at ``place``, once it was told; says that Tune lets the trial go on after those before.

        Returns:
            An empty report of a trial that was stopped, or once the study is over.
        """
        async with self._news:
            trial = self._trials[key]
            for decided in range(trial.taken, place):
                trial.reports[decided] = {}
            trial.taken = max(trial.taken, place)
            self._go_on()
            self._news.notify_all()
            await self._news.wait_for(lambda: len(trial.reports) > place or trial.stopped or self._closed)
            return trial.reports[place] if len(trial.reports) > place else {}

    async def stop(self, key: str, ticket: int | None = None) -> None:
        """Ends a trial that Tune no longer waits for; one that is unknown or has ended stays so.

        Args:
            ticket: of who says so; none for Tune itself.
        """
        async with self._news:
            trial = self._trials.get(key)
            if trial is None:
                self._missing.add(key)
                self._meet()
            if trial and ticket in (None, trial.ticket):
                trial.stopped = True
                if key in self._waiting:
                    self._waiting.remove(key)
                self._go_on()
                self._meet()
                self._news.notify_all()

    async def take(self, pool: str, patience: float = PATIENCE) -> tuple[Mapping[str, Any], int] | tuple[()] | None:
        """The next trial for a pool, with what ``tell`` knows the attempt by.

        A pool that asks does not train the trial that it had before: if that has not ended, its workers were replaced.

        Returns:
            Nothing, ``()``, where there is none yet, or the pool has other workers by now; none to go home.
        """
        async with self._news:
            self._lose(pool, "the workers died and were replaced")
            generation = self._generations[pool]

            def replaced() -> bool:
                return self._generations[pool] != generation

            if not await self._within(patience, lambda: self._over or bool(self._waiting) or replaced()):
                return ()
            if self._over:
                return None
            if replaced():
                return ()
            trial = self._trials[self._waiting.popleft()]
            trial.pool, trial.attempt = pool, trial.attempt + 1
            return trial.config, trial.attempt

    async def tell(self, key: str, attempt: int, report: Report) -> int | None:
        """Hands a report in.

        Returns:
            The place to ask ``verdict`` for; none where there is nothing to go on with.
        """
        async with self._news:
            trial = self._trials[key]
            if self._over or trial.over or trial.attempt != attempt:
                return None
            trial.reports.append(report)
            trial.fitted |= shows_fit(report)
            leaves = self._leaves_workers(trial, report)
            place = None if trial.ended or leaves else len(trial.reports)
            self._meet()
            self._news.notify_all()
            return place

    async def verdict(self, key: str, attempt: int, place: int, patience: float = PATIENCE) -> bool | None:
        """Tune's word on the report before ``place``: whether to go on; none where it has not come yet."""
        async with self._news:
            trial = self._trials[key]

            def over() -> bool:
                return self._over or trial.over or trial.attempt != attempt

            said = await self._within(patience, lambda: over() or trial.taken >= place)
            return not over() if said else None

    async def lost(
        self, pool: str, reason: str, *, out_of_memory: bool = False, for_its_node: bool = False, final: bool = False
    ) -> bool:
        """A pool's workers died: what they trained goes to the next pool, or has failed if that happened too often.

        A trial that ran out of memory before it told of a whole epoch begins anew with half its batch, once; it is not
        feasible where that is too large too.

        Args:
            for_its_node: of one out of memory, whether Ray ended it for its node, on which others need memory too: half
                its batch is too large only if that happened too often.
            final: whether a second try would end so too: the trial has failed at once.

        Returns:
            Whether they trained anything.
        """
        async with self._news:
            return self._lose(pool, reason, out_of_memory, final, for_its_node)

    async def wanted(self, patience: float = PATIENCE) -> bool:
        """Whether a trial waits for a pool; said once one does, or the study is over."""
        async with self._news:
            await self._within(patience, lambda: self._over or bool(self._waiting))
            return bool(self._waiting) and not self._over

    async def notice(self, text: str) -> None:
        """Has users told why the next trial waits, each sentence once; nothing where none waits."""
        async with self._news:
            if self._waiting and text not in self._noticed:
                self._noticed.add(text)
                self._trials[self._waiting[0]].reports.append({NOTICE: text})
                self._news.notify_all()

    async def closed(self) -> bool:
        """Whether the study is over, or halted."""
        return self._over

    async def halt(self, fault: Fault) -> None:
        """Sends every pool home, for the storage fails whatever they train. Trials are left as they are: Tune hears of
        no end of theirs, so that they go on in a later run."""
        async with self._news:
            self._halted = self._halted or fault
            self._news.notify_all()

    async def halted(self) -> Fault | None:
        """Why the study was halted, first of all; none where it was not."""
        return self._halted

    async def close(self) -> bool:
        """Sends every pool home; says whether none was in the middle of a trial."""
        async with self._news:
            self._closed = True
            self._news.notify_all()
            return all(trial.over or trial.pool is None for trial in self._trials.values())

    def _lose(
        self, pool: str, reason: str, out_of_memory: bool = False, final: bool = False, for_its_node: bool = False
    ) -> bool:
        self._generations[pool] += 1
        if self._halted:  # its trial goes on in a later run, however often it was lost in this one
            return False
        held = [trial for trial in self._trials.values() if trial.pool == pool and not trial.over]
        for trial in held:
            trial.pool, trial.attempt = None, trial.attempt + 1
            fits = not out_of_memory or trial.fitted
            if not fits and HALVED not in trial.config:
                trial.config = {**trial.config, HALVED: reason, ANEW: True}
                trial.reports.append({HALVED: reason})
                self._waiting.appendleft(trial.config["key"])
                continue
            trial.lost += 1
            if (fits or for_its_node) and not final and trial.lost <= self._retries:
                if trial.fitted:
                    trial.config = {name: value for name, value in trial.config.items() if name != ANEW}
                self._waiting.appendleft(trial.config["key"])
            elif out_of_memory:
                halved = ", with half the batch too" if HALVED in trial.config else ""
                trial.reports.append({FAILED: f"out of memory{halved}: {reason}", INFEASIBLE: True})
            else:
                trial.reports.append({FAILED: reason})
        self._meet()
        self._news.notify_all()
        return bool(held)

    def _leaves_workers(self, trial: _Trial, report: Report) -> bool:
        """Whether a trial has come to a meeting: its workers go, and it will go on from the state that they saved."""
        if self._population is None or trial.ended or "score" not in report:
            return False
        if not self._population.meets(report["epoch"]):
            return False
        trial.pool, trial.attempt = None, trial.attempt + 1
        trial.met, trial.score = report["epoch"], report["score"]
        trial.config = {name: value for name, value in trial.config.items() if name != ANEW} | {FITTED: True}
        return True

    def _meet(self) -> None:
        """Exchanges states once nobody is on the way: of those who wait, among the youngest."""
        live = {key: trial for key, trial in self._trials.items() if not trial.over}
        if (
            self._population is None
            or self._meeting
            or not live
            or len(self._trials.keys() | self._missing) < self._population.size
        ):
            return
        ages = {key: trial.met for key, trial in live.items() if trial.met is not None}
        if len(ages) < len(live):
            return
        epoch = min(ages.values())
        met = {key: live[key] for key, age in ages.items() if age == epoch}
        scores = {key: trial.score for key, trial in met.items()}
        parameters = {key: trial.config["parameters"] for key, trial in met.items()}
        for key, exchange in self._population.exchanges(epoch, scores, parameters).items():
            trial = met[key]
            # What the donor did not fit into memory with does not fit this one either.
            halved = {name: value for name, value in met[exchange.donor].config.items() if name == HALVED}
            trial.config = {**trial.config, "parameters": exchange.parameters, **halved}
            trial.reports.append({EXCHANGED: asdict(exchange), **halved})
            self._exchanging[key] = len(trial.reports)
        self._meeting = list(met)
        self._go_on()

    def _go_on(self) -> None:
        """Sends those who met on their way, once Tune's driver has taken every state over that is exchanged."""
        open_ = {key for key, place in self._exchanging.items() if self._trials[key].taken < place}
        if self._meeting and not any(not self._trials[key].over for key in open_):
            for key in self._meeting:
                trial = self._trials[key]
                trial.met = None
                if not trial.over:
                    self._waiting.append(key)
            self._meeting, self._exchanging = [], {}

    async def _within(self, patience: float, condition: Callable[[], bool]) -> bool:
        """Waits until the condition holds; whether it did so in time."""
        try:
            await asyncio.wait_for(self._news.wait_for(condition), patience)
        except TimeoutError:
            return False
        return True
