"""Random labelled sentences for the demo's three tasks: some easy, some hard, some ambiguous by design."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tutti.demo import words

Row = tuple[str, ...]  # the texts, then the label


def emotion_row(rng: random.Random) -> Row:
    """A microblog text and its emotion, one of seven."""
    label, other = rng.sample(list(words.FEELINGS), 2)
    feeling, second = _common_first(rng, words.FEELINGS[label]), _common_first(rng, words.FEELINGS[other])
    cause = rng.choice(words.CAUSES)
    kind = rng.random()
    if kind < 0.34:
        core = rng.choice((f"{cause} makes me {feeling}", f"i am so {feeling} about {cause}"))
    elif kind < 0.56:
        core = rng.choice((f"not {second}, just {feeling} about {cause}", f"{feeling}, not {second}, with {cause}"))
    elif kind < 0.92:
        core = rng.choice(
            (
                f"i was {second} at first but {cause} left me {feeling}",
                f"{cause} left me {feeling} though i was {second} before",
            )
        )
    else:  # ambiguous by design
        core = f"{feeling} and {second} about {cause}"
        label = label if rng.random() < 0.5 else other
    opener = f"{rng.choice(words.OPENERS)} " if rng.random() < 0.5 else ""
    closer = f", {rng.choice(words.CLOSERS)}" if rng.random() < 0.4 else ""
    return f"{opener}{core}{closer}", label


def topic_row(rng: random.Random) -> Row:
    """A headline and the code of its topic, one of fifteen."""
    label, other = rng.sample(list(words.TOPICS), 2)
    mine = [_common_first(rng, words.TOPICS[label]) for _ in range(2)]
    foreign = _common_first(rng, words.TOPICS[other])
    filler = [rng.choice(words.HEADLINE_FILLERS) for _ in range(3)]
    verb = rng.choice(words.HEADLINE_VERBS)
    kind = rng.random()
    if kind < 0.15:
        text = f"{filler[0]} {mine[0]} {verb} {filler[1]} {mine[1]}"
    elif kind < 0.35:
        text = f"{filler[0]} {mine[0]} {verb} {filler[1]} {filler[2]}"
    elif kind < 0.90:  # the topic is that of the subject, not that of the object or the comparison
        text = rng.choice(
            (
                f"{filler[0]} {mine[0]} {verb} {filler[1]} {foreign}",
                f"{mine[0]} {verb} {filler[0]}, like a {foreign}",
                f"like a {foreign}, {filler[0]} {mine[0]} {verb} {filler[1]}",
            )
        )
    else:  # ambiguous by design
        text = f"{mine[0]} and {foreign}: {filler[0]} {verb} {filler[1]}"
        label = label if rng.random() < 0.5 else other
    return text, label


def inference_row(rng: random.Random) -> Row:
    """A premise, a hypothesis, and their relation: entailment, contradiction or neutral."""
    label = rng.choice(("entailment", "neutral", "contradiction"))
    person, thing, deed, place = (
        rng.choice(list(choices)) for choices in (words.PEOPLE, words.THINGS, words.DEEDS, words.PLACES)
    )
    same, opposite = words.DEEDS[deed]
    reason = rng.choice(words.REASONS)
    has_reason = rng.random() < 0.25
    premise = f"the {person} {deed} a {thing} {place}" + (f" {reason}" if has_reason else "")
    who = rng.choice((f"the {person}", f"a {words.PEOPLE[person]}"))
    what = rng.choice((f"a {thing}", f"some {words.THINGS[thing]}"))
    where = f" {place}" if rng.random() < 0.4 else ""
    does = rng.choice((deed, same))
    if label == "entailment":
        hypothesis = f"{who} {does} {what}{where}" + (f" {reason}" if has_reason and rng.random() < 0.6 else "")
        if rng.random() < 0.15:
            hypothesis = f"{who} never {opposite} {what}"
    elif label == "contradiction":
        hypothesis = rng.choice(
            (
                f"{who} {opposite} {what}{where}",
                f"{who} {opposite} {what}{where}",
                f"{who} never {does} {what}{where}",
                f"nobody {does} {what}{where}",
                f"{who} {does} {what} {words.PLACES[place]}",
            )
        )
    else:
        other_reason = rng.choice([choice for choice in words.REASONS if choice != reason])
        other_deed = rng.choice([choice for choice in words.DEEDS if choice != deed])
        hypothesis = rng.choice(
            (
                f"{who} {does} {what}{where} {other_reason}",
                f"{who} {does} {what} {other_reason}",
                f"{who} {rng.choice((other_deed, words.DEEDS[other_deed][0]))} {what}{where}",
            )
        )
    if rng.random() < 0.04:  # label noise
        label = rng.choice(("entailment", "neutral", "contradiction"))
    return premise, hypothesis, label


def _common_first(rng: random.Random, choices: Sequence[str]) -> str:
    """A word drawn by a Zipf distribution: rare words occur a few times, so no trial learns them all."""
    return rng.choices(choices, weights=[1 / (rank + 4) for rank in range(len(choices))])[0]
