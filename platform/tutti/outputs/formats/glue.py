"""GLUE's format: tab-separated, with a header and no quoting."""

from __future__ import annotations

from collections.abc import Sequence

from tutti.errors import Fault, SubmissionError

_BREAKING = ("\t", "\n", "\r")


class Glue:
    """``index<TAB>prediction`` in ``TASK.tsv``."""

    def file_name(self, task: str) -> str:
        return f"{task}.tsv"

    def render(self, ids: Sequence[str], labels: Sequence[str]) -> bytes:
        for text in {*ids, *labels}:
            if any(mark in text for mark in _BREAKING):
                rule = "have no tab and no line feed in the glue format, which has no quoting"
                remedy = "set `submission: csv` in the recipe or in the task"
                raise SubmissionError(Fault("an id or label", rule, repr(text), remedy))
        lines = ["index\tprediction", *(f"{row}\t{label}" for row, label in zip(ids, labels, strict=True))]
        return "".join(f"{line}\n" for line in lines).encode()
