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
            ["search_space.head_dropout.when.pooling", "the search space varies or training: sets"],
            space("head_dropout: {type: uniform, low: 0.0, high: 0.1, when: {pooling: cls}}"),
        ),
        Case(
            "a condition asks for a value that its key cannot have",
            ["search_space.learning_rate.when.pooling", "cls, mean", "'maen'", "did you mean 'mean'"],
            space(f"{POOLING}\n  {RATE[:-1]}, when: {{pooling: maen}}}}"),
        ),
        Case(
            "conditions lead in a circle",
            ["search_space.pooling.when must not lead back", "pooling -> adapter -> pooling"],
            space(
                f"{POOLING[:-1]}, when: {{adapter: lora}}}}\n"
                "  adapter: {type: categorical, choices: [lora], when: {pooling: cls}}"
            ),
        ),
        Case(
            "a choice that is there twice",
            ["search_space.pooling.choices.1 must differ from the choices before it; got mean"],
            space("pooling: {type: categorical, choices: [mean, mean]}"),
        ),
        Case(
            "an objective that is a metric",
            ["search.objectives.0 must be one of score, gain, seconds", "got 'accuracy'; choose one of them."],
            yaml("trials: 1", "trials: 1\n  objectives: [accuracy]"),
        ),
        Case(
            "a choice that is a list",
            ["search_space.pooling.choices.0 must be a text, a number, true, false or null; got a list;"],
            space("pooling: {type: categorical, choices: [[cls]]}"),
        ),
        Case(
            "objectives without one",
            ["search.objectives must be a list"],
            yaml("trials: 1", "trials: 1\n  objectives:"),
        ),
        Case(
            "a number of trials in quotes",
            ["search.trials must be a whole number; got '+3'"],
            yaml("trials: 1", "trials: '+3'"),
        ),
        Case(
            "true for a number of trials",
            ["search.trials must be a whole number; got true"],
            yaml("trials: 1", "trials: true"),
        ),
        Case(
            "a seed that numpy does not take",
            ["search.seed must be below 4294967296"],
            yaml("trials: 1", "trials: 1\n  seed: 4294967296"),
        ),
        Case(
            "a grid over a range without steps",
            ["search_space.learning_rate must have finitely many values", "name another sampler"],
            yaml("trials: 1", "trials: 1\n  sampler: grid"),
        ),
        Case(
            "a grid of fewer points than trials",
            ["search.trials must be at most 2", "got 3"],
            both(space(POOLING), yaml("trials: 1", "trials: 3\n  sampler: grid")),
        ),
        Case(
            "a known point of an unknown key",
            ["search.enqueue.0.learningrate must be a key of the search space", "did you mean 'learning_rate'"],
            yaml("trials: 1", "trials: 1\n  enqueue: [{learningrate: 3.0e-4}]"),
        ),
        Case(
            "a known point outside of the search space",
            ["search.enqueue.0.learning_rate must be from 0.0001 to 0.001", "got 0.3"],
            yaml("trials: 1", "trials: 1\n  enqueue: [{learning_rate: 0.3}]"),
        ),
        Case(
            "an older study that is not there",
            ["search.warm_start.0 must be the folder of a study", "studies there: none"],
            yaml("trials: 1", "trials: 1\n  warm_start: [mods]"),
        ),
        Case(
            "an older study of another metric",
            ["search.warm_start.0 must have this study's tasks and metrics, mood (accuracy)", "mood (macro_f1)"],
            both(WARM, yaml("metric: macro_f1", "metric: accuracy")),
            finished=True,
        ),
        Case(
            "an older study with no trial that the search space could draw",
            ["the older study 'moods' must have a finished trial", "1 finished trial, none of which fits"],
            both(WARM, yaml("low: 1.0e-4, high: 1.0e-3", "low: 1.0e-2, high: 1.0e-1")),
            finished=True,
        ),
        Case(
            "an older study and a sampler that does not learn",
            ["search.warm_start must go with a sampler that learns", "the sampler random"],
            both(WARM, yaml("trials: 1", "trials: 1\n  sampler: random")),
            finished=True,
        ),
        Case(
            "an objective that is not known",
            ["search.objectives.1 must be one of score, gain, seconds, parameters, disk", "did you mean 'seconds'"],
            yaml("trials: 1", "trials: 1\n  objectives: [score, second]"),
        ),
        Case(
            "objectives of which nothing is to be good",
            ["search.objectives must have score or gain among them", "got seconds, disk"],
            yaml("trials: 1", "trials: 1\n  objectives: [seconds, disk]"),
        ),
        Case(
            "several objectives and a scheduler",
            ["search.scheduler must be none with other objectives", "got asha"],
            yaml("trials: 1", "trials: 1\n  objectives: [score, seconds]\n  scheduler: asha"),
        ),
        Case(
            "several objectives and a sampler for one",
            ["search.sampler must be one for several objectives", "got cmaes", "name tpe, gp, nsgaii or nsgaiii"],
            yaml("trials: 1", "trials: 1\n  objectives: [score, seconds]\n  sampler: cmaes"),
        ),
        Case(
            "an older study that has not measured an objective",
            ["search.warm_start.0 must have measured this study's objectives, score, disk", "got score;"],
            both(WARM, yaml("trials: 1", "trials: 1\n  objectives: [score, disk]")),
            finished=True,
        ),
        Case(
            "several trials, and nothing that varies",
            ["search.trials must be 1 without a search space, as all trials would be the same; got 3"],
            both(yaml(f"search_space:\n  {RATE}\n", ""), yaml("trials: 1", "trials: 3")),
        ),
        Case(
            "the scheduler is unknown",
            ["search.scheduler must be one of asha, hyperband, median, pbt, none", "did you mean 'hyperband'"],
            yaml("trials: 1", "trials: 1\n  scheduler: hyper-band"),
        ),
        Case(
            "a population of which nothing may change",
            ["search_space must vary a key that may change while a trial trains", "got pooling"],
            both(space(POOLING), yaml("trials: 1", "trials: 4\n  scheduler: pbt")),
        ),
        Case(
            "a population of too few trials",
            ["search.trials must be at least 4 with the scheduler pbt", "got 3"],
            yaml("trials: 1", "trials: 3\n  scheduler: pbt"),
        ),
        Case(
            "a population that is to be out of patience",
            ["search.patience must be left out with the scheduler pbt"],
            yaml("trials: 1", "trials: 4\n  scheduler: pbt\n  patience: 2"),
        ),
        Case(
            "a limit of no hours",
            ["search.max_hours must be above 0", "got 0"],
            yaml("trials: 1", "trials: 1\n  max_hours: 0"),
        ),
        Case(
            "a target that is no number",
            ["search.target_score must be a number", "got 'high'"],
            yaml("trials: 1", "trials: 1\n  target_score: high"),
        ),
        Case(
            "a trial of no hours",
            ["search.max_trial_hours must be above 0", "got -1"],
            yaml("trials: 1", "trials: 1\n  max_trial_hours: -1"),
        ),
        Case(
            "no patience at all",
            ["search.patience must be at least 1", "got 0"],
            yaml("trials: 1", "trials: 1\n  patience: 0"),
        ),
        Case(
            "`--trials` that is no number",
            ["'--trials'", "12, or +12", "got '+few'"],
            command="tune study.yaml --trials +few",
        ),
    ),
}
