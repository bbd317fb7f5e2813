"""The model card of a bundle: what it is made of, how well it does, and what it is not for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tutti.errors import counted
from tutti.outputs.formatting import estimate_text, harmless, members_table, page, signed, table

if TYPE_CHECKING:
    from tutti.outputs.election.card import TaskCard
    from tutti.tasks.task import Task


@dataclass(frozen=True)
class Speed:
    """What predicting took on the machine that exported.

    Attributes:
        seconds: for 1,000 rows.
        members: the same of each member.
        rows: that it was measured on.
        flipped: share of rows whose label quantisation changed; None without.
        greatest: greatest change of a number or probability by it.
    """

    seconds: float
    members: Mapping[str, float]
    rows: int
    precision: str
    flipped: float | None = None
    greatest: float | None = None

    @property
    def text(self) -> str:
        said = f"{self.seconds:.2f} s for 1,000 rows in {self.precision}, measured on {counted(self.rows, 'row')}"
        if self.flipped is None:
            return said
        return f"{said}; int8 changes {self.flipped:.2%} of the labels, and outputs by {self.greatest:.3g} at most"


@dataclass(frozen=True)
class BundleCard:
    """The content of a bundle's README.md.

    Attributes:
        recipe: the recipe, or the checkpoint.
        card: of the vote; None of a single checkpoint.
        data: by part its rows, or None where they are not known, and its source.
        backbones: the backbones with their licences.
        size: bytes of the folder.
        calibrated: whether probabilities are at the fitted temperature.
    """

    study: str
    recipe: str
    task: Task
    card: TaskCard | None
    data: Sequence[tuple[str, str, str]]
    backbones: Mapping[str, str]
    size: int
    speed: Speed
    calibrated: bool

    def to_markdown(self) -> str:
        kind = self.task.kind.describe(self.task.names, most=len(self.task.names))
        licences = sorted({*self.backbones.values()})
        front_matter = [
            "---",
            "library_name: transformers",
            "tags: [tutti, text-classification]" if self.task.kind.probabilistic else "tags: [tutti]",
            f"license: {licences[0] if len(licences) == 1 and ' ' not in licences[0] else 'other'}",
            "---",
        ]
        return page(
            "\n".join(front_matter),
            f"# {harmless(self.task.name)}: {harmless(kind)}",
            f"Made by Tutti from the study `{self.study}`, {harmless(self.recipe)}. It predicts by itself:",
            "```\npython predict.py --input new.csv --out predictions.csv\n```",
            "with torch, transformers, tokenizers, safetensors and numpy; as an MLflow model with\n"
            '`mlflow.pyfunc.load_model("THIS FOLDER").predict(frame)` or `mlflow models serve -m THIS_FOLDER '
            "--env-manager local`. `example.json` has rows as it takes them. Loading runs no pickle.",
            f"{self.size / 2**20:.0f} MiB. {self.speed.text}.",
            *self._scores(),
            "## Data",
            table(("part", "rows", "source"), self.data),
            "## Limits",
            "It was trained and judged on the rows above alone. On texts of another origin, length or language,\n"
            "and on subjects that they lack, it may do much worse than the scores say. How it does on texts by\n"
            "or about groups of people was not examined.",
            "## Licence of the backbone",
            table(("backbone", "licence"), [*self.backbones.items()]),
        )

    def _scores(self) -> tuple[str, ...]:
        if (card := self.card) is None:
            return ()
        rows = [
            ("the vote", estimate_text(card.score)),
            ("the best trial alone", estimate_text(card.single)),
            ("gain", signed(card.gain)),
        ]
        known = card.calibration if self.calibrated else None
        given = f"at the temperature {known.temperature:.3f}" if known else "as combined"
        decision = f"; decision: {harmless(card.decision)}; probabilities are given {given}"
        decision = decision if self.task.kind.probabilistic else ""
        return (
            "## Scores",
            f"{card.metric} on rows that had no part in choosing members, weights or decisions (nested estimates, 95 % "
            "interval). Each trial's best epoch was chosen on these rows, which flatters all of them.",
            table(("", card.metric), rows),
            f"Votes are combined by {card.method}{decision}.",
            members_table([(card.task, card.members)]),
        )
