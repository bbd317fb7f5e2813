"""The loop that trains any objective: every step depends on seed and step alone, so a resumed run is bit-equal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tutti.config.pretraining import PretrainingSettings
from tutti.data.corpus import Corpus
from tutti.errors import Fault, TrialError
from tutti.training.machine.cpu import eager_attention, quick_masks, slow_attention
from tutti.training.machine.gpu import without_asking_for_padding
from tutti.training.machine.precision import autocast
from tutti.training.machine.ranks import from_rank_zero, gathered, rank, world_size
from tutti.training.pretraining.batches import Order, Share, read_batch
from tutti.training.pretraining.objective import Inputs, Objective, Outcome
from tutti.training.pretraining.sharding import clip, is_shard, load_whole, shard, sum_all, whole_states
from tutti.training.pretraining.states import States

_EVALUATION = 2**31  # in place of a step, in the seeds of held-out masks


@dataclass(frozen=True)
class Progress:
    """What a run tells now and then.

    Attributes:
        step, steps: optimizer steps taken, and their number in all.
        epoch: passes over the texts, with the fraction of the present one.
        measures: means since the last report: losses and accuracies, the learning rate and tokens a second; or, of
            held-out rows, all with ``held_out_`` in front.
        held_out: whether these are of held-out rows.
        seconds_left: as estimated by the speed so far.
    """

    step: int
    steps: int
    epoch: float
    measures: Mapping[str, float]
    held_out: bool
    seconds_left: float


class Means:
    """Means of measures over the batches of all ranks, which read them together; adding to them waits for nothing."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}

    def add(self, sums: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        for name, (value, count) in sums.items():
            before, number = self._sums.get(name, (0.0, 0))
            self._sums[name] = before + value.double(), number + count

    def take(self) -> dict[str, float]:
        """The means, without measures of nothing; afterwards there are none."""
        own = {name: (value.item(), count.item()) for name, (value, count) in self._sums.items()}
        self._sums = {}
        parts = gathered(own)
        sums = {name: [part[name] for part in parts if name in part] for name in dict.fromkeys(chain(*parts))}
        counts = {name: sum(count for _, count in each) for name, each in sums.items()}
        return {name: sum(value for value, _ in each) / counts[name] for name, each in sums.items() if counts[name]}


@dataclass(eq=False)
class Loop:
    """Trains an objective on a corpus, on one device of each rank.

    In a ``torch.distributed`` group every rank takes its share of each batch, which has ``batch_size`` rows for each of
    them, and ends with the same weights.

    Args:
        states: where states are, and are saved by rank 0; a folder that all ranks see.
        report: called on every rank, with the same measures but for the speed.
        keep: called on every rank with the number of steps, every ``keep_every`` and after the last one.
        precision: as of ``tutti.training.machine.precision``.
    """

    objective: Objective
    corpus: Corpus
    settings: PretrainingSettings
    states: States
    device: torch.device
    precision: str
    pad: int
    report: Callable[[Progress], None] = lambda progress: None
    keep: Callable[[int], None] = lambda step: None
    _step: int = field(default=0, init=False)
    _seconds_per_step: float = field(default=math.nan, init=False)

    def __post_init__(self) -> None:
        module = self.objective.module.to(self.device)
        self._share = Share(rank(), world_size())
        self._rows_of_batch = self.settings.batch_size * self._share.world
        for tensor in module.state_dict().values() if self._share.world > 1 else ():
            dist.broadcast(tensor, src=0)
        self._sharded = self.settings.fsdp and self._share.world > 1
        if self._sharded:
            shard(module)
        self._optimizer = _optimizer(module, self.settings, self.device)
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")
        self._order = Order(self.corpus.train, batch_size=self._rows_of_batch, seed=self.settings.seed)
        self._per_epoch = -(-len(self._order) // self.settings.accumulation)
        self.steps = self.settings.steps or self.settings.epochs * self._per_epoch
        on_cpu = self.device.type == "cpu"
        # Without autocast, attention in float32 is as fast either way.
        self._slow = slow_attention(module) if on_cpu and self.precision == "bf16" else []
        self._quick = quick_masks if on_cpu else nullcontext

    def train(self) -> dict[str, float]:
        """Takes all steps that are left, and returns the last held-out measures, with ``held_out_loss``.

        Raises:
            TrialError: if a loss is not finite, or no token of the held-out rows can be masked.
            StorageError: if a state cannot be written.
        """
        restored = self._restore()
        self._keep()
        # A state at the end of an epoch is evaluated, as it may not have been.
        measures = self._evaluate() if restored and self._due() else None
        with self._quick():
            while self._step < self.steps:
                measures = self._epoch() or measures
        return measures or self._evaluate()

    def _restore(self) -> bool:
        """Goes on from the newest state, if there is one."""
        state = self.states.newest() if rank() == 0 else None  # which removes damaged ones
        step = from_rank_zero(lambda: state and state["step"])
        if step is None:
            return False
        state = state or self.states.newest()
        if state is None or state["step"] != step:
            rule, got = f"see the state after {step} steps that rank 0 sees", str(state and state["step"])
            remedy = "put the folder on storage that all nodes share"
            raise TrialError(Fault(f"rank {rank()}", rule, got, remedy))
        load_whole(self.objective.module, self._optimizer, state["module"], state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])
        self._step = state["step"]
        return True

    def _epoch(self) -> dict[str, float] | None:
        """Takes the steps that are left of this epoch."""
        settings, means, measures = self.settings, Means(), None
        epoch, done = divmod(self._step, self._per_epoch)
        batches = self._order.epoch(epoch)
        saved = reported = time.monotonic()
        tokens = first = 0
        for number in range(done, min(self._per_epoch, done + self.steps - self._step)):
            chunk = batches[number * settings.accumulation : (number + 1) * settings.accumulation]
            is_late = rank() == 0 and time.monotonic() - saved >= 60 * settings.save_minutes
            is_late, added = self._take_step(chunk, means, is_late=is_late)
            tokens += added
            first += 1
            now = time.monotonic()
            ends = number + 1 == self._per_epoch or self._step == self.steps
            saves = ends or _is_multiple(self._step, settings.save_steps) or is_late
            if saves or _is_multiple(self._step, settings.log_steps):  # which looks whether the loss is finite
                self._report(means.take(), seconds=now - reported, tokens=tokens, steps=first)
                reported, tokens, first = now, 0, 0
            if saves:
                self._save()
                saved = time.monotonic()
            self._keep()
            if self._due():
                measures = self._evaluate()
            reported += time.monotonic() - now  # none of this is time of training
        return measures

    def _keep(self) -> None:
        every = self.settings.keep_every
        if every and (_is_multiple(self._step, every) or self._step == self.steps):
            self.keep(self._step)

    def _due(self) -> bool:
        """Whether the held-out loss is measured after this step."""
        ends = _is_multiple(self._step, self._per_epoch) or self._step == self.steps
        return ends or _is_multiple(self._step, self.settings.evaluate_steps)

    def _take_step(self, batches: Iterable[np.ndarray], means: Means, *, is_late: bool) -> tuple[bool, int]:
        """One step of the optimizer. Returns rank 0's ``is_late``, and the number of tokens, without padding."""
        module, tokens = self.objective.module.train(), 0
        rate = self.settings.rate(self._step, self.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        batches = list(batches)
        for part, rows in enumerate(batches):
            batch = read_batch(self.corpus.train, rows, pad=self.pad)
            tokens += int(batch.is_token.sum())
            share = self._share_of(rows)
            if share is None:
                continue
            _seed(self.settings.seed, self._step, part)
            inputs = self.objective.draw(batch, share)
            if rank():
                _seed(self.settings.seed, self._step, part, rank())  # another dropout than rank 0's
            outcome = self._outcome(inputs)
            counts = share == self._share
            self._scaler.scale(outcome.loss * counts / len(batches)).backward()
            if counts:
                means.add(outcome.sums)
        parameters = [*module.parameters()]
        is_late = sum_all(parameters, flag=is_late)
        self._scaler.unscale_(self._optimizer)
        if self.settings.max_grad_norm:
            clip(parameters, self.settings.max_grad_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        self._step += 1
        return is_late, tokens

    def _share_of(self, rows: np.ndarray) -> Share | None:
        """This rank's share of a batch; None if it has none of so few rows.

        With FSDP it then computes rank 0's, which do not count, since ranks gather layers together.
        """
        if len(self._share.rows(rows)):
            return self._share
        return Share(0, self._share.world) if self._sharded else None

    def _outcome(self, inputs: Inputs) -> Outcome:
        mask = inputs.get("attention_mask")
        asks_nothing = without_asking_for_padding(mask, self.device)
        on_device = {name: each.to(self.device, non_blocking=True) for name, each in inputs.items()}
        training = eager_attention(self._slow) if self.objective.module.training else nullcontext()
        with autocast(self.device, self.precision), training, asks_nothing:
            return self.objective.outcome(on_device)

    def _evaluate(self) -> dict[str, float]:
        measures = self._measure()
        self._tell(measures, held_out=True)
        return measures

    @torch.no_grad()
    def _measure(self) -> dict[str, float]:
        """The measures of the held-out rows. Their masks are the same each time: losses differ by what was learnt.

        Raises:
            TrialError: if no token can be masked, or the loss is not finite.
        """
        self.objective.module.eval()
        order, means = Order(self.corpus.held_out, batch_size=self._rows_of_batch, seed=0), Means()
        for part, rows in enumerate(order.epoch(0)):
            share = self._share_of(rows)
            if share is None:
                continue
            batch = read_batch(self.corpus.held_out, rows, pad=self.pad)
            _seed(self.settings.seed, _EVALUATION, part)
            outcome = self._outcome(self.objective.draw(batch, share))
            if share == self._share:
                means.add(outcome.sums)
        taken = means.take()
        try:
            loss = self.objective.loss(taken)
        except KeyError as error:
            rule, remedy = "have a token that can be masked", "add rows with words that the backbone's tokenizer knows"
            raise TrialError(Fault("the held-out rows", rule, "none", remedy)) from error
        if not math.isfinite(loss):
            raise TrialError(Fault("the held-out loss", "be finite", str(loss), "lower the learning rate"))
        return {f"held_out_{name}": value for name, value in {**taken, "loss": loss}.items()}

    def _report(self, means: dict[str, float], *, seconds: float, tokens: int, steps: int) -> None:
        try:
            loss = self.objective.loss(means)
        except KeyError:  # of nothing, in rows of special tokens alone
            loss = 0.0
        if not math.isfinite(loss):
            where = f"the loss near step {self._step}"
            raise TrialError(Fault(where, "be finite", str(loss), "lower the learning rate"))
        self._seconds_per_step = seconds / max(1, steps)
        means |= {"loss": loss, "learning_rate": self._optimizer.param_groups[0]["lr"]}
        means["tokens_per_second"] = tokens / max(seconds, 1e-9)
        self._tell(means, held_out=False)

    def _tell(self, measures: Mapping[str, float], *, held_out: bool) -> None:
        left = (self.steps - self._step) * self._seconds_per_step
        self.report(Progress(self._step, self.steps, self._step / self._per_epoch, measures, held_out, left))

    def _save(self) -> None:
        if not self._sharded and rank():
            return
        module, optimizer = whole_states(self.objective.module, self._optimizer)
        if rank() == 0:
            state = {"module": module, "optimizer": optimizer, "scaler": self._scaler.state_dict()}
            self.states.save(self._step, state)


def _optimizer(module: nn.Module, settings: PretrainingSettings, device: torch.device) -> torch.optim.AdamW:
    parameters = [each for each in module.parameters() if each.requires_grad]  # tied ones come once
    groups = []
    for of_shards in (False, True):  # one kernel cannot update both
        own = [each for each in parameters if is_shard(each) == of_shards]
        groups += [
            {"params": [each for each in own if each.ndim > 1], "weight_decay": settings.weight_decay},
            {"params": [each for each in own if each.ndim <= 1], "weight_decay": 0.0},
        ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, eps=settings.adam_epsilon, fused=True)


def _is_multiple(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _seed(*numbers: int) -> None:
    """Seeds torch, on every device: masks and dropout of a step depend on its number and not on the steps before."""
    torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1))
