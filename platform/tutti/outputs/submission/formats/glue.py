"""GLUE's format: tab-separated, with a header and no quoting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tutti.errors import Fault, SubmissionError
from tutti.outputs.submission.formats.protocol import Item

OFFICIAL = (
    "AX.tsv",
    "CoLA.tsv",
    "MNLI-m.tsv",
    "MNLI-mm.tsv",
    "MRPC.tsv",
    "QNLI.tsv",
    "QQP.tsv",
    "RTE.tsv",
    "SST-2.tsv",
    "STS-B.tsv",
    "WNLI.tsv",
)
"""The files of a complete submission; gluebenchmark.com rejects a zip that lacks one."""

_ZERO_ONE = {
    "CoLA.tsv": ("unacceptable", "acceptable"),
    "MRPC.tsv": ("not_equivalent", "equivalent"),
    "QQP.tsv": ("not_duplicate", "duplicate"),
    "SST-2.tsv": ("negative", "positive"),
    "WNLI.tsv": ("not_entailment", "entailment"),
}
"""The files whose labels are 0 and 1, with the names that these have on the hub."""

_WORDS = dict.fromkeys(("AX.tsv", "MNLI-m.tsv", "MNLI-mm.tsv"), ("contradiction", "entailment", "neutral")) | (
    dict.fromkeys(("QNLI.tsv", "RTE.tsv"), ("entailment", "not_entailment"))
)
_SEPARATORS = ("\t", "\n", "\r")


def plain(name: str) -> str:
    """The name without what its spellings differ in: sst2 for SST-2 and sst_2."""
    return name.lower().replace("-", "").replace("_", "")


_BY_NAME = {plain(name): name for name in OFFICIAL} | {"mnliax.tsv": "AX.tsv"}


class Glue:
    """``index<TAB>prediction``, values with three decimals, in the task's official file name, or else ``TASK.tsv``.

    MNLI's test sets ``m`` and ``mm`` and the diagnostic set ``ax`` go beside the files of the other tasks.
    """

    def place(self, task: str, part: str) -> tuple[str, str]:
        if file := official("-".join((task, *part.split("-", 1)[1:]))):
            return "test", file
        return part, official(task) or f"{task}.tsv"

    def render(self, ids: Sequence[str], labels: Sequence[Item]) -> bytes:
        if several := next((label for label in labels if isinstance(label, Mapping)), None):
            got, remedy = f"{len(several)} ({', '.join(several)})", "set `submission: csv` or `competition`"
            raise SubmissionError(Fault("a row in the glue format", "have one label or number", got, remedy))
        texts = [label if isinstance(label, str) else f"{label:z.3f}" for label in labels]
        for text in {*ids, *texts}:
            if any(mark in text for mark in _SEPARATORS):
                rule = "have no tab and no line feed in the glue format, which has no quoting"
                remedy = "set `submission: csv` in the recipe"
                raise SubmissionError(Fault("an id or label", rule, repr(text), remedy))
        lines = ["index\tprediction", *(f"{row}\t{label}" for row, label in zip(ids, texts, strict=True))]
        return "".join(f"{line}\n" for line in lines).encode()


def spelled(file: str, labels: Sequence[str]) -> list[str]:
    """The labels as GLUE takes them in a file of this name: 0 and 1 for the names that data sets of the hub have.

    Raises:
        SubmissionError: if the file is an official one, and GLUE takes no such label in it.
    """
    numbers = {name: str(number) for number, name in enumerate(_ZERO_ONE.get(file, ()))}
    known = _WORDS.get(file, ("0", "1") if numbers else ())
    texts = [numbers.get(label, label) for label in labels]
    if known and (odd := sorted(set(texts) - set(known))):
        rule, remedy = f"have GLUE's labels, {', '.join(known)}", "set `submission: csv` in the recipe"
        raise SubmissionError(Fault(f"the file {file}", rule, ", ".join(map(repr, odd[:5])), remedy))
    return texts


def official(name: str) -> str | None:
    """The official file of a task of this name, or of its test set, in whatever spelling; None if there is none."""
    return _BY_NAME.get(plain(f"{name}.tsv"))


def lacking(files: Iterable[str]) -> tuple[str, ...]:
    """The official files that a zip of these files lacks; empty if it has none of them, and so is not for GLUE."""
    present = set(files)
    return tuple(name for name in OFFICIAL if name not in present) if present & set(OFFICIAL) else ()
