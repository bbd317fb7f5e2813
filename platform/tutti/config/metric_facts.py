"""The facts of every metric: what it is computed from, for which tasks, and which way is better.

The config, the documentation and the functions of ``tutti.tasks.metrics`` all take names and facts from ``FACTS``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from tutti.errors import Fault, nearest

KindName = Literal[
    "classes",
    "ordered",
    "choice",
    "labels",
    "value",
    "values",
    "preference",
    "text",
    "tokens",
    "overlapping",
    "span",
    "tags",
]
Needs = Literal["decisions", "probabilities", "values", "texts", "likelihood"]

KIND_WORDS: Mapping[str, str] = {
    "classes": "classes",
    "ordered": "ordered classes",
    "choice": "a row's own candidates",
    "labels": "several labels per row",
    "value": "one number per row",
    "values": "several numbers per row",
    "preference": "pairs of which one text is better",
    "text": "a text per row",
    "tokens": "entities",
    "overlapping": "entities that may overlap",
    "span": "one span per row",
    "tags": "a tag per word",
}
_CLASSES: tuple[KindName, ...] = ("classes", "ordered")
_NAMED: tuple[KindName, ...] = ("classes", "ordered", "labels")
_RANKED: tuple[KindName, ...] = (*_NAMED, "choice")  # whose outputs have an order by probability
_NUMBERS: tuple[KindName, ...] = ("value", "values")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a metric without its function.

    Attributes:
        name: as in a study file.
        needs: what it compares with the labels: decisions (classes, or 0/1 per label), probabilities, values, texts, or
            the likelihood that the model gives the labels, for which nothing has to be predicted.
        kinds: the kinds of tasks that it fits.
        higher_is_better: whether the number that users know by this name is better where it is higher.
        lowest, highest: the range of that number; None where it has no bound.
        scale_free: whether it stays the same if all predictions are scaled and shifted alike. Of probabilities these
            are the metrics of their order alone.
        fewest_classes, most_classes: numbers of classes that it is limited to, in tasks of classes.
        instead: the metric to use for other numbers of classes.
        function, options: which function of ``tutti.tasks.metrics`` computes it, of the module that is called as what
            it ``needs``; by default the one of its name.
    """

    name: str
    needs: Needs
    kinds: tuple[KindName, ...]
    higher_is_better: bool = True
    lowest: float | None = 0
    highest: float | None = 1
    scale_free: bool = False
    fewest_classes: int = 2
    most_classes: int | None = None
    instead: str | None = None
    function: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_share(self) -> bool:
        """Whether it has a range of -1 or 0 to 1, so that a hundredth is a point."""
        return self.lowest in (-1, 0) and self.highest == 1

    @property
    def best(self) -> float | None:
        """The highest score, where scores are negated if lower is better; None where there is no bound."""
        if self.higher_is_better:
            return self.highest
        return None if self.lowest is None else 0.0 - self.lowest


def _f_scores(beta: str) -> Iterator[Facts]:
    """F-beta of classes and labels; ``beta`` as in the names, with "1" for F1."""
    decided = Facts(name="", needs="decisions", kinds=_NAMED, function="f_score")
    for average in ("macro", "micro", "weighted", "samples", "binary"):
        options = {"beta": float(beta), "average": average}
        if average == "binary":
            binary = replace(decided, name=f"f{beta}", kinds=_CLASSES, most_classes=2, instead=f"macro_f{beta}")
            yield replace(binary, options=options)
        else:
            kinds: tuple[KindName, ...] = ("labels",) if average == "samples" else _NAMED
            yield replace(decided, name=f"{average}_f{beta}", kinds=kinds, options=options)


