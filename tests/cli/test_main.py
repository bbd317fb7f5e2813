"""The entry point of the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tutti.cli import app, main
from tutti.cluster.connect import TORCH_ENVIRONMENT
from tutti.errors import UserError
from tutti.files import whole_folder


class Interrupted:
    """Ctrl-C comes while the command line is being imported."""

    def find_spec(self, name, *_):
        if name == "tutti.cli.app":
            raise KeyboardInterrupt


def test_ctrl_c_while_the_command_line_is_imported_ends_it_without_a_traceback(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "tutti.cli.app", raising=False)
    monkeypatch.delattr("tutti.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 130
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("takes_ctrl_c", "takes_hangup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_sighup_end_a_command_like_ctrl_c_and_leave_no_temporary_folder(monkeypatch, tmp_path, number):
    def command():
        with whole_folder(tmp_path / "out"):
            signal.raise_signal(number)

    monkeypatch.setattr(app, "app", command)
    with pytest.raises(KeyboardInterrupt):
        app.run()
    assert not list(tmp_path.iterdir())


def test_pretraining_sets_what_torch_reads_when_it_is_loaded_unless_it_is_set(monkeypatch, tmp_path):
    for name in TORCH_ENVIRONMENT:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    with pytest.raises(UserError, match=r"no_study\.yaml"):
        app.app(
            ["backbone", "pretrain", str(tmp_path / "no_study.yaml"), "--out", str(tmp_path / "out")],
            standalone_mode=False,
        )
    assert {name: os.environ[name] for name in TORCH_ENVIRONMENT} == {**TORCH_ENVIRONMENT, "GOMP_SPINCOUNT": "7"}


def test_a_sign_that_the_terminal_s_encoding_lacks_does_not_end_a_command(tmp_path):
    program = (
        "from tutti.cli import app, main; from tutti.workflows.console import console; "
        "app.run = lambda: console.print('best –, 没有'); main.run()"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert told.stdout == b"best ?, ??\n"


def test_a_disk_that_is_full_behind_the_output_is_told_in_one_sentence():
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([sys.executable, "-m", "tutti", "--help"], stdout=full, stderr=subprocess.PIPE)
    assert ended.returncode == 1
    assert ended.stderr.decode() == (
        "error: the command's output must be written whole; got No space left on device; free some space.\n"
    )


@pytest.mark.parametrize("command", [[], ["predict"], ["backbone"], ["leaderboard", "add"]])
def test_h_shows_the_help_of_every_command(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tutti", *command, "-h"])
    with pytest.raises(SystemExit) as ended:
        app.app()
    assert ended.value.code == 0
    assert "Usage: " in capsys.readouterr().out
