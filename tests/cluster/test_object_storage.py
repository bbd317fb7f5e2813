"""A study on object storage whose trials run on a node that shares no folder with the driver's."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow]
RAY = str(Path(sys.executable).with_name("ray"))


def _may_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("unshare") is not None and os.system("unshare -m true 2> /dev/null") == 0


@pytest.mark.skipif(not _may_mount(), reason="needs a mount namespace, and so root")
def test_trials_run_on_a_node_that_shares_no_folder_with_the_driver_s(
    make_study, tutti, tutti_command, free_port, postgres, s3, tmp_path
):
    database, store = postgres.new_database(), postgres.new_database()
    study = make_study(
        tmp_path,
        search={"trials": 2, "scheduler": "none"},
        storage={"path": s3.address, "database": database},
        tracking={"uri": store},
    )
    cache = tmp_path / "cache"
    cache.mkdir()
    temporary = tempfile.mkdtemp(prefix="ray-")  # the sockets below it must have short paths
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t" * 40, "TUTTI_CACHE": str(cache)}
    port = free_port()
    names = ("dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port", "metrics-export-port")
    ports = [f"--{name}={free_port()}" for name in names]
    options = ["--disable-usage-stats", "--block", f"--temp-dir={temporary}"]
    head = tutti_command("start", "--head", f"--port={port}", "--num-cpus=0", *ports, *options, env=env, command=[RAY])
    address = f"127.0.0.1:{port}"
    head.wait_for(lambda: "Ray runtime started" in head.output, what="a head")
    join = f"mount -t tmpfs tmpfs {cache} && exec {RAY} start --address={address} --num-cpus=2 --block"
    node = tutti_command("-m", "bash", "-c", join, env=env, command=["unshare"])
    node.wait_for(lambda: "Ray runtime started" in node.output, what="a node")
    try:
        output = tutti("tune", study.file, env={**env, "RAY_ADDRESS": address, "TUTTI_DATABASE": database})
        assert "2 of 2 trials done" in output
        own = cache / s3.address.replace("://", "/") / "tiny"
        assert not (own / "trials").exists()  # they were trained elsewhere
        assert sorted(path.name for path in (own / "bank").iterdir()) == ["t0000", "t0001"]
        listed = tutti("trials", f"{s3.address}/tiny", "--json", env={"TUTTI_DATABASE": database, **env})
        assert [trial["state"] for trial in json.loads(listed)] == ["finished"] * 2
        rows = ["--task", "mood", "--input", tmp_path / "new.tsv", "--out", tmp_path / "new.csv"]
        (tmp_path / "new.tsv").write_text("id\ttext\na\tw1 w2\nb\tw3\n")
        tutti("predict", f"{s3.address}/tiny", *rows, env={**env, "RAY_ADDRESS": address, "TUTTI_DATABASE": database})
        assert len((tmp_path / "new.csv").read_text().splitlines()) == 3
    finally:
        node.kill()
        head.kill()
        shutil.rmtree(temporary, ignore_errors=True)
