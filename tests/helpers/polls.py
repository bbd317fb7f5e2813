"""Elections by plain arguments: those of a ``Poll`` and those of what is done with it, side by side."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from tutti.outputs.election.card import Card
from tutti.outputs.election.ensemble import vote
from tutti.outputs.election.members import Election
from tutti.outputs.election.members import elect as elected
from tutti.outputs.election.poll import Poll
from tutti.outputs.pseudo.labels import label
from tutti.outputs.pseudo.report import PseudoLabelReport


def poll_and_rest(given: dict[str, Any]) -> tuple[Poll, dict[str, Any]]:
    own = {field.name for field in fields(Poll)} & given.keys()
    rest = {name: value for name, value in given.items() if name not in own}
    return Poll(**{name: given[name] for name in own}), rest


def elect(**given: Any) -> Election:
    poll, rest = poll_and_rest(given)
    return elected(poll, **rest)


def write_ensemble(*, out: Path, **given: Any) -> Card:
    poll, rest = poll_and_rest(given)
    return vote(poll, **rest).write(out)


def write_pseudo_labels(*, out: Path, **given: Any) -> PseudoLabelReport:
    poll, rest = poll_and_rest(given)
    return label(poll, **rest).write(out)
