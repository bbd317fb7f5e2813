"""What a Ray cluster's jobs say of the studies that they run."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tutti.cluster.client import cluster_faults, job_client

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

_PROGRESS = re.compile(r"\d+ of \d+ trials? done\b[^\n]*")  # of the lines that `tutti tune` prints
_RUNNING = "RUNNING"


@dataclass(frozen=True)
class JobRecord:
    """A job that `tutti submit` has sent to a cluster.

    Attributes:
        id: as `tutti submit --status` takes it.
        study: the study's name, or that of a pretraining file's `out`.
        state: ``PENDING``, ``RUNNING``, ``SUCCEEDED``, ``FAILED`` or ``STOPPED``.
        by: who submitted it, as user@host.
        begun, ended: in UTC; None before that.
        progress: what a search said last of its trials, such as "3 of 16 trials done, 2 running, best 0.8893".
    """

    id: str
    study: str
    state: str
    by: str
    begun: datetime | None
    ended: datetime | None
    progress: str

    @property
    def hours(self) -> float | None:
        """How long it has run so far, or ran; None before that."""
        if self.begun is None:
            return None
        return ((self.ended or datetime.now(UTC)) - self.begun).total_seconds() / 3600


def list_jobs(*, address: str) -> list[JobRecord]:
    """The cluster's jobs of Tutti, running ones first, then the latest.

    Raises:
        UserError: if the address is invalid.
        ClusterError: if the cluster does not answer.
    """
    with cluster_faults(address):
        client = job_client(address)
        jobs = [job for job in client.list_jobs() if job.submission_id and "study" in (job.metadata or {})]
        with ThreadPoolExecutor() as pool:
            records = list(pool.map(lambda job: _record(client, job), jobs))
    return sorted(records, key=lambda each: (each.state == _RUNNING, each.begun or datetime.now(UTC)), reverse=True)


def _record(client: JobSubmissionClient, job: JobDetails) -> JobRecord:
    assert job.submission_id is not None
    state, metadata = str(job.status.value), job.metadata or {}
    said = _PROGRESS.findall(client.get_job_logs(job.submission_id)) if state != "PENDING" else []
    return JobRecord(
        id=job.submission_id,
        study=metadata["study"],
        state=state,
        by=metadata.get("by", ""),
        begun=_moment(job.start_time),
        ended=_moment(job.end_time),
        progress=said[-1] if said else "",
    )


def _moment(milliseconds: int | None) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None
