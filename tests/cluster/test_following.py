"""A job's log is followed over connections that break, with clients that stand for Ray's."""

from __future__ import annotations

import re

import pytest
from ray.job_submission import JobStatus

from tutti.cluster import submit
from tutti.errors import ClusterError

DROPPED = RuntimeError("WebSocket connection closed unexpectedly with close code 1006")
ADDRESS = "http://head:8265"


@pytest.fixture
def follow(monkeypatch):
    """Follows a job of which each tail and each status is given; an exception is raised. Its outcome and its log."""

    def follow(tails, states):
        class Client:
            async def tail_job_logs(self, job):
                for lines in tails.pop(0):
                    if isinstance(lines, Exception):
                        raise lines
                    yield lines

            def get_job_status(self, job):
                state = states.pop(0)
                if isinstance(state, Exception):
                    raise state
                return JobStatus(state)

        shown: list[str] = []
        monkeypatch.setattr(submit, "job_client", lambda address: Client())
        outcome = submit.follow_job("raysubmit_1", address=ADDRESS, show=shown.append)
        assert not tails
        return outcome, "".join(shown)

    monkeypatch.setattr(submit.time, "sleep", lambda seconds: None)
    return follow


@pytest.mark.parametrize("ended", ["SUCCEEDED", "FAILED", "STOPPED"])
def test_a_job_is_followed_until_it_has_ended_though_the_connection_is_closed(follow, ended):
    tails = [["one\ntw"], ["one\n"], [], ["one\ntwo\n", "three\n"]]  # each from the beginning, cut anywhere
    assert follow(tails, ["PENDING", "RUNNING", "RUNNING", ended]) == (ended, "one\ntwo\nthree\n")


def test_a_job_is_followed_though_a_proxy_drops_the_connection(follow):
    tails = [["one\n", DROPPED], [DROPPED], ["one\ntwo\n"]]
    assert follow(tails, ["RUNNING", "RUNNING", "SUCCEEDED"]) == ("SUCCEEDED", "one\ntwo\n")


def test_what_a_job_wrote_after_the_connection_was_dropped_is_shown_though_it_has_ended(follow):
    assert follow([["one\n", DROPPED], ["one\ntwo\n"]], ["SUCCEEDED"]) == ("SUCCEEDED", "one\ntwo\n")
    assert follow([["one\n", DROPPED], [DROPPED]], ["FAILED"]) == ("FAILED", "one\n")  # its node may be gone


def test_a_cluster_that_is_gone_is_told_with_how_to_ask_for_the_job(follow):
    ask = f"the job may go on: ask with `tutti submit --status raysubmit_1 --address {ADDRESS}`"
    with pytest.raises(ClusterError, match=f"got no route to host; .*{re.escape(ask)}"):
        follow([["one\n", DROPPED]], [ConnectionError("no route to host")])
