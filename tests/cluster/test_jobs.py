"""What a cluster's jobs say of the studies that they run."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from ray.job_submission import JobDetails, JobStatus, JobType

from tutti.cluster import jobs
from tutti.cluster.jobs import list_jobs

LOG = "Reading\nt0000 | 0 of 3 trials done, 2 running, best –\nt0001 | 1 of 3 trials done, 2 running, best 0.5\n"


def job(name: str, state: JobStatus, *, start: int | None, end: int | None = None, **metadata: str) -> JobDetails:
    values: dict[str, Any] = {"type": JobType.SUBMISSION, "submission_id": name, "status": state, "entrypoint": "x"}
    return JobDetails(**values, start_time=start, end_time=end, metadata=metadata)


def test_running_jobs_stand_first_and_have_what_their_logs_said_last(monkeypatch):
    found = [
        job("old", JobStatus.FAILED, start=1_000, end=3_601_000, study="a", by="me@here"),
        job("new", JobStatus.SUCCEEDED, start=9_000, end=9_001, study="b"),
        job("waiting", JobStatus.PENDING, start=None, study="c"),
        job("now", JobStatus.RUNNING, start=2_000, study="d"),
        job("of others", JobStatus.RUNNING, start=3_000),
    ]
    client = Mock(list_jobs=lambda: found, get_job_logs=lambda name: LOG if name == "now" else "")
    monkeypatch.setattr(jobs, "job_client", lambda _: client)
    listed = list_jobs(address="http://head:8265")
    assert [each.id for each in listed] == ["now", "waiting", "new", "old"]
    assert [each.progress for each in listed] == ["1 of 3 trials done, 2 running, best 0.5", "", "", ""]
    assert (listed[3].by, listed[3].hours) == ("me@here", 1.0)
    assert listed[1].hours is None
