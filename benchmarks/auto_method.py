"""What stacking and the recipe `auto` bring on unseen rows, and whether the nested estimate of `auto` holds there.

    python benchmarks/auto_method.py [--quick] [--resamples N] [--data FOLDER] [--json FILE]

An ensemble only sees probabilities, so quick models stand for fine-tuned ones: nine small networks on the text's TF-IDF
components and three logistic regressions, trained on 45 % of the rows of a data set. Of the other rows, some are the
validation rows that choose among ten of the models, and the rest are unseen. Each resample draws models and rows anew.
"""

from __future__ import annotations

import argparse
import csv
import json
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from scipy.sparse import hstack
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from tutti.ensembling.procedure import Ballot, Procedure, auto_methods, out_of_fold
from tutti.ensembling.select import Selection
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.metrics import METRICS
from tutti.tasks.scorer import Scorer

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"  # beside the repository
# by name: file, columns of texts, column of labels, analyzer of the texts, metric
DATA_SETS = {
    "TNEWS": ("tianchi/TNEWS_train.csv", (1,), 2, "char", "macro_f1"),
    "EMOTION": ("tianchi/EMOTION_train.csv", (1,), 2, "char", "macro_f1"),
    "OCNLI": ("tianchi/OCNLI_train.csv", (1, 2), 3, "char", "macro_f1"),
    "CoLA": ("glue/CoLA/train.tsv", (3,), 1, "word", "matthews"),
    "SST-2": ("glue/SST-2/train.tsv", (0,), 1, "word", "accuracy"),
}
MODELS, MEMBERS, NETWORKS = 12, 10, 9
COMPONENTS = 120
ROWS = (100, 250, 700)  # validation rows: from 300 on with greedy selection


def models_votes(data: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities ``(MODELS, rows, classes)`` float32 of rows that no model was trained on, and their labels."""
    file, texts, label, analyzer, _ = DATA_SETS[name]
    header = int(name == "SST-2")  # in the other files the first line is a row
    table = pd.read_csv(
        data / file, sep="\t", header=None, skiprows=header, quoting=csv.QUOTE_NONE, on_bad_lines="skip"
    )
    table = table.dropna(subset=[*texts, label])
    classes, labels = np.unique(table[label].astype(str), return_inverse=True)
    order = np.random.default_rng(0).permutation(len(table))
    train, others = np.split(order, [len(order) * 45 // 100])
    features = []
    for length in (1, 2, 3):
        options = {"analyzer": analyzer, "ngram_range": (1, length), "min_df": 2, "sublinear_tf": True}
        columns = [table[column].astype(str).to_numpy() for column in texts]
        counts = hstack([TfidfVectorizer(**options).fit(texts[train]).transform(texts) for texts in columns]).tocsr()
        components = TruncatedSVD(COMPONENTS, random_state=0).fit(counts[train]).transform(counts)
        features.append((counts, 0.3 * components / components[train].std(axis=0)))
    votes = np.zeros((MODELS, len(others), len(classes)), dtype=np.float32)
    for index, vote in enumerate(votes):
        rng = np.random.default_rng(index)
        counts, components = features[index % len(features)]
        if index < NETWORKS:
            model = MLPClassifier(
                int(rng.choice([64, 128, 256])),
                alpha=10 ** rng.uniform(-4, 0),
                learning_rate_init=10 ** rng.uniform(-3.3, -2.2),
                max_iter=int(rng.integers(8, 30)),
                batch_size=64,
                random_state=index,
            )
        else:
            model, components = LogisticRegression(C=10 ** rng.uniform(-0.3, 1.3), max_iter=200), counts
        model.fit(components[train], labels[train])
        vote[:, model.classes_] = model.predict_proba(components[others])
    return votes, labels[others]


def resample(votes: np.ndarray, labels: np.ndarray, *, metric: str, rows: int, seed: int) -> dict[str, float]:
    """Scores of one draw of members and validation rows: on unseen rows by recipe, and what `auto` estimated."""
    rng = np.random.default_rng(seed)
    members, order = rng.permutation(MODELS)[:MEMBERS], rng.permutation(len(labels))
    validation, unseen = order[:rows], order[rows:]
    kind = KINDS["classes"]
    score = Scorer(kind, partial(METRICS[metric].score, outputs=votes.shape[2]))
    ballot = Ballot(votes[members][:, validation], labels[validation], score, np.arange(rows))
    rule = partial(Procedure, standing=ballot.scores, share=1)
    methods = auto_methods(kind, texts=rows)
    auto = partial(rule, selection=Selection(top=5, diversity=0.002), methods=methods, tune=kind.tuner(metric))
    recipes = {
        "single": rule(selection=Selection(top=1), methods=("uniform",)),
        "uniform": rule(selection=Selection(top=5), methods=("uniform",)),
        "stacking": rule(selection=Selection(top=5), methods=("stacking",)),
        "best_option": auto(margin=0),
        "auto": auto(),
    }
    scores = {}
    for name, recipe in recipes.items():
        ensemble = recipe.fit(ballot)
        combined = ensemble.combine(votes[members[ensemble.voters]][:, unseen])
        scores[name] = score(labels[unseen], ensemble.decide(combined))
    estimate = ballot.judge(out_of_fold(recipes["auto"], ballot).decisions).estimate
    covered = float(estimate.low <= scores["auto"] <= estimate.high)
    return {**scores, "estimate": estimate.score, "covered": covered}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help=f"folder of glue/ and tianchi/, by default {DATA}")
    parser.add_argument("--resamples", type=int, default=20, help="draws for each data set and number of rows")
    parser.add_argument("--quick", action="store_true", help="three draws")
    parser.add_argument("--json", type=Path, help="write the results to this file, as one flat object")
    options = parser.parse_args(argv)
    warnings.filterwarnings("ignore", module="sklearn")  # networks that stop early on purpose
    contenders = ("single", "uniform", "stacking", "best_option", "auto")
    table = Table("validation rows", *contenders, "auto's estimate", "in its interval")
    drawn: list[dict[str, float]] = []
    for name in DATA_SETS:
        votes, labels = models_votes(options.data, name)
        for rows in ROWS:
            draws = range(3 if options.quick else options.resamples)
            metric = DATA_SETS[name][-1]
            here = [resample(votes, labels, metric=metric, rows=rows, seed=seed) for seed in draws]
            drawn += here
            means = {column: np.mean([draw[column] for draw in here]) for column in here[0]}
            scores = [f"{means[column]:.4f}" for column in (*contenders, "estimate")]
            table.add_row(f"{name}, {rows}", *scores, f"{means['covered']:.0%}")
    Console().print(table)
    every = {column: np.array([draw[column] for draw in drawn]) for column in drawn[0]}
    points = {
        f"{name}_vs_{base}_points": 100 * (every[name] - every[base])
        for base in ("uniform", "single")
        for name in ("stacking", "best_option", "auto")
    }
    points["auto_vs_stacking_points"] = 100 * (every["auto"] - every["stacking"])
    points["estimate_bias_points"] = 100 * (every["estimate"] - every["auto"])
    for name, differences in points.items():
        print(f"{name}: {differences.mean():+.2f} ± {1.96 * differences.std(ddof=1) / len(drawn) ** 0.5:.2f}")
    results = {name: float(differences.mean()) for name, differences in points.items()}
    results["coverage"] = float(every["covered"].mean())
    print(f"coverage: {results['coverage']:.2f} (0.95 wanted), {len(drawn)} draws")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