def _table() -> tuple[Facts, ...]:
    decided = Facts(name="balanced_accuracy", needs="decisions", kinds=_CLASSES)
    kappa = replace(decided, name="cohen_kappa", lowest=-1, function="kappa", options={"power": 0})
    of_order = Facts(name="roc_auc", needs="probabilities", kinds=_NAMED, scale_free=True)
    map_at = replace(of_order, kinds=_RANKED, function="mean_average_precision_at")
    first = replace(of_order, name="mrr", kinds=(*_CLASSES, "choice"), function="mean_reciprocal_rank")
    top_k = replace(of_order, kinds=_CLASSES, instead="accuracy", function="top_k_accuracy")
    of_likelihood = Facts(name="log_loss", needs="probabilities", kinds=_RANKED, higher_is_better=False, highest=None)
    correlation = Facts(name="pearson", needs="values", kinds=_NUMBERS, lowest=-1, scale_free=True)
    of_text = Facts(
        name="perplexity", needs="likelihood", kinds=("text",), higher_is_better=False, lowest=1, highest=None
    )
    written = Facts(name="exact_match", needs="texts", kinds=("text",))
    error = Facts(name="rmse", needs="values", kinds=_NUMBERS, higher_is_better=False, highest=None)
    return (
        *_f_scores("1"),
        replace(decided, name="accuracy", kinds=(*_CLASSES, "choice")),
        decided,
        replace(decided, name="matthews", lowest=-1),
        kappa,
        replace(kappa, name="linear_kappa", kinds=("ordered",), options={"power": 1}),
        replace(kappa, name="quadratic_kappa", kinds=("ordered",), options={"power": 2}),
        *_f_scores("0.5"),
        *_f_scores("2"),
        replace(decided, name="subset_accuracy", kinds=("labels",)),
        replace(decided, name="hamming_loss", kinds=("labels",), higher_is_better=False),
        of_likelihood,
        replace(of_likelihood, name="brier", kinds=_NAMED, highest=2),
        of_order,
        replace(of_order, name="micro_roc_auc"),
        replace(of_order, name="average_precision"),
        *(replace(map_at, name=f"map_at_{k}", options={"k": k}) for k in (3, 5, 10)),
        first,
        *(replace(top_k, name=f"top_{k}_accuracy", fewest_classes=k + 1, options={"k": k}) for k in (3, 5)),
        correlation,
        replace(correlation, name="spearman"),
        replace(correlation, name="kendall"),
        replace(correlation, name="pearson_spearman"),
        Facts(name="r2", needs="values", kinds=_NUMBERS, lowest=None),
        error,
        replace(error, name="mae"),
        Facts(name="neg_mse", needs="values", kinds=_NUMBERS, lowest=None, highest=0),
        replace(error, name="mcrmse", kinds=("values",), function="rmse"),  # the mean over columns, as of all of values
        Facts(name="pairwise_accuracy", needs="values", kinds=("preference",)),
        of_text,
        replace(of_text, name="bits_per_character", lowest=0),
        written,
        *(
            replace(written, name=f"rouge_{n}", function="rouge", options={"variant": f"rouge{n.upper()}"})
            for n in "12l"
        ),
        replace(written, name="bleu", highest=100),
        replace(written, name="chrf", highest=100),
        *_of_tags(),
    )


def _of_tags() -> Iterator[Facts]:
    """The metrics of entities."""
    tagged = Facts(name="", needs="decisions", kinds=("tokens", "overlapping"))
    for average, name in (("micro", "entity"), ("macro", "entity_macro")):
        for beta in ("1", "0.5", "2", "5"):
            options = {"beta": float(beta), "average": average}
            yield replace(tagged, name=f"{name}_f{beta}", function="entity_f_score", options=options)
    for name in ("tag", "token"):
        for beta in ("1", "5"):
            yield replace(tagged, name=f"{name}_f{beta}", function=f"{name}_f_score", options={"beta": float(beta)})
    for name in ("token_jaccard", "token_row_f1", "entity_exact_match"):
        yield replace(tagged, name=name, kinds=("tokens", "span"))
    for name in ("squad_f1", "squad_exact_match"):
        yield replace(tagged, name=name, needs="texts", kinds=("span",))
    yield replace(tagged, name="tag_accuracy", kinds=("tokens", "tags"))
    yield replace(tagged, name="tag_macro_f1", kinds=("tags",))


FACTS: Mapping[str, Facts] = {facts.name: facts for facts in _table()}
"""The facts of every metric by name, in the order in which documentation and messages list them."""

_OTHER_NAMES: Mapping[str, str] = {
    "acc": "accuracy",
    "seqeval": "entity_f1",
    "span_f1": "entity_f1",
    "ap": "average_precision",
    "auc": "roc_auc",
    "auroc": "roc_auc",
    "brier_score": "brier",
    "cross_entropy": "log_loss",
    "f1_binary": "f1",
    "hamming": "hamming_loss",
    "kappa": "cohen_kappa",
    "logloss": "log_loss",
    "map": "average_precision",
    "mcc": "matthews",
    "mean_reciprocal_rank": "mrr",
    "mean_absolute_error": "mae",
    "mse": "neg_mse",
    "pair_accuracy": "pairwise_accuracy",
    "pairwise_acc": "pairwise_accuracy",
    "pr_auc": "average_precision",
    "qwk": "quadratic_kappa",
}  # names under which others know a metric; suggested, but not accepted


OF_WORDS: Mapping[str, str] = {"squad_f1": "token_row_f1", "squad_exact_match": "entity_exact_match"}
"""Of metrics of marked pieces as texts, which predictions do not have, the ones of words by which these are decided."""

