"""The entry point of the command line."""

from __future__ import annotations

import sys

import pytest

from tutti.cli import main


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
