"""GLUE's format: tab-separated, with a header and no quoting."""

from __future__ import annotations

from collections.abc import Sequence

from tutti.errors import Fault, SubmissionError

_BREAKING = ("\t", "\n", "\r")


class Glue:
    """``index<TAB>prediction`` in ``TASK.tsv``; values with three decimals."""

    def file_name(self, task: str) -> str:
        return f"{task}.tsv"

    def render(self, ids: Sequence[str], labels: Sequence[str] | Sequence[float]) -> bytes:
        texts = [label if isinstance(label, str) else f"{label:z.3f}" for label in labels]
        for text in {*ids, *texts}:
            if any(mark in text for mark in _BREAKING):
                rule = "have no tab and no line feed in the glue format, which has no quoting"
                remedy = "set `submission: csv` in the recipe or in the task"
                raise SubmissionError(Fault("an id or label", rule, repr(text), remedy))
        lines = ["index\tprediction", *(f"{row}\t{label}" for row, label in zip(ids, texts, strict=True))]
        return "".join(f"{line}\n" for line in lines).encode()
