"""Starts MLflow's server, with its web pages, on a tracking store: ``tutti.tracking.web`` in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import webbrowser
from contextlib import suppress
from pathlib import Path

import requests

from tutti.errors import Fault, TrackingError, UserError
from tutti.tracking.links import START_MARK, runs_page, start_page

HOST = "127.0.0.1"
STORE, ARTIFACTS, PORT = "TUTTI_UI_STORE", "TUTTI_UI_ARTIFACTS", "TUTTI_UI_PORT"
"""Variables that tell ``tutti.tracking.web`` what to serve, and where."""
_SHORT = 5.0  # seconds, for what is a convenience alone
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
    """Starts MLflow's server on the store at ``uri``, and waits until it answers.

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
    url = f"http://{HOST}:{port}"
    command = [sys.executable, "-P", "-m", "tutti.tracking.web"]  # -P: nothing is imported from the current folder
    environment = {name: value for name, value in os.environ.items() if name not in OPTIONS}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # In the environment, since other users could read the store's password from the command line.
            env=environment | _ENVIRONMENT | {STORE: uri, ARTIFACTS: str(artifacts), PORT: str(port)},
            start_new_session=True,  # its own process group: Ctrl-C in the terminal is ours to handle
        )
        try:
            _wait_until_up(process, url)
        except BaseException as error:
            ended = process.poll() is not None
            stop_ui(process)
            if not isinstance(error, TimeoutError):
                raise
            output.seek(0)
            last_line = output.read().decode(errors="replace").strip().split("\n")[-1] or "nothing"
            got = last_line if ended else f"nothing in {_PATIENCE:.0f} s"  # what it has printed are warnings
            remedy = "check whether the store is right" if ended else "try again when the machine has less to do"
            raise TrackingError(Fault(f"MLflow's server at {url}", "answer", got, remedy)) from error
    return process, url


def trials_page(base_url: str, experiment_id: str) -> str:
    """URL of a study's trials on a server that others started: by way of our page where it is an app of that server."""
    page = start_page(base_url, experiment_id)
    with suppress(requests.exceptions.RequestException):
        answer = requests.get(page, timeout=_SHORT)
        if answer.ok and START_MARK in answer.text:
            return page
    return runs_page(base_url, experiment_id)


def open_browser(url: str, *, wanted: bool) -> None:
    """Opens the address in the desktop's browser, if there is one: a text browser would take the terminal."""
    desktop = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if wanted and desktop and sys.stdout.isatty():
        with suppress(webbrowser.Error):
            webbrowser.open(url)


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
            probe.bind((HOST, port))
        except OSError as error:
            got, remedy = error.strerror or str(error), "choose another one, or leave it out to get a free one"
            raise UserError(Fault(f"port {port} of {HOST}", "be free", got, remedy)) from error
        return int(probe.getsockname()[1])
