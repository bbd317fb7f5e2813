"""Asks a cluster's dashboard: Ray's client of jobs, and what it raises in words."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tutti.cluster.token import use_own_token
from tutti.config.address import answer_of
from tutti.errors import ClusterError, Fault, UserError

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_ANSWER_SECONDS = 20  # a job's own requests have no limit


def job_client(address: str) -> JobSubmissionClient:
    """A client of the cluster's jobs; to be used within ``cluster_faults``."""
    from ray.job_submission import JobSubmissionClient

    answer_of(f"{address}/api/version", seconds=_ANSWER_SECONDS)
    with _unset("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):  # they would take precedence over the argument
        return JobSubmissionClient(address)


@contextmanager
def _unset(*names: str) -> Iterator[None]:
    """Removes environment variables within the block."""
    removed = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(removed)


@contextmanager
def cluster_faults(address: str, *, followed: str | None = None) -> Iterator[None]:
    """Raises the errors of Ray's job client as a ClusterError, and an address that is not HTTP as a UserError.

    Args:
        followed: the id of a job that was submitted and may go on without this process.
    """
    if not address.startswith(("http://", "https://")):  # Ray would use its own protocol, and wait
        raise UserError(Fault("--address", "be http://HOST:PORT, by default port 8265", repr(address), "correct it"))
    use_own_token()
    from aiohttp import ClientError
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError as error:
        remedy = "copy the head's ~/.ray/auth_token to this machine, or set RAY_AUTH_TOKEN to what is in it"
        got = "a request without a token, or with another"
        what = f"the Ray cluster at {address}"
        raise ClusterError(Fault(what, "be given the token that it was started with", got, remedy)) from error
    except BrokenPipeError:  # of our own output, such as into `| head`
        raise
    except (RuntimeError, OSError, ClientError, ValueError) as error:  # errors of requests are OSErrors
        remedy = "check that it is up, that --address is its dashboard (http://HOST:8265), and the job's id"
        if followed is not None:
            ask = f"tutti submit --status {followed} --address {shlex.quote(address)}"
            remedy = f"check that it is up; the job may go on: ask with `{ask}`"
        text = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
        what, rule = f"the Ray cluster at {address}", "answer and know the job"
        raise ClusterError(Fault(what, rule, text.strip(), remedy)) from error
