"""The keys of ``training:`` that are Tutti's own. All others are fields of ``transformers.TrainingArguments``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tutti.config.study import Strict


class TrainingOptions(Strict):
    """Switches of a trial beyond TrainingArguments; a search space may vary each of them.

    Attributes:
        pooling: how token vectors become one: ``attention`` (Lin et al. 2017, one learned query for each task), ``cls``
            (the first token), or ``mean`` (over tokens that are not padding).
        head_dropout: dropout probability in front of each head.
        ema_decay: decay of the exponential moving average of the weights, which then stands in for them when the trial
            is evaluated and saved; none for no average.
        max_length: longest input in tokens; what is longer is cut.
    """

    pooling: Literal["attention", "cls", "mean"] = "attention"
    head_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    max_length: Annotated[int, Field(ge=8)] = 128
