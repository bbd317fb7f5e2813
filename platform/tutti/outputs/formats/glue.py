"""GLUE's format: tab-separated, with a header and no quoting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tutti.errors import Fault, SubmissionError

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

_SEPARATORS = ("\t", "\n", "\r")
_BY_NAME = {name.lower().replace("-", ""): name for name in OFFICIAL} | {"mnliax.tsv": "AX.tsv"}


class Glue:
    """``index<TAB>prediction``, values with three decimals, in the task's official file name, or else ``TASK.tsv``.

    MNLI's test sets ``m`` and ``mm`` and the diagnostic set ``ax`` go beside the files of the other tasks.
    """

    def place(self, task: str, part: str) -> tuple[str, str]:
        if official := _official("-".join((task, *part.split("-", 1)[1:]))):
            return "test", official
        return part, _official(task) or f"{task}.tsv"

    def render(self, ids: Sequence[str], labels: Sequence[str] | Sequence[float]) -> bytes:
        texts = [label if isinstance(label, str) else f"{label:z.3f}" for label in labels]
        for text in {*ids, *texts}:
            if any(mark in text for mark in _SEPARATORS):
                rule = "have no tab and no line feed in the glue format, which has no quoting"
                remedy = "set `submission: csv` in the recipe or in the task"
                raise SubmissionError(Fault("an id or label", rule, repr(text), remedy))
        lines = ["index\tprediction", *(f"{row}\t{label}" for row, label in zip(ids, texts, strict=True))]
        return "".join(f"{line}\n" for line in lines).encode()


def _official(name: str) -> str | None:
    return _BY_NAME.get(f"{name}.tsv".lower().replace("-", "").replace("_", ""))


def lacking(files: Iterable[str]) -> tuple[str, ...]:
    """The official files that a zip of these files lacks; empty if it has none of them, and so is not for GLUE."""
    present = set(files)
    return tuple(name for name in OFFICIAL if name not in present) if present & set(OFFICIAL) else ()
