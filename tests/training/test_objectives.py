"""Each objective's loss equals its definition, written out; masks are of tokens, whole words or spans."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoTokenizer,
    ElectraConfig,
    ElectraForPreTraining,
)
from word_backbone import save_decoder

from tutti.config.pretraining import PretrainingSettings
from tutti.data.encode import load_tokenizer
from tutti.errors import BackboneError
from tutti.training.pretraining.batches import TokenBatch
from tutti.training.pretraining.causal import Causal
from tutti.training.pretraining.electra import Electra, sample
from tutti.training.pretraining.masked import Masked, token_outcome
from tutti.training.pretraining.masks import choose_tokens

MASK, PAD = 59 + 4, 0
SETTINGS = PretrainingSettings(learning_rate=1e-3, mask_share=0.3)


@pytest.fixture
def bert(backbone, tmp_path):
    folder = shutil.copytree(backbone, tmp_path / "bert")
    AutoTokenizer.from_pretrained(backbone, mask_token="w59").save_pretrained(folder)
    return str(folder)


@pytest.fixture
def electra(bert, tmp_path):
    small = {"hidden_size": 32, "embedding_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = ElectraConfig(vocab_size=64, intermediate_size=64, max_position_embeddings=32, **small)
    ElectraForPreTraining(config).save_pretrained(tmp_path / "electra")
    AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path / "electra")
    return str(tmp_path / "electra")


def batch_of(*lengths, seed=0):
    """Rows of random words between [CLS] and [SEP], padded."""
    torch.manual_seed(seed)
    is_token = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(4, 60, is_token.shape)
    ids[:, 0] = 2
    ids[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = 3
    return TokenBatch(ids.masked_fill(~is_token, PAD), is_token)


@pytest.mark.parametrize("kind", ["bert", "electra"])
def test_electra_s_loss_is_the_generator_s_and_fifty_times_that_of_telling_replaced_tokens(kind, request):
    folder = request.getfixturevalue(kind)
    learner, batch = Electra(folder, tokenizer=load_tokenizer(folder), settings=SETTINGS), batch_of(12, 20, 7)
    learner.module.eval()
    inputs = learner.draw(batch)
    rows, columns = inputs["masked"] // 20, inputs["masked"] % 20
    assert batch.is_token[rows, columns].all()
    assert not torch.isin(batch.ids[rows, columns], torch.tensor([0, 1, 2, 3])).any()
    assert torch.bincount(rows).tolist() == [3, 5, 2]  # 30% of 10, 18 and 5 words

    mask = batch.is_token.long()
    with_masks = batch.ids.index_put((rows, columns), torch.tensor(MASK))
    logits = learner.generator(with_masks, attention_mask=mask).logits[rows, columns]
    guessed = sample(logits, inputs["uniform"])
    guessed[0] = batch.ids[rows[0], columns[0]]  # as if drawn: an original counts as one
    corrupted = batch.ids.index_put((rows, columns), guessed)
    encoded = learner.discriminator.encoder(corrupted, attention_mask=mask).last_hidden_state
    scores = learner.discriminator.head(encoded)[batch.is_token]
    replaced = (corrupted != batch.ids)[batch.is_token].float()
    assert replaced.sum() < len(rows)
    parts = [cross_entropy(logits, batch.ids[rows, columns]), binary_cross_entropy_with_logits(scores, replaced)]

    inputs["uniform"][0] = first_that_draws(guessed[0], logits[0])
    outcome = learner.outcome(inputs)
    torch.testing.assert_close(outcome.loss, parts[0] + 50 * parts[1])
    means = {name: (value / count).item() for name, (value, count) in outcome.sums.items()}
    assert learner.loss(means) == pytest.approx(outcome.loss.item(), rel=1e-5)
    assert means["replaced_share"] == pytest.approx(replaced.mean().item())
    assert means["discriminator_accuracy"] == pytest.approx(((scores > 0) == replaced.bool()).float().mean().item())


def first_that_draws(token, logits):
    """A uniform number for which ``sample`` gives this token."""
    shares = logits.softmax(-1)
    return shares[:token].sum() + shares[token] / 2


@pytest.mark.parametrize("kind", ["bert", "electra"])
def test_what_electra_writes_loads_by_the_auto_classes_and_shares_its_tables(kind, request, tmp_path):
    folder = request.getfixturevalue(kind)
    learner = Electra(folder, tokenizer=load_tokenizer(folder), settings=SETTINGS)
    optimizer = torch.optim.AdamW(learner.module.parameters(), lr=1e-2)
    learner.outcome(learner.draw(batch_of(9, 9))).loss.backward()
    optimizer.step()
    learner.save(tmp_path / "made", load_tokenizer(folder))
    encoder = AutoModel.from_pretrained(tmp_path / "made")
    generator = AutoModelForMaskedLM.from_pretrained(tmp_path / "made" / "generator")
    assert generator.config.hidden_size == encoder.config.hidden_size // 4
    words = encoder.get_input_embeddings().weight
    assert torch.equal(words, generator.electra.embeddings.word_embeddings.weight)
    assert torch.equal(words, generator.generator_lm_head.weight)
    positions = [each.position_embeddings.weight for each in (encoder.embeddings, generator.electra.embeddings)]
    assert torch.equal(*positions)
    assert torch.equal(words, learner.discriminator.encoder.get_input_embeddings().weight)
    if kind == "electra":
        whole = AutoModelForPreTraining.from_pretrained(tmp_path / "made")
        assert torch.equal(whole.discriminator_predictions.dense.weight, learner.discriminator.head.dense.weight)
    again = Electra(str(tmp_path / "made"), tokenizer=load_tokenizer(folder), settings=SETTINGS)
    assert all(torch.equal(each, again.module.state_dict()[name]) for name, each in learner.module.state_dict().items())


def test_a_token_is_right_if_no_other_has_a_greater_logit_and_only_the_first_ones_count():
    logits = torch.tensor([[1.0, 3.0, 2.0], [3.0, 1.0, 2.0], [2.0, 2.0, 1.0], [0.0, 9.0, 0.0]], dtype=torch.bfloat16)
    outcome = token_outcome(logits, torch.tensor([1, 1, 1, 1]), torch.tensor(3), torch.tensor(6))
    assert [each.item() for each in outcome.sums["accuracy"]] == [2, 3]
    torch.testing.assert_close(outcome.loss, outcome.sums["loss"][0] / 6)


def test_tokens_are_drawn_with_the_generator_s_probabilities():
    torch.manual_seed(0)
    logits = torch.tensor([0.1, 0.6, 0.0, 0.3]).log().expand(20_000, 4)
    drawn = torch.bincount(sample(logits, torch.rand(20_000, 1)), minlength=4) / 20_000
    assert (drawn - torch.tensor([0.1, 0.6, 0.0, 0.3])).abs().max() < 0.015


@pytest.mark.parametrize("kind", ["masked", "electra"])
def test_a_tokenizer_without_a_mask_is_refused(kind, backbone):
    objective = Masked if kind == "masked" else Electra
    with pytest.raises(BackboneError, match="must have a mask token; got none"):
        objective(str(backbone), tokenizer=load_tokenizer(str(backbone)), settings=SETTINGS)


def test_the_masked_loss_is_that_of_the_model_itself_and_most_chosen_tokens_become_masks(bert):
    learner, batch = Masked(bert, tokenizer=load_tokenizer(bert), settings=SETTINGS), batch_of(*[30] * 40, 20)
    learner.module.eval()
    inputs = learner.draw(batch)
    count = int(inputs["count"])
    assert len(inputs["selected"]) % 64 == 0
    chosen = inputs["selected"][:count]
    labels = torch.full_like(batch.ids, -100).flatten().index_copy(0, chosen, batch.ids.flatten()[chosen])
    ids = inputs["input_ids"].flatten()
    untouched = torch.ones(len(ids), dtype=torch.bool).index_fill(0, chosen, False)
    assert torch.equal(ids[untouched], batch.ids.flatten()[untouched])
    assert 0.7 < (ids[chosen] == MASK).float().mean() < 0.9
    assert 0.04 < (ids[chosen] == batch.ids.flatten()[chosen]).float().mean() < 0.18
    loss = learner.outcome(dict(inputs)).loss
    plain = AutoModelForMaskedLM.from_pretrained(bert).eval()
    plain.load_state_dict(learner.module.state_dict())
    expected = plain(inputs["input_ids"], attention_mask=inputs["attention_mask"], labels=labels.view_as(batch.ids))
    torch.testing.assert_close(loss, expected.loss)


def test_the_causal_loss_is_that_of_the_model_itself_with_an_end_after_each_row(tmp_path):
    save_decoder(tmp_path)
    learner = Causal(str(tmp_path), tokenizer=load_tokenizer(str(tmp_path)), longest=5)
    learner.module.eval()
    is_token = torch.arange(5) < torch.tensor([4, 2, 5])[:, None]
    ids = torch.tensor([[4, 5, 6, 7, 0], [4, 9, 0, 0, 0], [4, 8, 8, 8, 5]])
    loss = learner.outcome(learner.draw(TokenBatch(ids, is_token))).loss
    learner.module.lm_head._forward_pre_hooks.clear()
    sums = []
    for row in ([4, 5, 6, 7, 2], [4, 9, 2], [4, 8, 8, 8, 5]):
        whole = torch.tensor([row])
        sums.append(learner.module(whole, labels=whole).loss.item() * (len(row) - 1))
    assert loss.item() == pytest.approx(sum(sums) / 10, abs=1e-5)


@pytest.mark.parametrize("masks", ["tokens", "whole-words", "spans"])
def test_masks_reach_their_share_and_leave_no_row_and_no_word_in_part(masks):
    torch.manual_seed(0)
    starts = torch.rand(400, 64) < 0.4
    starts[:, 0] = True
    maskable = torch.ones(400, 64, dtype=torch.bool)
    maskable[:, :1] = maskable[:5] = False
    maskable[1, 9] = True
    batch = TokenBatch(torch.zeros(400, 64, dtype=torch.long), maskable, starts=starts)
    chosen = choose_tokens(batch, maskable, share=0.15, masks=masks)
    assert not (chosen & ~maskable).any()
    assert chosen[1].nonzero().tolist() == [[9]]
    assert chosen[5:].any(1).all()
    assert chosen[5:].sum().item() == pytest.approx(0.15 * maskable[5:].sum().item(), rel=0.1)
    alike = (chosen[5:, 2:] == chosen[5:, 1:-1])[~starts[5:, 2:]]
    assert bool(alike.all()) == (masks != "tokens")
    runs = (chosen[5:, 1:] & ~chosen[5:, :-1]).sum().item()
    words = (chosen & starts)[5:].sum().item()
    assert (words / runs > 1.5) == (masks == "spans")
