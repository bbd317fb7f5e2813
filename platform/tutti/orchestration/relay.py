"""Between Ray Tune and the broker: a trial as Tune sees it, and what the driver looks after while trials run."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ray
from ray import tune
from ray.exceptions import RayError
from ray.tune.experiment import Trial

from tutti.errors import ClusterError, Fault, StorageError
from tutti.orchestration.broker import FAILED, FINAL, Broker

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle


class RelayedTrial(tune.Trainable):
    """The Tune trainable: asks the broker for a trial to be trained, and relays its reports.

    A trial that cannot succeed when tried again reports ``{"failed": reason}`` and ends in good order, so that Tune's
    retries are left to what they can mend: the loss of this very actor.
    """

    def setup(self, config: dict[str, Any], broker: Any) -> None:
        self._broker = broker
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Takes the next trial; the one before has ended, or Tune has stopped it."""
        self.cleanup()
        self._begin(new_config)
        return True

    def _begin(self, config: dict[str, Any]) -> None:
        self._key: str = config["key"]
        self._ticket, self._place = ray.get(self._broker.submit.remote(config))

    def step(self) -> dict[str, Any]:
        told: dict[str, Any] = ray.get(self._broker.next.remote(self._key, self._place))
        self._place += 1
        return {**told, tune.result.DONE: not told or bool(told.keys() & {FINAL, FAILED})}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Nothing: a trial's states are its own, and its workers find them by its key."""
        return {}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Nothing: see ``save_checkpoint``."""

    def cleanup(self) -> None:
        ray.get(self._broker.stop.remote(self._key, self._ticket))


class Watch(tune.Callback):
    """Frees the workers of a trial that Tune has ended at once, and ends a study that has nobody left to train it.

    Args:
        pools: what their hosts' ``run`` will return.
    """

    def __init__(self, broker: ActorHandle[Broker], pools: list[ObjectRef[str | None]]) -> None:
        self._broker, self._pools = broker, pools
        self._looked = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune writes a snapshot of all it was given, and no run ever reads it back."""
        return {}

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._broker.stop.remote(trial.config["key"])

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._broker.stop.remote(trial.config["key"])

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Looks once a second; raises what ``look`` raises."""
        if time.monotonic() - self._looked >= 1:
            self.look()

    def look(self) -> None:
        """Finds out whether there is still somebody to train the study's trials.

        Raises:
            ClusterError: where no pool is left, or the broker has died. Trials stay unfinished, for a resumed study.
            StorageError: where a worker's storage failed. Trials stay unfinished too.
        """
        self._looked = time.monotonic()
        try:
            if fault := ray.get(self._broker.halted.remote()):
                raise StorageError(fault)
            ended, running = ray.wait(self._pools, num_returns=len(self._pools), timeout=0)
            if running:
                self._tell_of(ended)
                return
            reason = next((said for said in ray.get(ended) if said), "they ended")
        except RayError as error:
            reason = str(error).splitlines()[0]
        remedy = "see Ray's logs, mend the cause, and go on with --resume"
        raise ClusterError(Fault("the study's workers", "start and stay", reason, remedy))

    def _tell_of(self, ended: list[ObjectRef[str | None]]) -> None:
        """Has users told, while others train, that some of the workers are given up."""
        for pool in ended:
            with suppress(RayError):
                if reason := ray.get(pool):
                    text = f"some of the study's workers could not start and stay ({reason}); the others go on"
                    self._broker.notice.remote(text)
