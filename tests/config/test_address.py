"""Addresses of databases and MLflow stores are checked, and are shown, stored and compared without their password."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tutti.config.address import answer_of, same_database, with_password, without_password
from tutti.config.load import load_study
from tutti.errors import Fault, masked

Changed = Callable[..., Path]
Faults = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("address", "plain", "shown"),
    [
        ("postgresql://me:pw@db/x", "postgresql://me@db/x", "postgresql://me:***@db/x"),
        ("postgresql://me:p?w@db/x", "postgresql://me@db/x", "postgresql://me:***@db/x"),
        ("postgresql://me:p@w/d@db:5433/x", "postgresql://me@db:5433/x", "postgresql://me:***@db:5433/x"),
        (
            "postgresql:///x?user=m&password=pw&a=1",
            "postgresql:///x?user=m&a=1",
            "postgresql:///x?user=m&password=***&a=1",
        ),
        ("postgresql://me@db/x?password=pw", "postgresql://me@db/x", "postgresql://me@db/x?password=***"),
        (
            "postgresql://me@db/x?sslmode=verify-full&sslpassword=pw",
            "postgresql://me@db/x?sslmode=verify-full",
            "postgresql://me@db/x?sslmode=verify-full&sslpassword=***",
        ),
        ("https://me:pw@mlflow:5000/a", "https://me@mlflow:5000/a", "https://me:***@mlflow:5000/a"),
        ("http://mlflow:5000/a", "http://mlflow:5000/a", "http://mlflow:5000/a"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db", "sqlite:////a/b.db"),
        ("databricks", "databricks", "databricks"),
    ],
)
def test_a_password_is_taken_out_of_an_address_and_hidden_in_a_message(address, plain, shown):
    assert without_password(address) == plain
    assert masked(address) == shown
    assert str(Fault("x", "be up", f"{address} away", "start it")) == f"x must be up; got {shown} away; start it."


def test_an_at_sign_in_the_options_of_an_address_leaves_its_host():
    assert without_password("postgresql://me:pw@db/x?a=b@c") == "postgresql://me@db/x?a=b@c"


def test_an_address_gets_the_password_of_the_same_address_alone():
    stored, known = "postgresql://me@db/x", "postgresql://me:pw@db/x"
    assert with_password(stored, known) == known
    assert with_password("postgresql://me@db/y", known) == "postgresql://me@db/y"
    assert with_password(stored, None) == stored


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("postgresql+psycopg2://you:pw@DB:5432/x?a=1", True),
        ("postgresql://me@db/y", False),
        ("postgresql://me@db:5433/x", False),
        ("postgresql://me@other/x", False),
        ("http://db:5432/x", False),
        ("", False),
    ],
)
def test_two_addresses_of_one_database_are_known_as_such(other, same):
    assert same_database("postgresql://me@db/x", other) is same


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "postgresql+psycopg2"])
def test_optuna_s_database_may_be_a_server_s(changed: Changed, scheme: str) -> None:
    url = f"{scheme}://me:secret@db:5433/optuna"
    assert load_study(changed(add=f"storage: {{database: '{url}'}}\n")).storage.database == url


@pytest.mark.parametrize(
    ("url", "got"),
    [
        ("postgres://me:secret@db/optuna", "got the scheme 'postgres'"),
        ("sqlite:///optuna.db", "got the scheme 'sqlite'"),
        ("me:secret@db/optuna", "got no scheme"),
    ],
)
def test_a_database_that_no_server_keeps_is_told_without_its_password(faults, changed, url, got):
    (message,) = faults(changed(add=f"storage: {{database: '{url}'}}\n"))
    assert "storage.database must be the address of a PostgreSQL server's database" in message
    assert got in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("uri", "got"),
    [
        ("htpp://me:secret@mlflow:5000", "got the scheme 'htpp'; did you mean 'http'? Correct the name."),
        ("mlflow.example:5000", "got the scheme 'mlflow.example'; write it like http://HOST:5000 or "),
        ("http+unix://x", "got the scheme 'http+unix'; "),
        ("runs", "got no scheme; write it like http://HOST:5000 or sqlite:///mlflow.db."),
    ],
)
def test_an_address_that_is_no_mlflow_store_is_told_without_its_password(faults, changed, uri, got):
    path = changed(add=f"tracking: {{uri: '{uri}'}}\n")
    (message,) = faults(path)
    assert message.startswith(
        f"{path}: tracking.uri must be the address of an MLflow store, with one of the schemes sqlite"
    )
    assert got in message
    assert "secret" not in message


class _Bad(BaseHTTPRequestHandler):
    """Answers as a proxy does that cannot reach the server."""

    def do_GET(self) -> None:
        self.send_response(502 if self.path.startswith("http") else 200)  # a proxy is asked for the whole address
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that also is the environment's proxy, one that answers 502 for every other server."""
    server = HTTPServer(("127.0.0.1", 0), _Bad)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("no_proxy", "")  # restored afterwards
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", f"http://me:secret@127.0.0.1:{server.server_port}")
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_server_of_this_machine_is_asked_past_the_proxy(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "example.org")
    for _ in range(2):
        answer = answer_of(f"http://{proxy}/health", seconds=5)
        assert answer is not None
        assert answer.status_code == 200
    assert os.environ["no_proxy"] == "example.org,127.0.0.1"  # for the requests that libraries make


def test_a_proxy_that_answers_for_a_server_is_named_with_the_way_past_it(proxy: str) -> None:
    said = f"502 Bad Gateway, by way of the proxy http://me@{proxy}, which NO_PROXY=mlflow.invalid would avoid"
    with pytest.raises(ConnectionError, match=re.escape(said)):
        answer_of("http://mlflow.invalid:5000/health", seconds=5)
