"""Connects Ray Tune to the broker: the trainable that relays reports, and a callback that watches the pools."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import ray
from ray import tune
from ray.exceptions import ActorUnavailableError, RayError
from ray.tune.experiment import Trial

from tutti.config.folder import StudyFolder
from tutti.copies import address_of
from tutti.errors import ClusterError, Fault, StorageError, first_line
from tutti.orchestration.broker.broker import Broker
from tutti.orchestration.broker.messages import Report, TrialConfig, is_last
from tutti.orchestration.driver.snapshot import NotSnapshotted
from tutti.orchestration.worker.nodes import NodeWatch
from tutti.orchestration.worker.storage_failure import GO_ON

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from tutti.orchestration.worker.pool import Pools

UNREADABLE_SECONDS = 60.0  # for which a study's file system, such as NFS, may fail before the study ends


class RelayedTrial(tune.Trainable):
    """The Tune trainable: submits a trial to the broker and relays its reports.

    A trial that a retry cannot help reports ``{"failed": reason}`` and ends normally. Tune's own retries are thus left
    for the loss of this actor.
    """

    def setup(self, config: TrialConfig, broker: Any) -> None:
        self._broker = broker
        self._submit(config)

    def reset_config(self, new_config: TrialConfig) -> bool:
        """Reuses this actor for the next trial. The previous one has ended, or Tune has stopped it."""
        self.cleanup()
        self._submit(new_config)
        return True

    def _submit(self, config: TrialConfig) -> None:
        self._key = config["key"]
        self._ticket, self._report_index = ray.get(self._broker.submit.remote(config))

    def step(self) -> dict[str, Any]:
        report: Report = ray.get(self._broker.next_report.remote(self._key, self._report_index))
        self._report_index += 1
        return {**report, tune.result.DONE: not report or is_last(report)}

    def cleanup(self) -> None:
        ray.get(self._broker.stop.remote(self._key, self._ticket))


class PoolWatch(NotSnapshotted, tune.Callback):
    """Frees the workers of a trial as soon as Tune ends it, and ends a study that has no pools left.

    Args:
        notify: called once with each node that comes or goes, or does not see the study's folder.
    """

    def __init__(
        self, broker: ActorHandle[Broker], pools: Pools, folder: StudyFolder, notify: Callable[[str], None]
    ) -> None:
        self._broker, self._pools, self._folder, self._notify = broker, pools, folder, notify
        self._told: set[str] = set()  # ids of nodes
        self._nodes = NodeWatch()
        self._last_check, self._unreadable_since = 0.0, math.inf
        self._had_file = self._has_file()

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._broker.stop.remote(trial.config["key"])

    on_trial_error = on_trial_complete

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Checks the pools once a second, and which nodes there are; raises what ``check`` raises."""
        if time.monotonic() - self._last_check >= 1:
            self.check()
            for change in self._nodes.changes():
                self._notify(change)

    def check(self) -> None:
        """Checks that the study's trials can still be trained. If not, they stay unfinished, for a resumed study.

        Raises:
            ClusterError: if no pool is left, or the broker has died.
            StorageError: if the storage of a worker failed, or the study's folder is no longer there, or could not be
                read for a minute. Tune's actors would write to the old place, fail, and so would their trials.
        """
        self._last_check = time.monotonic()
        if self._had_file and not self._has_file():
            rule, got = "stay where it is while the study runs", "no study.json in it"
            raise StorageError(Fault(str(self._folder.path), rule, got, f"put it back in its place{GO_ON}"))
        try:
            if fault := ray.get(self._broker.halt_fault.remote()):
                raise StorageError(fault)
            self._tell_of_nodes(ray.get(self._broker.blind_nodes.remote()))
            ended = self._pools.ended()
            if len(ended) < len(self._pools.hosts):
                self._post_failures(ended)
                return
            reason = next((reason for reason in ended if reason), "they ended")
        except ActorUnavailableError:  # Ray restores the connection, or finds that the broker has died
            return
        except RayError as error:
            reason = first_line(getattr(error, "cause", None) or error)
        remedy = "look at Ray's logs, fix the cause, and go on with --resume"
        raise ClusterError(Fault("the study's workers", "start and stay", reason, remedy))

    def _has_file(self) -> bool:
        """Whether the folder has its study.json. A file system that has just begun to fail counts as if it had."""
        try:
            self._folder.study_file.stat()  # is_file() raises some errors and hides others, by Python's version
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            now = time.monotonic()
            self._unreadable_since = min(self._unreadable_since, now)
            if now - self._unreadable_since < UNREADABLE_SECONDS:
                return True
            rule, got = "stay readable while the study runs", error.strerror or first_line(error)
            remedy = f"see to its file system{GO_ON}"
            raise StorageError(Fault(str(self._folder.study_file), rule, got, remedy)) from error
        self._unreadable_since = math.inf
        return True

    def _tell_of_nodes(self, blind: Mapping[str, str]) -> None:
        for node in blind.keys() - self._told:
            self._told.add(node)
            text = f"does not see {self._folder.path}, or sees another folder there"
            remedy = "mount the shared folder there"
            if address := address_of(self._folder.path):
                text, remedy = f"cannot read {address}, or cannot write {self._folder.path}", "see to its credentials"
            self._notify(f"the node {blind[node]} {text}: no trial goes there from now on; {remedy}")

    def _post_failures(self, reasons: list[str | None]) -> None:
        """Tells users that some pools have given up while others still train."""
        for reason in filter(None, reasons):
            text = f"some of the study's workers could not start and stay ({reason}); the others go on"
            self._broker.post_notice.remote(text)
