"""What takes long says so."""

from __future__ import annotations

import time

from tutti.workflows import waiting


def test_what_takes_long_prints_one_line_and_what_is_quick_none(monkeypatch, capsys):
    with waiting.waiting("Voting"):
        pass
    monkeypatch.setattr(waiting, "_PATIENCE", 0.01)
    with waiting.waiting("Counting votes"):
        time.sleep(0.3)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "Counting votes ...\n")
