"""MLflow's own server and pages, started on a tracking store."""

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

_PATIENCE = 180.0  # seconds; the first start on a new SQLite file makes all its tables
# Its job runner serves language-model features alone; it takes processes and memory. Nothing is sent to anybody.
_ENVIRONMENT = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


def start_ui(
    uri: str, artifacts: str | Path, *, host: str = "127.0.0.1", port: int = 0
) -> tuple[subprocess.Popen[bytes], str]:
    """Starts ``mlflow server`` on the store at ``uri``, and waits until it answers.

    Args:
        uri: a SQL store, such as ``sqlite:///FILE``. A store that is a server has its pages already.
        artifacts: where experiments that are made through this server keep their files.
        port: 0 takes a free one.

    Returns:
        The process, to be ended with ``stop_ui``, and the address without a slash at its end.

    Raises:
        UserError: where the port is in use.
        TrackingError: where it does not answer; nothing is left running.
    """
    port = _free_port(host, port)
    url = f"http://{host}:{port}"
    place = ["--default-artifact-root", str(artifacts)]
    command = [sys.executable, "-m", "mlflow", "server", *place, "--host", host, "--port", str(port), "--workers", "1"]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # The store is not named on the command line, where everybody on the machine would see its password.
            env=os.environ | _ENVIRONMENT | {"MLFLOW_BACKEND_STORE_URI": uri},
            start_new_session=True,  # a group of its own, so that stop_ui ends its workers too
        )
        try:
            _wait_until_up(process, url)
        except BaseException as error:
            stop_ui(process)
            if not isinstance(error, TimeoutError):
                raise
            output.seek(0)
            said = output.read().decode(errors="replace").strip().split("\n")[-1]
            remedy = "see whether the store is right"
            raise TrackingError(Fault(f"MLflow's server at {url}", "answer", said or "nothing", remedy)) from error
    return process, url


def stop_ui(process: subprocess.Popen[bytes]) -> None:
    """Ends a server that ``start_ui`` started, with all its workers. Nothing happens where it has ended."""
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
        session.trust_env = False  # a proxy that the environment names has no way to this machine
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(requests.exceptions.RequestException):
                if session.get(f"{url}/health", timeout=2).ok:
                    return
            time.sleep(0.1)
    raise TimeoutError


def _free_port(host: str, port: int) -> int:
    """The port, or a free one where it is 0. Asked first: what answers at a port in use is another server."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as MLflow's own: it may have just been let go
        try:
            probe.bind((host, port))
        except OSError as error:
            got, remedy = error.strerror or str(error), "choose another one, or leave it out to get a free one"
            raise UserError(Fault(f"port {port} of {host}", "be free", got, remedy)) from error
        return int(probe.getsockname()[1])
