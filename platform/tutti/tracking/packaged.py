"""A bundle as an MLflow model, from code, so that loading runs no pickle."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlflow.pyfunc
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, Schema
from mlflow.types.schema import Array
from pandas import DataFrame

_REQUIRED = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pandas", "mlflow")
CODE = "mlflow_model.py"

_MODEL = '''"""This bundle as an MLflow model."""

import importlib.util
from pathlib import Path

import mlflow.pyfunc
import pandas
from mlflow.exceptions import INVALID_PARAMETER_VALUE, MlflowException


class BundleModel(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        file = Path(__file__).resolve().parent / "predict.py"
        spec = importlib.util.spec_from_file_location(f"predict_{abs(hash(str(file)))}", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.bundle = module.load()

    def predict(self, context, model_input: pandas.DataFrame, params=None):
        try:
            predicted = self.bundle.predict(model_input)
        except Exception as error:
            if not hasattr(error, "faults"):  # of the rows: a mistake of who asks
                raise
            raise MlflowException(str(error), error_code=INVALID_PARAMETER_VALUE) from error
        return pandas.DataFrame(predicted)


mlflow.models.set_model(BundleModel())
'''


def package(
    folder: Path, *, example: Sequence[Mapping[str, Any]], optional: Sequence[str], outputs: Mapping[str, Any]
) -> None:
    """Makes an MLflow model of an empty folder, before the bundle's files are put into it.

    Args:
        example: rows as it takes them; their columns are its inputs.
        optional: names of columns that rows may lack.
        outputs: the names of its outputs, with a value of each.
    """
    columns = [ColSpec(_type(value), name, required=name not in optional) for name, value in example[0].items()]
    given = [ColSpec(_type(value), name) for name, value in outputs.items()]
    with TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows are checked by the signature, not by type hints
        logging.getLogger("mlflow.pyfunc").setLevel(logging.WARNING)
        code = Path(place, CODE)
        code.write_text(_MODEL, encoding="utf-8")
        mlflow.pyfunc.save_model(
            folder,
            python_model=str(code),
            signature=ModelSignature(Schema(columns), Schema(given)),
            input_example=DataFrame(list(example)),
            pip_requirements=[f"{name}=={version(name).partition('+')[0]}" for name in _REQUIRED],
        )


def _type(value: Any) -> DataType | Array:
    if isinstance(value, list):
        return Array(DataType.string)
    return DataType.string if isinstance(value, str) else DataType.float
