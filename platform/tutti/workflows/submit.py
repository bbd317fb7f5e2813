"""Runs a study, or a pretraining file, as a job on a Ray cluster."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.config.folder import StudyFolder
from tutti.config.pretraining import PretrainingConfig, load_pretraining

if TYPE_CHECKING:
    from tutti.cluster.jobs import JobRecord


@dataclass(frozen=True)
class Job:
    """A job on a cluster. Every method raises ClusterError if the cluster does not answer.

    Attributes:
        address: of the cluster's dashboard.
        folder: of the study, on storage that the cluster sees; none for a job that is known by its id alone.
    """

    id: str
    address: str
    folder: StudyFolder | None = None

    def status(self) -> str:
        """Ray's status of the job, with its message where it has one."""
        from tutti.cluster.submit import job_status

        return job_status(self.id, address=self.address)

    def stop(self) -> bool:
        """Stops the job in order, as Ctrl-C does, and returns whether it was still running."""
        from tutti.cluster.submit import stop_job

        return stop_job(self.id, address=self.address)

    def follow(self, show: Callable[[str], None] = lambda text: print(text, end="")) -> str:
        """Shows the log until the job has ended; returns ``SUCCEEDED``, ``FAILED`` or ``STOPPED``."""
        from tutti.cluster.submit import follow_job

        return follow_job(self.id, address=self.address, show=show)


def submit_pretraining(
    file: Path | str | Mapping[str, Any],
    *,
    address: str = "http://127.0.0.1:8265",
    overrides: Sequence[str] = (),
    trials: int | str | None = None,
    resume: bool = False,
    command: str | None = None,
    option: Callable[[str], str] = "tutti.submit_pretraining: {}".format,
    **options: Any,
) -> Job:
    """Runs a pretraining file as a job on a Ray cluster; with a search space, the search over it.

    ``out`` is in a folder that every node sees. Of a single run the same call goes on where it was cut off.

    Args:
        address: of the cluster's dashboard.
        overrides, options: as of ``tutti.tune_pretraining``.
        trials, resume: of a search; without effect on a single run.
        command: what its user would type to submit it again, which the job's log names.

    Raises:
        ConfigError: with every fault of the file.
        StudyError: if the files to ship are too large.
        ClusterError: if the cluster does not answer or refuses the job.

    Example:
        >>> tutti.submit_pretraining("pretraining.yaml", address="http://head:8265", workers=4).follow()
    """
    from tutti.cluster.submit import submit_pretraining as submit_file

    run = load_pretraining(PretrainingConfig, file, options, option=option, overrides=overrides, shared=True)
    given = [*(["--resume"] if resume else []), *(["--trials", str(trials)] if trials is not None else [])]
    again = command or f"tutti submit PRETRAINING.yaml --address {shlex.quote(address)}"
    submitted = json.dumps((again, [*overrides]))
    searches = bool(run.search_space.root)
    return Job(submit_file(run, address=address, options=given if searches else [], submitted=submitted), address)


def jobs(*, address: str = "http://127.0.0.1:8265") -> list[JobRecord]:
    """The studies and pretraining files that `tutti submit` has sent to a cluster, running ones first, then the latest.

    Args:
        address: of the cluster's dashboard.

    Raises:
        ClusterError: if the cluster does not answer.

    Example:
        >>> [job.study for job in tutti.jobs(address="http://head:8265") if job.state == "RUNNING"]
    """
    from tutti.cluster.jobs import list_jobs

    return list_jobs(address=address)
