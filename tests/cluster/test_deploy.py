"""What runs Tutti elsewhere: the image, the manifests for Kubernetes, and the script for Slurm."""

from __future__ import annotations

import os
import re
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

ROOT = Path(__file__).parents[2]
KUBERAY = sorted((ROOT / "deploy" / "kuberay").glob("*.yaml"))


def documents(file: Path) -> list[dict[str, Any]]:
    return list(YAML(typ="safe", pure=True).load_all(file.read_text(encoding="utf8")))


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


@pytest.mark.parametrize("file", KUBERAY, ids=lambda file: file.stem)
def test_a_manifest_takes_every_password_from_a_secret_and_what_it_mounts_is_there(file):
    for document in documents(file):
        for each in everything(document):
            if re.search("PASS|TOKEN|SECRET", str(each.get("name", ""))):
                assert "valueFrom" in each
            if "volumeMounts" not in each:
                continue
            named = {mount["name"] for mount in each["volumeMounts"]}
            pods = [pod for pod in everything(document) if each in pod.get("containers", [])]
            volumes = {volume["name"] for pod in pods for volume in pod.get("volumes", [])}
            claims = {
                claim["metadata"]["name"]
                for pod in everything(document)
                for claim in pod.get("volumeClaimTemplates", [])
            }
            assert named <= volumes | claims


@pytest.mark.parametrize("name", ["rayjob", "raycluster"])
def test_rays_pods_have_one_image_and_options_of_ray_start(name):
    from ray.scripts.scripts import start

    (document,) = documents(ROOT / "deploy" / "kuberay" / f"{name}.yaml")
    spec = document["spec"].get("rayClusterSpec", document["spec"])
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    assert len({pod["image"] for group in groups for pod in group["template"]["spec"]["containers"]}) == 1
    known = {option.removeprefix("--") for parameter in start.params for option in parameter.opts}
    assert {key for group in groups for key in group["rayStartParams"]} <= known
    pinned = re.search(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    assert spec["rayVersion"] == pinned[1]


def test_mlflow_in_the_cluster_has_options_that_it_knows():
    from mlflow.cli import server

    deployments = [
        each for each in documents(ROOT / "deploy" / "kuberay" / "databases.yaml") if each["kind"] == "Deployment"
    ]
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
