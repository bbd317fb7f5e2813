"""The files of Tutti that a bundle carries: ``predict`` and all that it imports, so that nothing is written twice."""

from __future__ import annotations

import ast
import hashlib
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import tutti

_PACKAGE = Path(tutti.__file__).parent
_ROOTS = ("tutti.bundle.predict", "tutti.tasks.layouts.parquet")
"""The second is imported only by a bundle that is given Parquet."""
CODE = "code"

_PREDICT = '''"""Predicts new rows with this bundle: python predict.py --input new.csv --out predictions.csv

Needs torch, transformers, tokenizers, safetensors and numpy. In a notebook:

    from predict import load
    load().predict([{{"text": "a fine day"}}])
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "{code}"))

from {name}.bundle.predict import Bundle, main


def load(**options):
    """The bundle, whose ``predict`` takes rows as a list of mappings, or a data frame. Options: device, quantize."""
    return Bundle(HERE, **options)


if __name__ == "__main__":
    main(HERE)
'''


def modules() -> dict[str, Path]:
    """The files that bundles carry, by the name of their module."""
    found: dict[str, Path] = {}
    pending = [*_ROOTS]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found[name] = _PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py")
        if not found[name].is_file():
            found[name] = found[name].with_suffix("") / "__init__.py"
        pending += [each for each in imports(found[name]) if each.startswith("tutti.")]
    return found


def imports(file: Path) -> list[str]:
    """What a module imports when it is imported itself."""
    return list(_imports(ast.parse(file.read_text(encoding="utf-8")).body))


def _imports(statements: list[ast.stmt]) -> Iterator[str]:
    for each in statements:
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            for alias in each.names:  # a name of the module, or a module of the package
                inner = f"{each.module}.{alias.name}"
                is_module = inner.startswith("tutti.") and _is_module(inner)
                yield inner if is_module else str(each.module)


def _is_module(name: str) -> bool:
    path = _PACKAGE.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def carry(folder: Path, *, emoji: bool) -> None:
    """Writes ``predict.py`` and the code that it needs into a bundle.

    The package has a name of its own for each version of its files, so that bundles may be loaded side by side.

    Args:
        emoji: whether texts are cleaned of emoji, for which the library is copied too.
    """
    texts = {name: file.read_text(encoding="utf-8") for name, file in sorted(modules().items())}
    name = f"tutti_{hashlib.sha256(repr(texts).encode()).hexdigest()[:8]}"
    root = folder / CODE / name
    for module, text in texts.items():
        file = root.joinpath(*module.split(".")[1:]).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(re.sub(r"^(\s*)from tutti\.", rf"\1from {name}.", text, flags=re.MULTILINE), encoding="utf-8")
    for inner in (root, *(path for path in root.rglob("*") if path.is_dir())):
        (inner / "__init__.py").touch()
    if emoji:
        library = find_spec("emoji")
        assert library is not None
        assert library.origin is not None
        skipped = shutil.ignore_patterns("__pycache__", "*.pyi")
        shutil.copytree(Path(library.origin).parent, folder / CODE / "emoji", ignore=skipped)
    (folder / "predict.py").write_text(_PREDICT.format(code=CODE, name=name), encoding="utf-8")
