"""A study file is YAML 1.2, and one that cannot be read as such is told by line and column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tutti.config.load import load_study

Changed = Callable[..., Path]
Faults = Callable[..., list[str]]


def test_yaml_is_of_version_1_2(changed: Changed) -> None:
    config = load_study(changed("study: little", "study: no"), overrides=["training.learning_rate=2e-5"])
    assert config.study == "no"
    assert config.training["learning_rate"] == 2e-5


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "study.yaml must hold the keys of a study file; got an empty file; write one key and its value on each"),
        ("- a\n", "study.yaml must hold the keys of a study file; got a list; "),
        ("study: a\nstudy: b\n", 'study.yaml, line 2, column 1, must give each key once; got a duplicate key "study"'),
        ("study: [1,\n", "study.yaml, line 2, column 1, must be YAML; got what the reader calls "),
        ("a: 1\n\tb: 2\n", "study.yaml, line 2, column 1, must be YAML; "),
        ("a: !!python/object:os.system x\n", "study.yaml, line 1, column 4, must be YAML; "),
        ("a: 1\n---\nb: 2\n", "study.yaml, line 2, column 1, must be YAML; "),
        ("? {c: d}\n: e\n", "study.yaml, line 1, column 3, must be YAML; "),
        ("a: \x01\n", "study.yaml must be YAML; "),
        (b"study: caf\xe9\n", "study.yaml must be UTF-8 text; got a byte that is not, at offset 10; save it as UTF-8."),
        (b"\x80\x00\x01", "study.yaml must be UTF-8 text; "),
    ],
)
def test_a_file_that_is_no_yaml_mapping_is_told_by_line_and_column(faults, study, text, sentence):
    study.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert f"{study.parent}/{sentence}" in faults(study)[0]


def test_a_study_file_that_nobody_may_read_is_not_called_misspelt(faults, study, monkeypatch):
    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert faults(study) == [f"{study} must be a readable study file; got permission denied; check its permissions."]
