"""Every command is one call of the Python API."""

from __future__ import annotations

import inspect

import typer

from tutti.cli.app import COMMANDS, app
from tutti.workflows.study import Study


def commands(group, prefix: str = "") -> dict[str, object]:
    found = {}
    for name, command in group.commands.items():
        below = commands(command, f"{prefix}{name} ") if hasattr(command, "commands") else {prefix + name: command}
        found |= below
    return found


def test_every_command_has_its_function():
    assert commands(typer.main.get_command(app)).keys() == COMMANDS.keys()
    for name, (command, function) in COMMANDS.items():
        called = function.__name__ if function is not Study.round else "round"
        own = [each for each in vars(Study) if getattr(Study, each) is function]
        assert any(f"{each}(" in inspect.getsource(command) for each in (called, *own)), name
        assert function.__doc__, f"the function of {name} is documented"
