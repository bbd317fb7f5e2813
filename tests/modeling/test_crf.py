"""Linear-chain random fields against the enumeration of all paths, and heads of tags with units that rows lack."""

from __future__ import annotations

import itertools

import pytest
import torch

from tutti.modeling.crf import log_partition, marginals, negative_log_likelihood, new_transitions
from tutti.modeling.kinds.protocol import LossOptions
from tutti.modeling.kinds.registry import head_kind

TAGS, UNITS = 5, 4
LENGTHS = torch.tensor([4, 2, 1, 0])


@pytest.fixture
def chain() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(len(LENGTHS), UNITS, TAGS, generator=generator)
    return scores, new_transitions(TAGS) + torch.randn(TAGS + 2, TAGS, generator=generator)


def paths(scores: torch.Tensor, length: int, transitions: torch.Tensor) -> dict[tuple[int, ...], torch.Tensor]:
    """By path of so many tags its score."""
    found = {}
    for path in itertools.product(range(TAGS), repeat=length):
        total = transitions[TAGS, path[0]] + transitions[TAGS + 1, path[-1]]
        total = total + sum(scores[unit, tag] for unit, tag in enumerate(path))
        found[path] = total + sum(transitions[one, other] for one, other in itertools.pairwise(path))
    return found


def test_the_partition_and_the_marginals_are_those_of_all_paths(chain):
    scores, transitions = chain
    partition, probable = log_partition(scores, LENGTHS, transitions), marginals(scores, LENGTHS, transitions)
    for row, length in enumerate(LENGTHS.tolist()):
        if not length:
            assert partition[row] == 0
            continue
        by_path = paths(scores[row], length, transitions)
        total = torch.stack([*by_path.values()]).logsumexp(dim=0)
        torch.testing.assert_close(partition[row], total)
        expected = torch.zeros(length, TAGS)
        for path, score in by_path.items():
            expected[torch.arange(length), list(path)] += (score - total).exp()
        torch.testing.assert_close(probable[row, :length], expected, atol=1e-5, rtol=1e-4)
        assert (expected[0, [2, 4]] == 0).all()  # no entity goes on where none has begun


def test_tags_that_are_not_known_are_summed_over(chain):
    scores, transitions = chain
    labels = torch.tensor([[1, -2, 0, 3], [0, 0, -1, -1], [3, -1, -1, -1], [-1, -1, -1, -1]])
    losses = negative_log_likelihood(scores, labels, LENGTHS, transitions)
    by_path = paths(scores[0], 4, transitions)
    fitting = torch.stack([score for path, score in by_path.items() if (path[0], path[2], path[3]) == (1, 0, 3)])
    torch.testing.assert_close(losses[0], torch.stack([*by_path.values()]).logsumexp(0) - fitting.logsumexp(0))
    assert losses[3] == 0


@pytest.mark.parametrize("tags", ["softmax", "crf"])
def test_units_that_a_row_lacks_change_neither_loss_nor_predictions(tags):
    torch.manual_seed(0)
    kind, logits = head_kind("tokens", tags=tags), torch.randn(2, 3, TAGS)
    scale = new_transitions(TAGS) if tags == "crf" else torch.ones(())
    labels = torch.tensor([[1, 2, 0], [0, -2, 3]])
    wider, more = torch.zeros(2, 6, TAGS), torch.full((2, 6), -1)
    wider[:, :3], more[:, :3] = logits, labels
    options = LossOptions()
    losses = [kind.losses(*given, scale=scale, options=options) for given in ((logits, labels), (wider, more))]
    torch.testing.assert_close(*losses)
    predicted = kind.predict(wider, TAGS, scale=scale)
    torch.testing.assert_close(predicted[:, :3], kind.predict(logits, TAGS, scale=scale))
    assert predicted[:, 3:].isnan().all()
    torch.testing.assert_close(predicted[:, :3].sum(dim=-1), torch.ones(2, 3))
    assert (kind.divergences(wider, wider, scale=scale) == 0).all()


def test_the_loss_of_tags_is_the_mean_cross_entropy_of_known_ones():
    kind, logits = head_kind("tokens"), torch.randn(1, 3, TAGS, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, -2, 4]])
    expected = -logits.log_softmax(-1)[0, [0, 2], [1, 4]].mean()
    torch.testing.assert_close(kind.losses(logits, labels, scale=torch.ones(()), options=LossOptions())[0], expected)
    surer = kind.losses(logits, labels, scale=torch.ones(()), options=LossOptions(focal_gamma=2.0))
    assert surer[0] < expected
