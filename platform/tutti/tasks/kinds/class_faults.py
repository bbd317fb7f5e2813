"""What is wrong with the classes of a task's files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from tutti.errors import Fault, counted
from tutti.tasks.kinds.cells import LabelCells
from tutti.tasks.spelling import plain

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
