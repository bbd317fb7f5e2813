"""Metrics of texts that a model writes, by the libraries that others measure with.

Labels and predictions are ``(rows,)`` object arrays of str. What a row contributes is computed once for each pair of
texts: estimates draw the same rows thousands of times.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np

from tutti.errors import ConfigError, Fault

_PAIRS = 2**18  # of texts whose scores are kept
_INSTALL = "install it with: pip install 'tutti[text]'"


def exact_match(labels: np.ndarray, written: np.ndarray, *, outputs: int) -> float:
    """The share of rows whose text is that of the label, apart from white space around it."""
    same = [one.strip() == other.strip() for one, other in zip(labels, written, strict=True)]
    return float(np.mean(same)) if same else float("nan")


def rouge(labels: np.ndarray, written: np.ndarray, *, outputs: int, variant: str) -> float:
    """The mean F1 of ROUGE (Lin 2004), with stemming, as of the library ``rouge-score``.

    Args:
        variant: ``rouge1`` and ``rouge2`` of words and pairs of words, ``rougeL`` of the longest common subsequence.
    """
    scores = [_rouge(variant, one, other) for one, other in zip(labels, written, strict=True)]
    return float(np.mean(scores)) if scores else float("nan")


def bleu(labels: np.ndarray, written: np.ndarray, *, outputs: int) -> float:
    """BLEU of all rows together (Papineni et al. 2002), from 0 to 100, as of the library ``sacrebleu``.

    Of a single row that of its n-grams up to its length, as sacrebleu has it for sentences.
    """
    return _of_corpus("bleu", labels, written)


def chrf(labels: np.ndarray, written: np.ndarray, *, outputs: int) -> float:
    """chrF2 of all rows together (Popović 2015), from 0 to 100, as of the library ``sacrebleu``."""
    return _of_corpus("chrf", labels, written)


def perplexity(labels: np.ndarray, likelihoods: np.ndarray, *, outputs: int) -> float:
    """The exponential of the mean negative log-likelihood of the labels' tokens.

    Args:
        likelihoods: ``(rows, 2)``, the log-likelihood of each label, and its number of tokens.
    """
    total, tokens = likelihoods.astype(np.float64).sum(axis=0)
    return float(np.exp(min(-total / tokens, 700.0))) if tokens else float("nan")


def bits_per_character(labels: np.ndarray, likelihoods: np.ndarray, *, outputs: int) -> float:
    """The bits that the labels take under the model, divided by their characters: one scale for all tokenizers.

    Args:
        likelihoods: as of ``perplexity``; of labels that were cut they are too high for all of their characters.
    """
    characters = sum(map(len, labels))
    return float(-likelihoods[:, 0].sum(dtype=np.float64) / np.log(2) / characters) if characters else float("nan")


@lru_cache(maxsize=_PAIRS)
def _rouge(variant: str, label: str, written: str) -> float:
    return float(_rouge_scorer(variant).score(label, written)[variant].fmeasure)


@cache
def _rouge_scorer(variant: str) -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise _missing("rouge-score", variant) from error
    return RougeScorer([variant], use_stemmer=True)


def _of_corpus(name: str, labels: np.ndarray, written: np.ndarray) -> float:
    if not len(labels):
        return float("nan")
    counts = [_counts(name, one, other) for one, other in zip(labels, written, strict=True)]
    total = np.sum(counts, axis=0).tolist()
    # The one way to add up what rows contribute, which sacrebleu's own resampling takes too.
    return float(_corpus_metric(name, single=len(labels) == 1)._compute_score_from_stats(total).score)


@lru_cache(maxsize=_PAIRS)
def _counts(name: str, label: str, written: str) -> tuple[float, ...]:
    return tuple(_corpus_metric(name, single=False)._extract_corpus_statistics([written], [[label]])[0])


@cache
def _corpus_metric(name: str, *, single: bool) -> Any:
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise _missing("sacrebleu", name) from error
    return BLEU(effective_order=single) if name == "bleu" else CHRF()


def _missing(package: str, metric: str) -> ConfigError:
    return ConfigError(Fault(f"the metric {metric}", f"have the package {package} that computes it", "none", _INSTALL))
