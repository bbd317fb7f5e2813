"""Only the embedding rows of seen words are trained, while the module's state is the whole table."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModel,
    CanineConfig,
    CanineModel,
    DebertaV2Config,
    DebertaV2Model,
    ElectraConfig,
    ElectraModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
    XLNetConfig,
    XLNetModel,
)

from tutti.modeling.seen_words import SeenEmbedding, train_seen_words

SEEN = [0, 1, 2, 3, 7, 11, 12, 19]
SMALL = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}


def seen(*ids: int, vocabulary: int = 40) -> torch.Tensor:
    return torch.isin(torch.arange(vocabulary), torch.tensor(ids))


@pytest.fixture
def tables() -> tuple[nn.Embedding, SeenEmbedding]:
    torch.manual_seed(0)
    whole = nn.Embedding(40, 4, padding_idx=1)
    return whole, SeenEmbedding(copy.deepcopy(whole), seen=seen(*SEEN))


def test_every_word_has_its_vector_and_a_seen_one_its_gradient(tables):
    whole, split = tables
    anything = torch.arange(40).reshape(4, 10)
    assert torch.equal(split.eval()(anything), whole(anything))
    ids = torch.tensor([[2, 7, 7, 1], [19, 2, 1, 1]])
    weights = torch.rand(2, 4, 4)
    for table in (whole, split.train()):
        (table(ids) * weights).sum().backward()
    assert split.weight.shape == (len(SEEN), 4)
    assert torch.equal(split.weight.grad, whole.weight.grad[SEEN])
    assert not split.weight.grad[1].any()  # of the padding token


def test_its_state_is_the_whole_table(tables):
    whole, split = tables
    assert list(split.state_dict()) == ["weight"]
    assert torch.equal(split.state_dict()["weight"], whole.weight)
    with torch.no_grad():
        split.weight += 1
    changed = split.state_dict()["weight"]
    assert torch.equal(changed[SEEN], whole.weight[SEEN] + 1)
    assert torch.equal(changed[~seen(*SEEN)], whole.weight[~seen(*SEEN)])
    split.load_state_dict(whole.state_dict())
    assert torch.equal(split.state_dict()["weight"], whole.weight)
    with pytest.raises(RuntimeError, match="weight"):
        split.load_state_dict({})


@pytest.mark.parametrize(
    "encoder",
    [
        RobertaModel(RobertaConfig(**SMALL, pad_token_id=1)),  # numbers positions from the padding id
        ElectraModel(ElectraConfig(**SMALL, embedding_size=4)),
        AlbertModel(AlbertConfig(**SMALL, embedding_size=4)),
        DebertaV2Model(DebertaV2Config(**SMALL)),
        XLNetModel(XLNetConfig(vocab_size=40, d_model=8, n_layer=2, n_head=2, d_inner=8)),
    ],
    ids=lambda encoder: type(encoder).__name__,
)
def test_an_encoder_computes_what_it_did_and_is_saved_as_it_was(encoder: PreTrainedModel, tmp_path):
    ids = torch.tensor([[0, 2, 7, 33], [19, 2, 1, 1]])
    inputs = {"input_ids": ids, "attention_mask": (ids != 1).long()}
    before = encoder.eval()(**inputs).last_hidden_state
    weights = sum(weight.numel() for weight in encoder.parameters())
    train_seen_words(encoder, seen(*SEEN, vocabulary=20))
    table = encoder.get_input_embeddings()
    assert isinstance(table, SeenEmbedding)
    assert weights - sum(weight.numel() for weight in encoder.parameters()) == 32 * table.embedding_dim
    assert torch.equal(encoder(**inputs).last_hidden_state, before)
    encoder.save_pretrained(tmp_path)
    assert torch.equal(AutoModel.from_pretrained(tmp_path).eval()(**inputs).last_hidden_state, before)


def test_a_table_is_left_whole_where_most_of_it_is_seen_or_there_is_none():
    encoder = RobertaModel(RobertaConfig(**SMALL))
    table = encoder.get_input_embeddings()
    train_seen_words(encoder, seen(*range(31)))
    assert encoder.get_input_embeddings() is table
    train_seen_words(encoder, seen(*SEEN, vocabulary=41))  # includes an id outside the table
    assert encoder.get_input_embeddings() is table
    hashed = CanineModel(CanineConfig(**{**SMALL, "num_hash_functions": 2, "num_hash_buckets": 16}))
    train_seen_words(hashed, seen(*SEEN))
    assert not any(isinstance(module, SeenEmbedding) for module in hashed.modules())
