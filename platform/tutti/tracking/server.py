"""Starts MLflow's server, with its web pages, on a tracking store."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import requests

from tutti.errors import Fault, TrackingError, UserError

_HOST = "127.0.0.1"
_PATIENCE = 180.0  # seconds; the first start on a new SQLite file creates all its tables
# The job runner costs processes and memory, and only serves features for language models. Telemetry is off.
_ENVIRONMENT = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
OPTIONS = {
    "MLFLOW_ARTIFACTS_DESTINATION", "MLFLOW_ARTIFACTS_ONLY", "MLFLOW_BACKEND_STORE_URI", "MLFLOW_DEFAULT_ARTIFACT_ROOT",
    "MLFLOW_EXPOSE_PROMETHEUS", "MLFLOW_GUNICORN_OPTS", "MLFLOW_HOST", "MLFLOW_PORT",
    "MLFLOW_READ_REPLICA_BACKEND_STORE_URI", "MLFLOW_REGISTRY_STORE_URI", "MLFLOW_SERVER_ALLOWED_HOSTS",
    "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS", "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE", "MLFLOW_SERVER_X_FRAME_OPTIONS",
    "MLFLOW_SERVE_ARTIFACTS", "MLFLOW_STATIC_PREFIX", "MLFLOW_TRACE_ARCHIVAL_CONFIG", "MLFLOW_UVICORN_OPTS",
    "MLFLOW_WORKERS", "MLFLOW_WORKSPACE_STORE_URI",
}  # fmt: skip
"""Variables that give ``mlflow server`` its options. Those of another server would hide this one or its store."""


def start_ui(uri: str, artifacts: str | Path, *, port: int = 0) -> tuple[subprocess.Popen[bytes], str]:
    """Starts ``mlflow server`` on the store at ``uri``, and waits until it answers.

    Args:
        uri: a SQL store, such as ``sqlite:///FILE``. A store that is a server already has these pages.
        artifacts: where experiments created through this server store their files.
        port: 0 for any free port.

    Returns:
        The process, to be stopped with ``stop_ui``, and the server's URL without a trailing slash.

    Raises:
        UserError: where the port is in use.
        TrackingError: where the server does not answer; it is stopped then.
    """
    port = _free_port(port)
    url = f"http://{_HOST}:{port}"
    place = ["--default-artifact-root", str(artifacts)]
    # -P: nothing is imported from the current folder
    command = [
        sys.executable,
        "-P",
        "-m",
        "mlflow",
        "server",
        *place,
        "--host",
        _HOST,
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    environment = {name: value for name, value in os.environ.items() if name not in OPTIONS}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Passed in the environment, since other users could read its password from the command line.
            env=environment | _ENVIRONMENT | {"MLFLOW_BACKEND_STORE_URI": uri},
            start_new_session=True,  # its own process group, so that stop_ui also stops its workers
        )
        try:
            _wait_until_up(process, url)
        except BaseException as error:
            stop_ui(process)
            if not isinstance(error, TimeoutError):
                raise
            output.seek(0)
            last_line = output.read().decode(errors="replace").strip().split("\n")[-1]
            got, remedy = last_line or "nothing", "check whether the store is right"
            raise TrackingError(Fault(f"MLflow's server at {url}", "answer", got, remedy)) from error
    return process, url


def stop_ui(process: subprocess.Popen[bytes]) -> None:
    """Stops a server started by ``start_ui``, with all its workers. Does nothing if it has ended already."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _wait_until_up(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    with requests.Session() as session:
        session.trust_env = False  # a proxy from the environment cannot reach this machine
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(requests.exceptions.RequestException):
                if session.get(f"{url}/health", timeout=2).ok:
                    return
            time.sleep(0.1)
    raise TimeoutError


def _free_port(port: int) -> int:
    """The port, or a free one where it is 0. It is checked first, since on a used port another server would answer."""
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # like MLflow's own socket; the port may have just been released
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            got, remedy = error.strerror or str(error), "choose another one, or leave it out to get a free one"
            raise UserError(Fault(f"port {port} of {_HOST}", "be free", got, remedy)) from error
        return int(probe.getsockname()[1])
