"""Classes: each row has one of k labels, and predictions are their probabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tutti.errors import Fault, counted
from tutti.tasks.kinds.cells import LabelCells
from tutti.tasks.kinds.offsets import decide, tune_offsets
from tutti.tasks.kinds.probabilities import divergence, probability_fault
from tutti.tasks.kinds.protocol import Kind, Tuner
from tutti.tasks.number_text import NUMBER
from tutti.tasks.spelling import plain


class Classes(Kind):
    """Labels ``(rows,)`` int64 indices of classes, outputs ``(rows, classes)`` probabilities that sum to 1.

    Decisions are the likeliest classes; their parameters are an offset of each class's log-probability.
    """

    name: ClassVar[str] = "classes"
    probabilistic: ClassVar[bool] = True
    exclusive: ClassVar[bool] = True
    picture: ClassVar[str] = "confusion_matrix"

    def names_of(self, cells: Iterable[str], order: Sequence[str] = ()) -> tuple[str, ...]:
        return ordered_classes(cells, order)

    def parse(self, cells: Sequence[str], names: Sequence[str]) -> np.ndarray:
        index = {name: number for number, name in enumerate(names)}
        return np.array([index[cell] for cell in cells], dtype=np.int32)

    def label_faults(self, labels: LabelCells, names: Sequence[str]) -> Iterator[Fault]:
        return class_faults(labels, names)

    def untrained(self, labels: np.ndarray, names: Sequence[str]) -> list[str]:
        return [name for index, name in enumerate(names) if not (labels == index).any()]

    def indicators(self, labels: np.ndarray) -> np.ndarray:
        return np.equal(np.unique(labels), labels[:, None]).astype(np.float32)

    def shape(self, rows: int, outputs: int) -> tuple[int, ...]:
        return rows, outputs

    def fault(self, outputs: np.ndarray, labels: np.ndarray | None, names: Sequence[str]) -> tuple[str, str] | None:
        rows, classes = len(outputs), len(names)
        if outputs.shape != (rows, classes):
            return f"have probabilities of shape ({rows}, {classes})", f"shape {outputs.shape}"
        if not np.isfinite(outputs).all():
            return "have probabilities that are numbers", "NaN or infinity"
        if rows and not np.allclose(outputs.sum(axis=1, dtype=np.float64), 1.0, atol=1e-3):
            return "have rows of probabilities that sum to 1", "rows that do not"
        if fault := probability_fault(outputs):
            return fault
        if labels is not None and labels.shape != (rows,):
            return f"have one label for each of its {rows} rows", f"labels of shape {labels.shape}"
        if labels is not None and rows:
            if labels.dtype.kind not in "iu":
                return "have labels that are indices of classes", f"labels of type {labels.dtype}"
            if invalid := labels[(labels < 0) | (labels >= classes)].tolist():
                return f"have labels from 0 to {classes - 1}, one for each class", str(invalid[0])
        return None

    def describe(self, names: Sequence[str], *, most: int = 0) -> str:
        listed = ", ".join(names[:most]) + ", ..." * (len(names) > most)
        return f"{len(names)} classes" + (f" ({listed})" if most else "")

    def guess(self, labels: np.ndarray, outputs: int) -> np.ndarray:
        return np.random.default_rng(0).dirichlet(np.ones(outputs), len(labels)).astype(np.float32)

    def decide(self, outputs: np.ndarray, decision: np.ndarray | None = None) -> np.ndarray:
        return decide(outputs, decision)

    def tuner(self, metric: str) -> Tuner | None:
        if metric == "accuracy" or metric.startswith("micro_"):  # which the likeliest class has most of
            return None
        return partial(_tuned, counted=1 if metric in ("f1", "f0.5", "f2") else None)

    def decision_by_name(self, names: Sequence[str], decision: np.ndarray) -> Mapping[str, float]:
        return dict(zip(names, decision.tolist(), strict=True))

    def decision_text(self, names: Sequence[str], decision: np.ndarray | None) -> str:
        offsets = [] if decision is None else zip(names, decision.tolist(), strict=True)
        listed = ", ".join(f"{name} {offset:+g}" for name, offset in offsets if offset)
        return f"offsets: {listed}" if listed else "the likeliest"

    def spell(self, decided: np.ndarray, names: Sequence[str]) -> list[Any]:
        return self.cells(decided, names)

    def cells(self, decided: np.ndarray, names: Sequence[str]) -> list[str]:
        return [names[index] for index in decided]

    def held(self, decided: np.ndarray, outputs: int) -> np.ndarray:
        return decided[:, None] == np.arange(outputs)

    def text(self, decided: Any, names: Sequence[str], *, exact: bool = False) -> str:
        return names[int(decided)]

    def wrong(self, decided: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return np.asarray(decided != labels)

    def loss(self, outputs: np.ndarray, labels: np.ndarray) -> float:
        likelihoods = outputs[np.arange(len(labels)), labels].astype(np.float64)
        return float(-np.log(likelihoods.clip(min=1e-30)).mean())

    def difference(self, first: np.ndarray, second: np.ndarray) -> float:
        return float((first != second).mean()) if len(first) else 0.0

    def disagreement(self, votes: np.ndarray) -> np.ndarray:
        return divergence(votes)

    def same(self, votes: np.ndarray) -> np.ndarray:
        chosen = votes.argmax(axis=-1)
        return (chosen == chosen[0]).all(axis=0)

    def distributions(self, outputs: np.ndarray) -> np.ndarray:
        return outputs

    def from_distributions(self, distributions: np.ndarray, rows: int) -> np.ndarray:
        return distributions

    def truths(self, labels: np.ndarray) -> np.ndarray:
        return labels

    def strata(self, labels: np.ndarray) -> np.ndarray:
        return labels

    def counted_strata(self, labels: np.ndarray) -> np.ndarray | None:
        return labels

    def with_mistakes(
        self, decisions: np.ndarray, labels: np.ndarray, rows: np.ndarray, wrong: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        classes = max(int(labels.max()), 1) + 1
        others = (labels[rows] + rng.integers(1, classes, len(rows))) % classes
        return np.where(wrong, others, decisions)

    def right_and_wrong(self, labels: np.ndarray, row: int, common: Sequence[int]) -> tuple[Any, Any]:
        label = labels[row]
        others = (labels[other] for other in common if labels[other] != label)
        return label, next(others, 0 if label else 1)


def ordered_classes(labels: Iterable[str], order: Sequence[str] = ()) -> tuple[str, ...]:
    """The distinct labels, in numeric order if all are numbers, otherwise in alphabetical order.

    Args:
        order: another order, which comes before that.
    """
    names = sorted(set(labels))
    names = sorted(names, key=float) if all(map(NUMBER.fullmatch, names)) else names
    places = {name: place for place, name in enumerate(order)}
    return tuple(sorted(names, key=lambda name: places.get(name, len(places))))


def has_own_order(names: Sequence[str]) -> bool:
    """Whether the order of these classes follows from what they are: numbers, or single letters such as A to E."""
    return all(NUMBER.fullmatch(name) for name in names) or all(len(name) == 1 for name in names)


def _tuned(probabilities: np.ndarray, labels: np.ndarray, *, counted: int | None) -> np.ndarray | None:
    offsets = tune_offsets(probabilities, labels, counted=counted)
    return offsets if offsets.any() else None


_SHOWN = 5  # labels in a message


def class_faults(cells: LabelCells, classes: Sequence[str]) -> Iterator[Fault]:
    """A fault for a single class, for each class in several spellings, and for labels of other files without a class.

    A class that no row to validate on has would be learnt and never judged, as one by a slip is.
    """
    faults = []
    if len(classes) < 2:
        got = f"only {classes[0]!r}" if classes else "none"
        faults.append(Fault(cells.origin, "have rows of two classes or more", got, "add rows, or take the task out"))
    spellings: dict[str, list[str]] = {}
    for name in classes:
        spellings.setdefault(plain(name), []).append(name)
    for same in spellings.values():
        if len(same) > 1:
            rule, remedy = "have one spelling of each class", "correct the labels, also in the files of extra_train"
            faults.append(Fault(cells.origin, rule, " and ".join(map(repr, same)), remedy))
    others: list[tuple[str, Sequence[str], Collection[str]]] = []
    if cells.validation is not None:
        others.append((*cells.validation, {*classes}))
    if not faults:
        judged = {*cells.train, *(cells.validation[1] if cells.validation else ())}
        others += [(file, labels, judged) for file, labels in cells.extra.items()]
    yield from faults
    for where, labels, known in others:
        yield from _unknown_labels(where, [label for label in labels if label not in known], cells.origin, known)


def _unknown_labels(where: str, labels: Sequence[str], source: str, known: Collection[str]) -> list[Fault]:
    """A fault of all labels that training rows write otherwise, and one of all that they lack.

    Args:
        labels: of the rows of ``where`` with such labels.
        known: the labels that they may have.
    """
    counts, alike = dict(Counter(labels).most_common()), {plain(name): name for name in known}
    written = {label: alike[key] for label in counts if (key := plain(label)) in alike}
    unknown = [f"{label!r} in {counted(count, 'row')}" for label, count in counts.items() if label not in written]
    others = [f"{label!r} in {counted(counts[label], 'row')} where it has {name!r}" for label, name in written.items()]
    rule = f"have labels that occur in {source}"
    remedies = "correct the labels, or add training rows of that class", "write these labels alike in both files"
    return [
        Fault(where, rule, ", ".join(got[:_SHOWN]) + (", ..." if len(got) > _SHOWN else ""), remedy)
        for got, remedy in zip((unknown, others), remedies, strict=True)
        if got
    ]
