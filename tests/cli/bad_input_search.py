"""Bad input in what the search is asked: conditions, grids, known points, older studies."""

from __future__ import annotations

from collections.abc import Sequence

from bad_input_changes import Case, both, space, yaml

POOLING = "pooling: {type: categorical, choices: [cls, mean]}"
RATE = "learning_rate: {type: log_uniform, low: 1.0e-4, high: 1.0e-3}"
WARM = both(yaml("study: moods", "study: later"), yaml("trials: 1", "trials: 1\n  warm_start: [moods]"))

SEARCH: dict[str, Sequence[Case]] = {
    "The search": (
        Case(
            "a condition names a key that the study does not have",
            space("head_dropout: {type: uniform, low: 0.0, high: 0.1, when: {pooling: cls}}"),
        ),
        Case(
            "a condition asks for a value that its key cannot have",
            space(f"{POOLING}\n  {RATE[:-1]}, when: {{pooling: maen}}}}"),
        ),
        Case(
            "conditions lead in a circle",
            space(
                f"{POOLING[:-1]}, when: {{adapter: lora}}}}\n"
                "  adapter: {type: categorical, choices: [lora], when: {pooling: cls}}"
            ),
        ),
        Case("a choice that is there twice", space("pooling: {type: categorical, choices: [mean, mean]}")),
        Case("a choice that is a list", space("pooling: {type: categorical, choices: [[cls]]}")),
        Case("objectives without one", yaml("trials: 1", "trials: 1\n  objectives:")),
        Case("true for a number of trials", yaml("trials: 1", "trials: true")),
        Case("a grid over a range without steps", yaml("trials: 1", "trials: 1\n  sampler: grid")),
        Case(
            "a grid of fewer points than trials", both(space(POOLING), yaml("trials: 1", "trials: 3\n  sampler: grid"))
        ),
        Case("a known point of an unknown key", yaml("trials: 1", "trials: 1\n  enqueue: [{learningrate: 3.0e-4}]")),
        Case(
            "a known point outside of the search space",
            yaml("trials: 1", "trials: 1\n  enqueue: [{learning_rate: 0.3}]"),
        ),
        Case("an older study that is not there", yaml("trials: 1", "trials: 1\n  warm_start: [mods]")),
        Case(
            "an older study of another metric", both(WARM, yaml("metric: macro_f1", "metric: accuracy")), finished=True
        ),
        Case(
            "an older study with no trial that the search space could draw",
            both(WARM, yaml("low: 1.0e-4, high: 1.0e-3", "low: 1.0e-2, high: 1.0e-1")),
            finished=True,
        ),
        Case(
            "an older study and a sampler that does not learn",
            both(WARM, yaml("trials: 1", "trials: 1\n  sampler: random")),
            finished=True,
        ),
        Case("an objective that is not known", yaml("trials: 1", "trials: 1\n  objectives: [score, second]")),
        Case(
            "objectives of which nothing is to be good", yaml("trials: 1", "trials: 1\n  objectives: [seconds, disk]")
        ),
        Case(
            "several objectives and a scheduler",
            yaml("trials: 1", "trials: 1\n  objectives: [score, seconds]\n  scheduler: asha"),
        ),
        Case(
            "several objectives and a sampler for one",
            yaml("trials: 1", "trials: 1\n  objectives: [score, seconds]\n  sampler: cmaes"),
        ),
        Case(
            "an older study that has not measured an objective",
            both(WARM, yaml("trials: 1", "trials: 1\n  objectives: [score, disk]")),
            finished=True,
        ),
        Case(
            "several trials, and nothing that varies",
            both(yaml(f"search_space:\n  {RATE}\n", ""), yaml("trials: 1", "trials: 3")),
        ),
        Case(
            "a population of which nothing may change",
            both(space(POOLING), yaml("trials: 1", "trials: 4\n  scheduler: pbt")),
        ),
        Case("a population of too few trials", yaml("trials: 1", "trials: 3\n  scheduler: pbt")),
        Case(
            "a population that is to be out of patience",
            yaml("trials: 1", "trials: 4\n  scheduler: pbt\n  patience: 2"),
        ),
    )
}
