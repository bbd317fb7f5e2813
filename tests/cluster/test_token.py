"""Whose token Ray is given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tutti.cluster import token

NAMES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
START_TWICE = """
import ray
from tutti.cluster.connect import connected
from tutti.config.study import Resources

for _ in range(2):
    with connected(Resources(concurrent_trials=1)):
        print(ray.get(ray.remote(lambda: "a worker's answer").remote()))
"""


@pytest.fixture
def home(monkeypatch, tmp_path) -> Path:
    """A home folder without a token, and an environment that is as it was afterwards."""
    monkeypatch.setattr(os, "environ", {name: value for name, value in os.environ.items() if name not in NAMES})
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return tmp_path


def _keep_token(home: Path) -> None:
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("t")


def test_a_token_of_ones_own_turns_token_mode_on(home, monkeypatch):
    token.use_own_token()
    assert "RAY_AUTH_MODE" not in os.environ
    _keep_token(home)
    monkeypatch.setitem(os.environ, "RAY_AUTH_MODE", "disabled")
    token.use_own_token()
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    monkeypatch.delitem(os.environ, "RAY_AUTH_MODE")
    token.use_own_token()
    assert os.environ["RAY_AUTH_MODE"] == "token"


def test_a_private_ray_is_given_one_token_for_the_whole_process(home):
    token.provide_token()
    given = os.environ["RAY_AUTH_TOKEN"]
    assert len(given) == 64
    del os.environ["RAY_AUTH_TOKEN"]
    token.provide_token()
    assert os.environ["RAY_AUTH_TOKEN"] == given
    assert not list(home.iterdir())


@pytest.mark.parametrize(
    "variables",
    [{"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN_PATH": "/run/token"}, {"RAY_AUTH_TOKEN": "mine"}, {}],
    ids=lambda variables: "".join(variables) or "file",
)
def test_what_the_user_has_said_about_tokens_stays(home, monkeypatch, variables):
    if not variables:
        _keep_token(home)
    os.environ.update(variables)
    token.provide_token()
    assert {name: os.environ[name] for name in NAMES if name in os.environ} == variables


def test_a_user_without_a_home_folder_is_given_a_token(home, monkeypatch):
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    token.provide_token()
    assert "RAY_AUTH_TOKEN" in os.environ


@pytest.mark.ray
@pytest.mark.slow
def test_a_private_ray_starts_where_the_home_folder_cannot_be_written():
    """A file as home folder: root, as whom tests may run, could make a missing one."""
    env = {name: value for name, value in os.environ.items() if name not in (*NAMES, "RAY_ADDRESS")}
    command = [sys.executable, "-c", START_TWICE]
    run = subprocess.run(command, env={**env, "HOME": os.devnull}, capture_output=True, text=True, check=False)
    assert run.stdout == "a worker's answer\n" * 2, run.stderr
