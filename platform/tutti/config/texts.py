"""What tasks of texts have beside other tasks in a study file."""

from __future__ import annotations

from typing import Literal

from tutti.config.strict import Strict

InstructionFormat = Literal[
    "input-output",
    "prompt-completion",
    "alpaca",
    "self-instruct",
    "unnatural-instructions",
    "chip2",
    "guanaco",
    "hh",
    "chat",
]


class ReportSet(Strict):
    """Questions whose answers are letters, such as those of MMLU (arXiv 2009.03300), as rows of prompts and targets.

    The model answers with the letter that it takes for the likeliest next token. The accuracy is the mean over the
    values of ``by``.
    """

    file: str
    answers: Literal["letters"] = "letters"
    by: str | None = None  # a column, such as that of subjects
    format: InstructionFormat = "input-output"
    when: Literal["evaluations", "end"] = "evaluations"  # one that decides always has evaluations
    decides: bool = False  # whether its accuracy is the task's score, in place of the metric
