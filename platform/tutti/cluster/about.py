"""What a cluster's dashboard says before a job is sent there: its versions, and what its nodes have room for."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from tutti.orchestration.worker.nodes import room_in_words

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

    from tutti.config.study import Resources

_ANSWER_SECONDS = 20
_MOST_NODES = 10_000  # that Ray lists at a time


def about_cluster(client: JobSubmissionClient, resources: Resources | None) -> list[str]:
    """Sentences on the head's Ray and Python where they are not this machine's, and on nodes if there are several.

    Tutti itself travels with a job.
    """
    import ray

    versions, told = _asked(client, "cluster_metadata"), []
    for what, here in (("ray", ray.__version__), ("python", platform.python_version())):
        there = versions.get(f"{what}Version") or versions.get(f"{what}_version") or here
        if there != here:
            told.append(f"The head has {what.capitalize()} {there}, this machine {here}: the job runs with the head's.")
    nodes = _asked(client, f"nodes?limit={_MOST_NODES}&detail=1").get("result", {}).get("result", [])
    rooms = [node.get("resources_total") or {} for node in nodes if node.get("state") == "ALIVE"]
    if resources and len(rooms) > 1:
        told.append(room_in_words(rooms, resources))
    return told


def _asked(client: JobSubmissionClient, what: str) -> dict[str, Any]:
    """What the dashboard's API answers; nothing if this version of Ray has no such page."""
    answer = client._do_request("GET", f"/api/v0/{what}", timeout=_ANSWER_SECONDS)
    data: dict[str, Any] = answer.json().get("data") or {} if answer.ok else {}
    return data
