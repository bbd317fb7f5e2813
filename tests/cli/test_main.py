"""The entry point of the command line."""

from __future__ import annotations

import os
import sys

import pytest

from tutti.cli import backbone, main
from tutti.cluster.connect import TORCH_ENVIRONMENT
from tutti.errors import UserError


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


def test_pretraining_sets_what_torch_reads_when_it_is_loaded_unless_it_is_set(monkeypatch, tmp_path):
    for name in TORCH_ENVIRONMENT:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    with pytest.raises(UserError, match=r"no_study\.yaml"):
        backbone.pretrain(tmp_path / "no_study.yaml", out=tmp_path / "out", learning_rate=1e-3)
    assert {name: os.environ[name] for name in TORCH_ENVIRONMENT} == {**TORCH_ENVIRONMENT, "GOMP_SPINCOUNT": "7"}
