"""The shape of the house: a room imports only from lower floors, and each heavy library stays in its rooms."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "platform" / "tutti"
FLOORS = {
    "errors": 0, "records": 0, "files": 0, "objects": 0, "stored": 0, "copies": 0, "mirror": 0,
    "headless": 0, "launchers": 0,
    "config": 1,
    "tasks": 2,
    "data": 3, "modeling": 3, "tracking": 3, "bank": 3, "search": 3, "ensembling": 3,
    "training": 4,
    "orchestration": 5, "bundle": 5,
    "outputs": 6, "cluster": 6, "demo": 6,
    "workflows": 7,
    "cli": 8, "__main__": 9,
}  # fmt: skip
HEAVY = {
    "torch": {"data", "modeling", "training", "bundle", "orchestration"},
    "transformers": {"data", "modeling", "training", "bundle"},
    "datasets": {"data", "tasks"},
    "ray": {"orchestration", "cluster"},
    "optuna": {"search"},
    "mlflow": {"tracking"},
    "onnxruntime": {"bundle"},
}
INNER_FLOORS = {
    "training": ("machine", "keys", "tricks", "loop", "pretraining"),
    "orchestration": ("upkeep", "before", "broker", "worker", "after", "driver"),
    "outputs": ("submission", "election", "pseudo", "report"),
}
"""The sub-rooms of a room, lowest first. Files beside them serve all of them."""

FILES = sorted(PACKAGE.rglob("*.py"))


def _imports(file: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


IMPORTS = [(file.relative_to(PACKAGE), name) for file in FILES for name in _imports(file)]


def _room(file: Path) -> str:
    return file.parts[0].removesuffix(".py")


def test_a_room_imports_only_from_itself_and_lower_floors():
    wrong = []
    for file, name in IMPORTS:
        room, other = _room(file), name.split(".")[1] if name.startswith("tutti.") else ""
        if room == "__init__":  # the names of the Python API, which are imported when they are first used
            continue
        if other in FLOORS and other != room and FLOORS[other] > 0 and FLOORS[other] >= FLOORS[room]:
            wrong.append(f"{file}: {name}")
    assert not wrong


def test_a_sub_room_imports_only_from_itself_and_lower_ones():
    wrong = []
    for file, name in IMPORTS:
        order = INNER_FLOORS.get(_room(file), ())
        own, other = file.parts[:2][-1], name.split(".")[2:3]
        if (
            name.startswith(f"tutti.{_room(file)}.")
            and {own, *other} <= {*order}
            and order.index(*other) > order.index(own)
        ):
            wrong.append(f"{file}: {name}")
    assert not wrong


def test_each_heavy_library_stays_in_its_rooms():
    libraries = [(file, name.split(".")[0]) for file, name in IMPORTS]
    assert not [f"{file}: {name}" for file, name in libraries if name in HEAVY and _room(file) not in HEAVY[name]]


def test_every_package_says_in_one_line_what_it_is_for():
    packages = {file: ast.get_docstring(ast.parse(file.read_text(encoding="utf8"))) for file in FILES}
    silent = [
        str(file)
        for file, text in packages.items()
        if file.name == "__init__.py" and len((text or "").splitlines()) != 1
    ]
    assert not silent


def test_every_room_and_sub_room_has_its_floor():
    rooms = {_room(file.relative_to(PACKAGE)) for file in FILES} - {"__init__"}
    assert rooms <= FLOORS.keys()
    for room, order in INNER_FLOORS.items():
        assert {file.parent.name for file in (PACKAGE / room).glob("*/__init__.py")} == {*order}


def test_platform_never_becomes_a_package():
    assert not (ROOT / "platform" / "__init__.py").exists(), "it would shadow the standard library's module `platform`"


def test_importing_tutti_and_its_command_line_loads_no_heavy_library():
    heavy = "('ray', 'torch', 'transformers', 'mlflow', 'optuna', 'matplotlib', 'sklearn')"
    code = f"import sys, tutti, tutti.cli.app; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_every_module_makes_no_folder_and_sets_no_environment(tmp_path):
    code = (
        "import os, pkgutil, importlib, tutti, sys\n"
        "import ray.train.torch, ray.tune, torch, mlflow, optuna, datasets\n"
        "from transformers import AutoModel, Trainer\n"
        "loaded = dict(os.environ)\n"
        "for module in pkgutil.walk_packages(tutti.__path__, 'tutti.'):\n"
        "    if not module.name.endswith('__main__'): importlib.import_module(module.name)\n"
        "assert dict(os.environ) == loaded, set(os.environ.items()) ^ set(loaded.items())\n"
        "print(os.listdir('.'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_no_file_grows_past_four_hundred_lines():
    long = {str(f.relative_to(ROOT)): n for f in FILES if (n := len(f.read_text(encoding="utf8").splitlines())) > 400}
    assert not long
