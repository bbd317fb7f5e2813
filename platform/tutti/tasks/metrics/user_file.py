"""A metric of the user's own: a function in a Python file, which the study file names.

The file is the user's code, and runs as it is. It is one file: it may import installed packages, not its neighbours.
Messages have its name alone: what runs is the copy in a study's folder, and what the user corrects is their own file.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from tutti.config.metric_facts import kinds_of
from tutti.config.study import OwnMetric
from tutti.errors import ConfigError, Fault, first_line, nearest
from tutti.files import write_whole
from tutti.tasks.metrics.registry import Metric

_FOLDER = "metrics"


def own_metric(own: OwnMetric) -> Metric:
    """The metric in a file. It can be pickled: another process loads the file from its path.

    Raises:
        ConfigError: where the file cannot be loaded, or has no such function.
    """
    function = OwnFunction(own.file, own.function)
    function.load()
    return Metric(
        name=own.function,
        needs=own.needs,
        kinds=kinds_of({"needs": own.needs}),
        higher_is_better=own.higher_is_better,
        lowest=None,
        highest=None,
        compute=function,
    )


def ship(own: OwnMetric, folder: Path) -> OwnMetric:
    """Copies the file into the folder of a study's data, where every worker finds it and nobody edits it.

    It goes to a folder named by its content, so that two files of one name do not meet, and keeps its own name.

    Returns:
        The same metric, with the copy as its file.

    Raises:
        ConfigError: where the file cannot be read.
        StorageError: where it cannot be written.
    """
    source = _read(own.file)
    target = folder / _FOLDER / sha256(source).hexdigest()[:16] / own.file.name
    write_whole(target, source)
    return own.model_copy(update={"file": target})


@dataclass(frozen=True)
class OwnFunction:
    """A function in a file, which is loaded once in each process.

    It gets copies of ``labels`` and predictions, so that it may change them.
    """

    file: Path
    name: str

    def load(self) -> Callable[..., Any]:
        """The function itself.

        Raises:
            ConfigError: where the file cannot be loaded, or has no such function of two arguments.
        """
        return _load(self.file, self.name)

    def __call__(self, labels: np.ndarray, predicted: np.ndarray, *, outputs: int) -> float:
        """The user's score.

        Raises:
            ConfigError: naming file and line, where the function raises, or its result is no finite number.
        """
        function = self.load()
        try:
            result = function(labels.copy(), predicted.copy())
        except (Exception, SystemExit) as error:
            what = f"{_place(self.file, error)} ({self.name})"
            raise ConfigError(Fault(what, "return a score", _got(error), "correct the function")) from error
        numbers = np.asarray(result if isinstance(result, int | float | np.generic | np.ndarray) else ())
        score = float(numbers.item()) if numbers.size == 1 and numbers.dtype.kind in "biuf" else math.nan
        if not math.isfinite(score):
            what = f"{_definition(self.file, function)} ({self.name})"
            raise ConfigError(Fault(what, "return a finite number", _shown(result), "correct the function"))
        return score


@cache
def _load(file: Path, name: str) -> Callable[..., Any]:
    module = _module(file)
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        rule = f"have a function {name!r}, which the study file names"
        got = f"only {', '.join(known)}" if known else "no function"
        raise ConfigError(Fault(file.name, rule, got, nearest(name, known, otherwise="add it, or name another")))
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        rule, remedy = f"have a function {name} of two arguments, labels and predictions", "correct its arguments"
        raise ConfigError(Fault(_definition(file, function), rule, first_line(error), remedy)) from error
    except ValueError:  # a function of a library in C does not tell
        pass
    return function


def _module(file: Path) -> Any:
    """The file as a module, under a name that no other module has, as pickle and dataclasses look modules up."""
    source = _read(file)
    unique = f"tutti_own_metric_{sha256(str(file).encode()).hexdigest()}"
    spec = importlib.util.spec_from_file_location(unique, file)
    if spec is None:
        raise ConfigError(Fault(file.name, "be a Python file", "another suffix", "name a file METRIC.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:  # not by its loader, which would leave a folder of bytecode beside the file
        exec(compile(source, str(file), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[unique]
        rule, remedy = "load as a Python file", "correct it"
        raise ConfigError(Fault(_place(file, error), rule, _got(error), remedy)) from error
    return module


def _place(file: Path, error: BaseException) -> str:
    """The file, with the line of it that raised an error, in the innermost call."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f"{file.name}, line {error.lineno}" if error.lineno else file.name
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(file)]
    return f"{file.name}, line {lines[-1]}" if lines else file.name


def _got(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else first_line(error)
    name = type(error).__name__
    return name if text == name else f"{name}: {text}"


def _shown(result: Any) -> str:
    if isinstance(result, np.ndarray) and result.size != 1:
        return f"an array of shape {result.shape}"
    text = " ".join(repr(result).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _definition(file: Path, function: Any) -> str:
    """The file, with the line at which the function begins."""
    return f"{file.name}, line {function.__code__.co_firstlineno}" if inspect.isfunction(function) else file.name


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        got, remedy = (error.strerror or str(error)).lower(), "correct the path, or check its permissions"
        raise ConfigError(Fault(str(file), "be a readable file", got, remedy)) from error
