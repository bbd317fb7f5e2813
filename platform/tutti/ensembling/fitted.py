"""A fitted vote: what combines the members' outputs and decides, and how a bundle keeps it as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tutti.ensembling.calibrate import tempered
from tutti.ensembling.methods.hard import Majority
from tutti.ensembling.methods.protocol import Combiner, InUnits, Weighted
from tutti.ensembling.methods.rank import ColumnRanks, Ranks
from tutti.ensembling.methods.stacking import LogPool
from tutti.tasks.kinds.choice import possible
from tutti.tasks.kinds.protocol import Kind


@dataclass(frozen=True, eq=False)
class Fitted:
    """Combines votes and decides.

    Attributes:
        decision: parameters of ``Kind.decide``, or none.
        temperature: of the combined probabilities; 1 for kinds without.
    """

    kind: Kind
    combiner: Combiner
    decision: np.ndarray | None
    temperature: float

    def combine(self, votes: np.ndarray) -> np.ndarray:
        """Outputs, before temperature scaling, from voters' votes ``(voters, rows, ...)``."""
        return combined_by(self.combiner, votes, self.kind)

    def decide(self, combined: np.ndarray) -> np.ndarray:
        """The decisions of combined outputs."""
        return self.kind.decide(combined, self.decision)

    def calibrated(self, combined: np.ndarray) -> np.ndarray:
        """Combined probabilities at the fitted temperature, as ``tempered`` returns them; other outputs unchanged."""
        if self.temperature == 1:
            return combined
        kind = self.kind
        exact = kind.from_distributions(tempered(kind.distributions(combined), self.temperature), len(combined))
        return possible(exact, combined[None]) if kind.exchangeable else exact

    @property
    def needed(self) -> list[int]:
        """Places of the voters that have to predict: a weighted mean needs no voter of weight 0."""
        combiner, weights = _without_units(self.combiner), self.combiner.weights
        return np.flatnonzero(weights).tolist() if isinstance(combiner, Weighted) else list(range(len(weights)))

    def to_json(self) -> dict[str, Any]:
        """As values of JSON, from which ``from_json`` makes the same vote.

        Raises:
            TypeError: for votes of texts, whose utility is a metric.
        """
        names = {each: name for name, each in _COMBINERS.items()}
        combiner = _without_units(self.combiner)
        if type(combiner) not in names:
            raise TypeError(f"no JSON of {type(combiner).__name__}")
        content: dict[str, Any] = {
            "combiner": names[type(combiner)],
            "weights": combiner.weights.tolist(),
            "units": self.combiner.units.tolist() if isinstance(self.combiner, InUnits) else None,
            "decision": None if self.decision is None else self.decision.tolist(),
            "temperature": self.temperature,
        }
        if isinstance(combiner, ColumnRanks):
            content["fitted"] = combiner.fitted.tolist()
            content["of_ranks"] = [column.tolist() for column in combiner.of_ranks]
        return content

    @classmethod
    def from_json(cls, kind: Kind, content: Mapping[str, Any]) -> Fitted:
        """The inverse of ``to_json``."""
        make, weights = _COMBINERS[content["combiner"]], np.array(content["weights"])
        combiner: Combiner
        if make is ColumnRanks:
            of_ranks = [np.array(column) for column in content["of_ranks"]]
            combiner = ColumnRanks(weights, np.array(content["fitted"], dtype=np.float32), of_ranks)
        else:
            combiner = make(kind, weights) if make in (LogPool, Majority) else make(weights)
        if content["units"] is not None:
            combiner = InUnits(combiner, np.array(content["units"]))
        decision = None if content["decision"] is None else np.array(content["decision"])
        return Fitted(kind, combiner, decision, content["temperature"])


_COMBINERS: Mapping[str, type[Any]] = {
    "mean": Weighted,
    "log_pool": LogPool,
    "majority": Majority,
    "ranks": Ranks,
    "ranks_by_column": ColumnRanks,
}


def _without_units(combiner: Combiner) -> Combiner:
    return combiner.combiner if isinstance(combiner, InUnits) else combiner


def combined_by(combiner: Combiner, votes: np.ndarray, kind: Kind) -> np.ndarray:
    """Combined votes ``(members, rows, ...)``, without what no row has."""
    combined = combiner.combine(votes)
    return possible(combined, votes).astype(combined.dtype) if kind.exchangeable else combined
