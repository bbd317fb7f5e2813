"""What runs Tutti elsewhere: the image, the manifests for Kubernetes, and the script for Slurm."""

from __future__ import annotations

import base64
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tutti.cluster import kubernetes
from tutti.config.load import parse_study
from tutti.errors import ClusterError, StudyError
from tutti.workflows.study import Study

ROOT = Path(__file__).parents[2]
KUBERAY = sorted((ROOT / "deploy" / "kuberay").glob("*.yaml"))


def documents(text: str) -> list[dict[str, Any]]:
    return list(YAML(typ="safe", pure=True).load_all(text))


def everything(value: Any) -> Iterator[dict[str, Any]]:
    """Each mapping within a document."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from everything(inner)
    if isinstance(value, dict):
        yield value


def test_the_image_copies_what_is_there_installs_pinned_extras_and_is_not_root():
    text = (ROOT / "Dockerfile").read_text(encoding="utf8")
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [name for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for name in line.split()]
    assert {*copied} == kept
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.search(r"ARG EXTRAS=(\S+)", text)
    assert extras
    assert {*extras[1].split(",")} <= project["optional-dependencies"].keys()
    assert project["readme"] in copied
    assert "-c constraints.txt" in text
    assert text.rindex("\nUSER tutti") > text.rindex("\nRUN ")


def has_builder() -> bool:
    """Whether a daemon answers, not only whether its client is installed."""
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_the_image_is_built_and_runs_the_demo():
    if not has_builder():
        pytest.skip("needs Docker")
    subprocess.run(["docker", "build", "-t", "tutti:test", str(ROOT)], check=True)
    subprocess.run(["docker", "run", "--rm", "--shm-size", "2g", "tutti:test", "tutti", "demo"], check=True)


def check_manifest(document: dict[str, Any]) -> None:
    """Every password is taken from a Secret, and each volume that is mounted is there."""
    for each in everything(document):
        if re.search("PASS|TOKEN|SECRET", str(each.get("name", ""))):
            assert "valueFrom" in each
        if "volumeMounts" not in each:
            continue
        named = {mount["name"] for mount in each["volumeMounts"]}
        pods = [pod for pod in everything(document) if each in pod.get("containers", [])]
        volumes = {volume["name"] for pod in pods for volume in pod.get("volumes", [])}
        claims = {
            claim["metadata"]["name"] for pod in everything(document) for claim in pod.get("volumeClaimTemplates", [])
        }
        assert named <= volumes | claims


def check_pods(document: dict[str, Any]) -> None:
    """Ray's pods have one image and options of ``ray start``."""
    from ray.scripts.scripts import start

    spec = document["spec"].get("rayClusterSpec", document["spec"])
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    assert len({pod["image"] for group in groups for pod in group["template"]["spec"]["containers"]}) == 1
    known = {option.removeprefix("--") for parameter in start.params for option in parameter.opts}
    assert {key for group in groups for key in group["rayStartParams"]} <= known
    pinned = re.search(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    assert spec["rayVersion"] == pinned[1]


@pytest.mark.parametrize("file", KUBERAY, ids=lambda file: file.stem)
def test_a_manifest_takes_every_password_from_a_secret_and_what_it_mounts_is_there(file):
    for document in documents(file.read_text(encoding="utf8")):
        check_manifest(document)


@pytest.mark.parametrize("name", ["rayjob", "raycluster"])
def test_rays_pods_have_one_image_and_options_of_ray_start(name):
    (document,) = documents((ROOT / "deploy" / "kuberay" / f"{name}.yaml").read_text(encoding="utf8"))
    check_pods(document)


@pytest.fixture
def study_file(make_study, tmp_path) -> Path:
    """The tiny study as it is for the cluster, with a password in the address of its database."""
    return make_study(
        tmp_path,
        study="Tiny_Study.v2",
        storage__path="/volume/studies",
        storage__database="postgresql://me:geheim@postgres/tutti",
        resources__gpus_per_worker=0.5,
        resources__cpus_per_worker=3,
        resources__concurrent_trials=5,
    ).file


def test_a_study_becomes_a_rayjob_and_a_config_map_without_its_password(study_file):
    job = Study(study_file, shared=True).ray_job(image="registry/tutti:1", trials="+2", resume=True)
    files, document = documents(job.manifest)
    check_manifest(document)
    check_pods(document)
    assert "geheim" not in job.manifest
    assert len(job.name) <= 47  # KubeRay's limit
    assert re.fullmatch(r"tutti-tiny-study-v2-[0-9a-f]{6}", job.name)
    assert {each["metadata"]["name"] for each in (files, document)} == {job.name}
    spec = document["spec"]
    assert shlex.split(spec["entrypoint"])[4:] == ["/etc/tutti", "tune", "study.json", "--resume", "--trials", "+2"]
    assert not re.search(r"[;&|<>$]", spec["entrypoint"])  # the operator puts it into a line for a shell
    pods = [group["template"]["spec"] for group in everything(spec) if "rayStartParams" in group]
    for pod in pods:
        assert {"name": "study", "configMap": {"name": job.name}} in pod["volumes"]
        assert {"name": "studies", "mountPath": "/volume/studies"} in pod["containers"][0]["volumeMounts"]
        assert {"secretRef": {"name": "tutti-databases", "optional": True}} in pod["containers"][0]["envFrom"]
    (workers,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["maxReplicas"] == 3  # two trials share a GPU, and so a pod
    limits = workers["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert (limits["cpu"], limits["nvidia.com/gpu"]) == ("6", "1")


def test_a_study_on_object_storage_needs_no_volume_that_every_pod_mounts(study_file):
    stored = Study(study_file, shared=True, overrides={"storage.path": "s3://bucket/studies"})
    _, document = documents(stored.ray_job().manifest)
    check_manifest(document)
    assert "persistentVolumeClaim" not in str(document)


def test_what_a_pod_needs_that_is_not_said_or_too_large_is_told(study_file, tmp_path, monkeypatch):
    without = Study(study_file, shared=True, overrides={"resources.concurrent_trials": None})
    with pytest.raises(StudyError, match=r"resources\.concurrent_trials must be set for a cluster that begins without"):
        without.ray_job()
    monkeypatch.setattr(kubernetes, "CONFIG_MAP_BYTES", 5000)
    with pytest.raises(StudyError, match=r"must be at most 5,000 bytes, compressed, to travel in a ConfigMap; got"):
        Study(study_file, shared=True).ray_job()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="kubectl create must be installed here for --apply; got no kubectl"):
        kubernetes.RayJob("tutti", "").apply()


def test_kubectl_is_given_the_manifest_and_what_it_refuses_is_told(tmp_path, monkeypatch):
    script = (
        '#!/bin/sh\ncat > "$HOME/given"; echo "$*"; [ -e "$HOME/broken" ] && echo "no server" >&2 && exit 1\nexit 0\n'
    )
    (tmp_path / "kubectl").write_text(script)
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kubernetes.RayJob("tutti", "a: 1\n").apply() == "create -f -\n"
    assert (tmp_path / "given").read_text() == "a: 1\n"
    (tmp_path / "broken").touch()
    with pytest.raises(ClusterError, match="must create the RayJob; got no server; check `kubectl config"):
        kubernetes.RayJob("tutti", "a: 1\n").apply()


@pytest.mark.slow
@pytest.mark.ray
def test_the_entrypoint_of_a_rayjob_runs_the_study_with_what_the_config_map_holds(make_study, tutti_command, tmp_path):
    study = make_study(tmp_path, search__trials=1)
    files, document = documents(Study(study.file, shared=True).ray_job().manifest)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    for name, text in files["data"].items():
        (mounted / name).write_text(text, encoding="utf8")
    for name, text in files["binaryData"].items():
        (mounted / name).write_bytes(base64.b64decode(text))
    command = shlex.split(document["spec"]["entrypoint"].replace("/etc/tutti", str(mounted)))
    environment = YAML(typ="safe").load(document["spec"]["runtimeEnvYAML"])["env_vars"]
    running = tutti_command(*command[1:], command=[sys.executable], env=environment)
    assert running.wait() == 0, running.output
    assert [record.state for record in study.records()] == ["finished"]
    assert Path(parse_study(study.folder.study_file).backbone).is_relative_to(study.folder.shipped)


def test_mlflow_in_the_cluster_has_options_that_it_knows():
    from mlflow.cli import server

    text = (ROOT / "deploy" / "kuberay" / "databases.yaml").read_text(encoding="utf8")
    deployments = [each for each in documents(text) if each["kind"] == "Deployment"]
    (container,) = deployments[0]["spec"]["template"]["spec"]["containers"]
    program, command, *options = container["args"]
    assert (program, command) == ("mlflow", "server")
    known = {option for parameter in server.params for option in parameter.opts}
    assert {option.partition("=")[0] for option in options} <= known


STAND_INS = {
    "srun": '#!/bin/bash\nshift\nexport SLURM_PROCID=0\nset -m\n"$@" &\necho $! > "$STEP"\nwait $!\n',
    "scontrol": '#!/bin/bash\n[ "$1" = show ] && echo 127.0.0.1 || echo "$*" >> "$REQUEUED"\n',
}
"""Slurm's commands for one node. The step is a process group, to which the test sends what Slurm would."""


@pytest.mark.slow
@pytest.mark.ray
def test_a_slurm_job_cut_off_at_its_time_limit_is_queued_again_and_goes_on(tutti_command, make_study, tmp_path):
    for name, script in STAND_INS.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    study = make_study(tmp_path, training__num_train_epochs=12, search__trials=3)
    job = str(os.getpid())
    env = {
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TUTTI_STUDIES": str(tmp_path / "studies"),
        "SLURM_JOB_ID": job,
        "SLURM_JOB_NODELIST": "n",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_CPUS_PER_TASK": "2",
        "STEP": str(tmp_path / "step"),
        "REQUEUED": str(tmp_path / "requeued"),
    }
    script = str(ROOT / "deploy" / "slurm" / "tutti.sbatch")
    cut = tutti_command(script, study.file, command=["bash"], env=env)
    cut.wait_for(lambda: any(study.folder.trial("t0000").resume.glob("*")), seconds=200)
    os.killpg(int((tmp_path / "step").read_text()), signal.SIGTERM)
    assert cut.wait(120) == 0, cut.output
    assert (tmp_path / "requeued").read_text() == f"requeue {job}\n", cut.output
    again = tutti_command(script, study.file, command=["bash"], env=env | {"SLURM_RESTART_COUNT": "1"})
    assert again.wait(300) == 0, again.output
    assert [record.state for record in study.records()] == ["finished"] * 3
    assert not cut.left_behind()
    assert not again.left_behind()