_BY_LAYOUT: Mapping[tuple[str, str], tuple[KindName, str]] = {
    ("instructions", "None"): ("text", "perplexity"),
    ("tokens", "None"): ("tokens", "entity_f1"),
    ("tokens", "many"): ("tokens", "entity_f1"),
    ("tokens", "overlapping"): ("overlapping", "entity_f1"),
    ("tokens", "one"): ("span", "token_row_f1"),
    ("tokens", "none"): ("tags", "tag_accuracy"),
}
"""Of layouts that tell the kind of a task, with its key ``spans``: that kind, and the default metric."""


def _by_layout(task: Mapping[str, Any]) -> tuple[KindName, str] | None:
    return _BY_LAYOUT.get((str(task.get("layout")), str(task.get("spans"))))


def names_for(kind: str) -> tuple[str, ...]:
    """The metrics that fit a kind of task."""
    return tuple(name for name, facts in FACTS.items() if kind in facts.kinds)


def kinds_of(metric: Any) -> tuple[KindName, ...]:
    """The kinds of tasks that a metric of a raw study file fits, a name or a mapping; all for what is neither."""
    if isinstance(metric, Mapping):
        by_need = dict.fromkeys(("decisions", "probabilities"), (*_RANKED, "tokens", "overlapping", "span", "tags")) | {
            "values": (*_NUMBERS, "preference")
        }
        by_need |= {"texts": ("text",), "likelihood": ("text",)}
        return by_need.get(str(metric.get("needs")), get_args(KindName))
    known = FACTS.get(metric) if isinstance(metric, str) else None
    return known.kinds if known else get_args(KindName)


def kind_of(task: Mapping[str, Any]) -> KindName:
    """The kind of a task of a raw study file, by its keys."""
    columns = task.get("columns")
    columns = columns if isinstance(columns, Mapping) else {}
    if told := _by_layout(task):
        return told[0]
    if columns.get("choices"):
        return "choice"
    if columns.get("better") or columns.get("worse"):
        return "preference"
    if columns.get("labels") or columns.get("separator"):
        return "labels"
    if columns.get("values"):
        return "values"
    if task.get("ordered"):
        return "ordered"
    return "value" if needs_values(task.get("metric", default_metric(task))) else "classes"


def default_metric(task: Mapping[str, Any]) -> str:
    """The metric of a task of a raw study file that names none."""
    columns = task.get("columns")
    columns = columns if isinstance(columns, Mapping) else {}
    if columns.get("choices"):
        return "accuracy"
    if columns.get("better") or columns.get("worse"):
        return "pairwise_accuracy"
    return (_by_layout(task) or ("classes", "macro_f1"))[1]


def needs_values(metric: Any) -> bool:
    """Whether a metric of a raw study file, a name or a mapping, is one that only numbers have."""
    return not set(kinds_of(metric)) - {*_NUMBERS, "preference"}


def needs_texts(metric: Any) -> bool:
    """Whether a metric of a raw study file, a name or a mapping, compares texts that a model writes."""
    facts = FACTS.get(metric) if isinstance(metric, str) else None
    return (metric.get("needs") if isinstance(metric, Mapping) else facts and facts.needs) == "texts"


def kind_fault(metric: Facts, kind: str, *, what: str) -> Fault | None:
    """The fault of a metric that does not fit a kind of task; None where it fits."""
    kinds = metric.kinds
    if kind in kinds:
        return None
    got = f"{metric.name!r}, which is for {' or '.join(KIND_WORDS[each] for each in kinds)}"
    remedy = f"use one of {', '.join(names_for(kind))}"
    if kind == "classes" and kinds == ("ordered",):
        remedy = f"set `ordered: true` where the classes have an order, or {remedy}"
    return Fault(what, f"be a metric for {KIND_WORDS[kind]}", got, remedy)


def classes_fault(metric: Facts, classes: int, *, what: str) -> Fault | None:
    """The fault of a metric that is not for this number of classes, such as ``f1`` for three; None where it is."""
    if metric.fewest_classes <= classes <= (metric.most_classes or classes):
        return None
    count = "two" if metric.most_classes == 2 else f"{metric.fewest_classes} or more"
    rule, got = f"be a metric for {classes} classes", f"{metric.name!r}, which is for {count}"
    return Fault(what, rule, got, f"use {metric.instead} instead")


def nearest_metric(name: str) -> str:
    """The remedy for an unknown name: the metric that is probably meant, or all of them."""
    plain = re.sub(r"[^a-z0-9.]+", "_", name.casefold().replace("@", "_at_")).strip("_")
    meant = _OTHER_NAMES.get(plain, plain)
    by_words = {tuple(sorted(known.split("_"))): known for known in FACTS}
    meant = by_words.get(tuple(sorted(meant.split("_"))), meant)  # f1_macro
    if meant in FACTS:
        return f"did you mean {meant!r}? Correct the name"
    return nearest(plain, FACTS, otherwise=f"choose one of {', '.join(FACTS)}, or name a file with one of your own")
