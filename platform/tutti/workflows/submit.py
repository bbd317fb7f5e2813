"""Runs a study as a job on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tutti.config.folder import StudyFolder
from tutti.workflows.base import StudyBase


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


def submit(study: StudyBase, *, address: str, options: Sequence[str], submitted: str) -> Job:
    """Ships the study to the cluster and starts ``tutti tune`` there; arguments are those of ``submit_study``."""
    from tutti.cluster.submit import submit_study

    job = submit_study(study.config, address=address, options=[*options], submitted=submitted)
    return Job(job, address, study.folder)
