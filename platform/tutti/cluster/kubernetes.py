"""A study as a RayJob of Kubernetes: a Ray cluster of its own, which the KubeRay operator starts and ends with it."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

from tutti.cluster.shipped import ARCHIVE, STUDY_FILE, SUBMITTED
from tutti.cluster.submit import STOP_SECONDS, check_tracking, stage_study
from tutti.config.names import shipped_folder
from tutti.config.study import Resources, StudyConfig
from tutti.errors import ClusterError, Fault, StudyError
from tutti.files import storage_faults
from tutti.launchers import user_name

CONFIG_MAP_BYTES = 1_000_000  # Kubernetes allows 1 MiB
_NAME_LENGTH = 47  # of a RayJob, by KubeRay
_MOUNTED = "/etc/tutti"  # of the ConfigMap, in every pod


@dataclass(frozen=True)
class RayJob:
    """A study's RayJob, not yet created.

    Attributes:
        name: in Kubernetes.
        manifest: YAML of the RayJob and of the ConfigMap with the study file and the files that travel.
    """

    name: str
    manifest: str

    def apply(self) -> str:
        """Creates both by ``kubectl``, in its current context and namespace; what it says.

        Raises:
            ClusterError: if there is no kubectl, or it fails.
        """
        what = "kubectl create"
        if shutil.which("kubectl") is None:
            remedy = "install it, or take the printed manifest (without --apply) to a machine that has it"
            raise ClusterError(Fault(what, "be installed here for --apply", "no kubectl on the PATH", remedy))
        run = subprocess.run(
            ["kubectl", "create", "-f", "-"], input=self.manifest, capture_output=True, text=True, check=False
        )
        if run.returncode:
            got = "; ".join(filter(None, map(str.strip, run.stderr.splitlines()[-3:]))) or f"exit {run.returncode}"
            remedy = "check `kubectl config current-context`, and that the KubeRay operator is installed there"
            raise ClusterError(Fault(what, "create the RayJob", got, remedy))
        return run.stdout


def ray_job(study: StudyConfig, *, image: str, options: Sequence[str], submitted: str) -> RayJob:
    """The RayJob of a study, by deploy/kuberay/rayjob.yaml, and the ConfigMap with the files that the study names.

    Files below ``storage.path``, the volume that every pod mounts, do not travel.

    Args:
        study: with absolute paths only, including ``storage.path``, and without passwords.
        image: with Tutti, as the Dockerfile makes it.
        options: further options of ``tutti tune``.
        submitted: as of ``submit_study``.

    Raises:
        StudyError: if files that travel are too large, ``resources.concurrent_trials`` is not set, or the MLflow store
            is a file that the cluster does not see.
        StorageError: if a file cannot be copied.
    """
    shared, resources = study.storage.path, study.resources
    assert shared is not None
    check_tracking(study.tracking.uri, what="tracking.uri", shared=shared, place="storage.path")
    if resources.concurrent_trials is None:
        rule, remedy = "be set for a cluster that begins without workers", "say how many trials may run at a time"
        raise StudyError(Fault("resources.concurrent_trials", rule, "nothing", remedy))
    with storage_faults(Path("the temporary folder ($TMPDIR)")), tempfile.TemporaryDirectory() as staging:
        target = stage_study(study, Path(staging))
        archive = _archive(Path(staging))
        document = (Path(staging) / STUDY_FILE).read_text(encoding="utf8")
    if (size := len(archive) + len(document.encode())) > CONFIG_MAP_BYTES:
        rule = f"be at most {CONFIG_MAP_BYTES:,} bytes, compressed, to travel in a ConfigMap"
        remedy = f"put the large ones below storage.path ({shared}), on the volume that every pod mounts"
        raise StudyError(Fault("the files that the study names", rule, f"{size:,}", remedy))
    name = _name(study.study)
    template = YAML(typ="safe", pure=True).load((shipped_folder("kuberay") / "rayjob.yaml").read_text(encoding="utf8"))
    job = json.loads(json.dumps(template))  # in which anchors share nothing
    labels = {"app.kubernetes.io/part-of": "tutti", "tutti/study": name[:-7]}
    job["metadata"] = {"name": name, "labels": labels}
    variables = {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS), SUBMITTED: submitted}
    job["spec"] |= {
        "entrypoint": shlex.join(
            ["python", "-m", "tutti.cluster.shipped", str(target), _MOUNTED, "tune", STUDY_FILE, *options]
        ),
        "runtimeEnvYAML": json.dumps({"env_vars": variables}),  # JSON is YAML too
        "metadata": {"study": study.study, "by": f"{user_name()}@{socket.gethostname()}"},
    }
    _fill_pods(
        job["spec"]["rayClusterSpec"], image=image, config_map=name, shared=None if study.storage.address else shared
    )
    _fill_workers(job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0], resources)
    files = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": labels},
        "data": {STUDY_FILE: LiteralScalarString(document)},
        "binaryData": {ARCHIVE: base64.b64encode(archive).decode()},
    }
    return RayJob(name, _dump(files, job))


def _archive(staging: Path) -> bytes:
    """What travels besides the study file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path in sorted(staging.iterdir()):
            if path.name != STUDY_FILE:
                archive.add(path, path.name)
    return buffer.getvalue()


def _name(study: str) -> str:
    """A new name for each job: Kubernetes takes lower case, and KubeRay runs a job of a known name no second time."""
    plain = re.sub("[^a-z0-9]+", "-", f"tutti-{study.lower()}")[: _NAME_LENGTH - 7].strip("-")
    return f"{plain}-{secrets.token_hex(3)}"


def _fill_pods(cluster: dict[str, Any], *, image: str, config_map: str, shared: Path | None) -> None:
    """The image, the ConfigMap, and the volume of the studies, which the template has at /studies.

    Args:
        shared: where the volume is to be; none if the studies are on object storage, of which pods have working copies.
    """
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        for volume in pod["volumes"]:
            if "configMap" in volume:
                volume["configMap"] = {"name": config_map}
            if "persistentVolumeClaim" in volume and shared is None:
                del volume["persistentVolumeClaim"]
                volume["emptyDir"] = {}
        for container in pod["containers"]:
            container["image"] = image
            for mount in container["volumeMounts"]:
                if mount["name"] == "studies" and shared and not shared.is_relative_to(mount["mountPath"]):
                    mount["mountPath"] = str(shared)


def _fill_workers(group: dict[str, Any], resources: Resources) -> None:
    """A pod for each worker of a trial or, of workers that share a GPU, for each GPU."""
    each = math.floor(1 / resources.gpus_per_worker) if resources.gpus_per_worker else 1
    assert resources.concurrent_trials is not None
    group["maxReplicas"] = math.ceil(resources.concurrent_trials * resources.workers / each)
    (container,) = group["template"]["spec"]["containers"]
    for kind in ("requests", "limits"):
        asked = container["resources"][kind]
        asked["cpu"] = str(resources.cpus_per_worker * each)
        if not resources.gpus_per_worker:
            del asked["nvidia.com/gpu"]
    if not resources.gpus_per_worker:
        group["groupName"] = "cpu"


def _dump(*documents: dict[str, Any]) -> str:
    yaml, text = YAML(), io.StringIO()
    yaml.width = 10**6
    yaml.dump_all(documents, text)
    return text.getvalue()
