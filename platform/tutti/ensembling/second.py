"""Second-stage models: fitted to the predictions of all members, beside columns of the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from tutti.ensembling.nested import splits
from tutti.errors import ConfigError, Fault
from tutti.tasks.kinds.protocol import Kind
from tutti.tasks.kinds.values import columns

Model = Literal["linear", "boosting", "lightgbm"]
MODELS = get_args(Model)
_LEAST = 1e-6  # probability, so that log-odds are finite


def features_of(kind: Kind, votes: np.ndarray, further: np.ndarray) -> np.ndarray:
    """``(rows, features)`` float64: each member's outputs, probabilities as log-odds, then the further columns.

    Args:
        votes: ``(members, rows, ...)`` outputs.
        further: ``(rows, columns)``, NaN where a cell is empty.
    """
    outputs = np.hstack([columns(vote) for vote in votes]).astype(np.float64)
    if kind.probabilistic:
        inside = np.clip(outputs, _LEAST, 1 - _LEAST)
        outputs = np.log(inside / (1 - inside))
    return np.hstack([outputs, further])


@dataclass(frozen=True)
class SecondStage:
    """A model of one kind of task.

    Attributes:
        model: ``linear`` (logistic or ridge regression, its penalty chosen by cross-validation), ``boosting`` (gradient
            boosting of histograms, Ke et al. 2017) or ``lightgbm``, which is an optional package.
        outputs: of the task.
    """

    kind: Kind
    model: Model
    outputs: int
    seed: int = 0

    def out_of_fold(self, features: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Outputs ``(rows, ...)`` float32, of each row by a model that was fitted to rows of other groups."""
        found = np.empty(self.kind.shape(len(labels), self.outputs), dtype=np.float32)
        for _, train, held_out in splits(self.kind.strata(labels), groups, repeats=1, seed=self.seed):
            found[held_out] = self.fitted(features[train], labels[train], features[held_out])
        return found

    def fitted(self, features: np.ndarray, labels: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Outputs for the features ``new`` by a model that is fitted to all rows of the others."""
        if self.kind.exclusive:
            return self._probabilities(features, labels, new)
        by_column = columns(labels.astype(np.float64))
        found = np.stack([self._column(features, column, new) for column in by_column.T], axis=1)
        return found.astype(np.float32).reshape(self.kind.shape(len(new), self.outputs))

    def _probabilities(self, features: np.ndarray, labels: np.ndarray, new: np.ndarray) -> np.ndarray:
        """``(new rows, classes)``; a class without a row has a probability of 0."""
        found = np.zeros((len(new), self.outputs))
        classes = np.unique(labels)
        if len(classes) == 1:
            found[:, classes] = 1
        else:
            found[:, classes] = self._estimator(classifies=True).fit(features, labels).predict_proba(new)
        return (found / found.sum(axis=1, keepdims=True)).astype(np.float32)

    def _column(self, features: np.ndarray, labels: np.ndarray, new: np.ndarray) -> np.ndarray:
        """One label or number of its own, learnt from the rows where it is known."""
        known = ~np.isnan(labels)
        features, labels = features[known], labels[known]
        if self.kind.probabilistic:
            return self._two(features, labels > 0.5, new)
        return np.asarray(self._estimator(classifies=False).fit(features, labels).predict(new))

    def _two(self, features: np.ndarray, labels: np.ndarray, new: np.ndarray) -> np.ndarray:
        if labels.all() or not labels.any():
            return np.full(len(new), float(labels.all()))
        return np.asarray(self._estimator(classifies=True).fit(features, labels).predict_proba(new)[:, 1])

    def _estimator(self, *, classifies: bool) -> Any:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor  # slow to import
        from sklearn.impute import SimpleImputer
        from sklearn.linear_model import LogisticRegression, RidgeCV
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        if self.model == "linear":
            # Members agree so much that their weights need a penalty; of few rows a weak one would fit their noise.
            linear = LogisticRegression(C=0.1, max_iter=1000) if classifies else RidgeCV(np.logspace(-1, 4, 11))
            return make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler(), linear)
        options: Mapping[str, Any] = {"learning_rate": 0.05, "random_state": self.seed}
        if self.model == "boosting":
            boosting = HistGradientBoostingClassifier if classifies else HistGradientBoostingRegressor
            return boosting(max_iter=150, max_leaf_nodes=15, min_samples_leaf=20, l2_regularization=1.0, **options)
        lightgbm = _lightgbm()
        model = lightgbm.LGBMClassifier if classifies else lightgbm.LGBMRegressor
        return model(n_estimators=150, num_leaves=15, min_child_samples=20, reg_lambda=1.0, verbose=-1, **options)


def _lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError as error:
        remedy = "install it with `pip install 'tutti[second]'`, or use `boosting`, which is of the same sort"
        raise ConfigError(Fault("the model lightgbm", "have its package installed", "none", remedy)) from error
    return lightgbm
