"""From the outputs of checkpoints to the rows that are written: labels with their probabilities."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from tutti.ensembling.combine import mean_of
from tutti.ensembling.fitted import Fitted
from tutti.ensembling.pseudo import opinion
from tutti.tasks.kinds.entities import OUTSIDE
from tutti.tasks.layouts.candidates import from_json, spelled
from tutti.tasks.layouts.tags import piece_of, spans_of_tags
from tutti.tasks.units import spans_of

if TYPE_CHECKING:
    import pyarrow as pa

    from tutti.tasks.task import Task


@dataclass(frozen=True, eq=False)
class TaskVote:
    """Turns the predictions of checkpoints into the rows that are written.

    Attributes:
        groups: by member that has to predict, the indices of its checkpoints, one for each fold of its trial; the
            member's prediction is their mean.
        ensemble: how members are combined; none if a single checkpoint predicts.
        decision: the parameters of a single checkpoint's decisions, as of ``Kind.decide``; none for most kinds.
        calibrated: whether probabilities are written at the ensemble's temperature. Labels do not change.
    """

    task: Task
    groups: Mapping[int, Sequence[int]]
    ensemble: Fitted | None = None
    decision: np.ndarray | None = None
    calibrated: bool = False

    def of_members(self, predictions: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
        """By member that has to predict, its outputs: of its checkpoint, or the vote of its folds, as the bank has it.

        Args:
            predictions: by checkpoint, its float32 outputs.
        """
        found = {}
        for member, indices in self.groups.items():
            if len(indices) == 1:
                found[member] = predictions[indices[0]]
            elif self.task.kind.generative:
                from tutti.ensembling.methods.registry import plain_vote  # not for a bundle: it has no metrics of texts

                found[member] = plain_vote(self.task, np.stack([predictions[index] for index in indices]))
            else:
                found[member] = mean_of([predictions[index] for index in indices])
        return found

    def table(self, *rows: Any, **beside: Any) -> pa.Table:
        """``columns`` as an Arrow table."""
        import pyarrow as pa  # which bundles need not have

        columns = self.columns(*rows, **beside).items()
        return pa.table(
            {name: pa.array(cells, pa.string() if isinstance(cells, list) else None) for name, cells in columns}
        )

    def columns(
        self,
        ids: Sequence[str],
        predictions: Sequence[np.ndarray],
        choices: Iterable[str] | None = None,
        texts: Sequence[str] = (),
    ) -> dict[str, list[str] | np.ndarray]:
        """Lists of texts and arrays of numbers: id, label or labels, confidence and ``p_NAME`` for each class or label;
        or id and the numbers; or id, tags, entities and the confidence of the least certain tag; or id, text and
        agreement, the share of members who write this very text.

        Confidence is a class's own probability, and of several labels that of the least certain decision. A single
        number is called ``value``, several are called as in the task.

        Args:
            predictions: by checkpoint, its float32 outputs.
            texts: of rows with tags, of which entities are JSON lists of begin, end, type and text.
            choices: the rows' candidates as JSON lists, where they have any; labels are then as those of training rows.
        """
        members = 1 if self.ensemble is None else len(self.ensemble.combiner.weights)
        votes = np.zeros((members, *predictions[0].shape), dtype=predictions[0].dtype)
        for member, outputs in self.of_members(predictions).items():
            votes[member] = outputs
        combined = votes[0] if self.ensemble is None else self.ensemble.combine(votes)
        kind, names, id_column = self.task.kind, self.task.names, {"id": list(ids)}
        if kind.generative:
            same = (votes == combined).mean(axis=0, dtype=np.float32)
            return {**id_column, "text": kind.spell(combined, names), "agreement": same}
        if not kind.probabilistic:
            by_column = np.ascontiguousarray(combined.reshape(len(combined), -1).T)
            if kind.comparative and np.isnan(combined[:, 1]).all():  # single texts
                by_column, names = by_column[:1], ()
            return {**id_column, **dict(zip(names or ("value",), by_column, strict=True))}
        decided = kind.decide(combined, self.decision) if self.ensemble is None else self.ensemble.decide(combined)
        probabilities = combined
        if self.ensemble is not None and self.calibrated:
            probabilities = self.ensemble.calibrated(combined).astype(np.float32)
        if kind.sequential:
            least = opinion(kind, probabilities, decided, decided[None]).confidence
            sure = np.nan_to_num(least.astype(np.float32), nan=1.0)  # of a row without any word
            cells, unit = kind.cells(decided, names), self.task.unit
            written: dict[str, list[str] | np.ndarray] = {**id_column}
            if kind.spans == "one":
                written["answer"] = [piece_of(text, unit, tags) for text, tags in zip(texts, cells, strict=True)]
            written["tags"] = [
                " ".join(tag if isinstance(tag, str) else "|".join(tag) or OUTSIDE for tag in json.loads(tags))
                for tags in cells
            ]
            if kind.spans != "none":
                written["entities"] = [
                    marked(text, spans_of(text, unit), json.loads(tags))
                    for text, tags in zip(texts, cells, strict=True)
                ]
            return {**written, "confidence": sure}
        held = kind.held(decided, len(names))
        labels = [", ".join(compress(names, row)) for row in held]
        if kind.exchangeable:
            own = [()] * len(ids) if choices is None else from_json(choices)
            labels = list(map(spelled, kind.cells(decided, names), own, repeat(self.task.answers or "letter")))
        of_decisions = np.where(held, probabilities, np.inf if kind.exclusive else 1 - probabilities)
        confidence = {"label" if kind.exclusive else "labels": labels, "confidence": of_decisions.min(axis=1)}
        by_class = np.ascontiguousarray(probabilities.T)
        return {**id_column, **confidence, **{f"p_{name}": own for name, own in zip(names, by_class, strict=True)}}


def marked(text: str, units: np.ndarray, tags: Sequence[Any]) -> str:
    """The entities of a text as a JSON list of ``[begin, end, type, text]``, in characters from 0."""
    spans = spans_of_tags(units, tags) if tags else []
    return json.dumps([[start, end, kind, text[start:end]] for start, end, kind in spans], ensure_ascii=False)
