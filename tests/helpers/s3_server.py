"""An S3-compatible server on loopback, whose requests may fail."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import requests


@dataclass
class S3:
    """A server with one bucket.

    Attributes:
        env: the variables by which clients find it, with credentials.
        refuses: asked for each request, by method and path; one that it is true of is answered with 503.
        requests: how many were answered otherwise.
    """

    address: str
    env: dict[str, str]
    refuses: Callable[[str, str], bool] = lambda method, path: False
    requests: int = 0

    def fail(self, share: float, *, seed: int = 0) -> None:
        """Lets this share of all requests fail, at random."""
        draw = random.Random(seed)
        self.refuses = lambda method, path: draw.random() < share


@contextmanager
def running_s3() -> Iterator[S3]:
    """Starts the server in a thread of this process."""
    pytest.importorskip("moto")
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    s3, moto = S3("s3://bucket/studies", {}), DomainDispatcherApplication(create_backend_app)

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        if s3.refuses(environ["REQUEST_METHOD"], environ["PATH_INFO"]):
            start_response("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        s3.requests += 1
        return moto(environ, start_response)

    server = make_server("127.0.0.1", 0, application, threaded=True)
    endpoint = f"http://127.0.0.1:{server.server_port}"
    s3.env = {
        "AWS_ACCESS_KEY_ID": "tutti",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-bucket",
        "AWS_ENDPOINT_URL": endpoint,
    }
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        requests.put(f"{endpoint}/bucket", timeout=20).raise_for_status()
        yield s3
    finally:
        server.shutdown()
        thread.join()
