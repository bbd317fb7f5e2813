"""Pretraining on a study's texts improves the prediction of masked tokens, and interrupted runs resume."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    TrainingArguments,
)
from word_backbone import save_deberta, save_decoder

from tutti.data.distinct import distinct_rows
from tutti.errors import BackboneError, StudyError, TrialError
from tutti.training.loop import pretrain as module
from tutti.training.loop.language_model import NextTokens, load_language_model
from tutti.training.loop.pretrain import pretrain
from tutti.training.machine import precision


@pytest.fixture
def options(backbone, make_part, tmp_path):
    """A backbone with a mask token, rows that repeat one word, and settings for a run of seconds."""
    shutil.copytree(backbone, tmp_path / "backbone")
    AutoTokenizer.from_pretrained(backbone, mask_token="w59").save_pretrained(tmp_path / "backbone")
    part = make_part(240, classes=2, seed=0, labelled=False)
    generator = np.random.default_rng(0)
    words = [[2, *[int(word)] * int(length), 3] for word, length in generator.integers([4, 3], [30, 12], size=(240, 2))]
    encoded = datasets.Dataset.from_dict({"input_ids": words, "length": [len(row) for row in words]})
    return {
        "backbone": str(tmp_path / "backbone"),
        "parts": [replace(part, encoded=encoded)],
        "out": tmp_path / "adapted",
        "epochs": 3,
        "learning_rate": 1e-2,
        "batch_size": 8,
        "seed": 0,
        "on_epoch": lambda epoch, loss: None,
    }


def test_a_backbone_whose_weights_have_other_names_is_refused_not_drawn_at_random(options):
    file = Path(options["backbone"], "model.safetensors")
    save_file({f"module.{name}": tensor for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    with pytest.raises(BackboneError, match=r"hold every weight its config\.json asks"):
        pretrain(**options)
    assert not options["out"].exists()


@pytest.fixture
def not_a_number_where_nothing_was_written():
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("not_a_number_where_nothing_was_written")
@pytest.mark.parametrize("kind", ["bert", "fnet", "longformer", "data2vec-text"])
def test_the_biases_of_a_new_head_are_zero(kind, tmp_path):
    small = {"vocab_size": 64, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model(kind, **small, intermediate_size=8, max_position_embeddings=16)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    model = load_language_model(str(tmp_path), "masked")
    prefix = f"{model.base_model_prefix}."
    head = {name: each for name, each in model.named_parameters(remove_duplicate=False) if not name.startswith(prefix)}
    assert all(each.isfinite().all() for each in head.values())
    biases = [name for name in head if name.endswith("bias")]
    assert sum(head[name].numel() == 64 for name in biases) == 2  # of the head itself and of its decoder
    assert not any(head[name].any() for name in biases)


@pytest.mark.parametrize("name", ["bias", "decoder.bias"])
def test_the_bias_of_a_head_that_the_backbone_has_is_kept_under_either_of_its_names(options, name, tmp_path):
    model = AutoModelForMaskedLM.from_pretrained(options["backbone"])
    model.cls.predictions.bias.data.fill_(3)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    bias = weights.pop("cls.predictions.bias")
    weights.pop("cls.predictions.decoder.bias", None)
    save_file({**weights, f"cls.predictions.{name}": bias}, tmp_path / "model.safetensors", {"format": "pt"})
    head = load_language_model(str(tmp_path), "masked").cls.predictions
    assert (head.bias == 3).all()
    assert (head.decoder.bias == 3).all()


def test_a_backbone_that_fails_in_half_precision_is_pretrained_in_float32(options, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(precision, "cpu_gains_from_bf16", lambda: True)
    save_deberta(Path(options["backbone"]))
    assert pretrain(**{**options, "epochs": 1}).loss < 5


def test_held_out_tokens_are_guessed_better_and_the_auto_classes_load_what_is_written(options, capsys):
    losses = {}
    pretrained = pretrain(**{**options, "on_epoch": losses.__setitem__})
    assert capsys.readouterr().out == ""
    assert list(losses) == [1, 2, 3]
    assert losses[3] < losses[1] - 0.1
    assert pretrained.loss == losses[3]
    encoder, before = AutoModel.from_pretrained(pretrained.path), AutoModel.from_pretrained(options["backbone"])
    assert not torch.equal(encoder.embeddings.word_embeddings.weight, before.embeddings.word_embeddings.weight)
    assert AutoTokenizer.from_pretrained(pretrained.path).get_vocab() == (
        AutoTokenizer.from_pretrained(options["backbone"]).get_vocab()
    )
    assert not options["out"].with_name("adapted.unfinished").exists()


def test_rows_that_are_equal_count_once(options):
    pretrained = pretrain(**{**options, "epochs": 1, "parts": [*options["parts"], *options["parts"]]})
    assert pretrained.rows == len({tuple(ids) for part in options["parts"] for ids in part.encoded["input_ids"]})


def test_batches_of_rows_of_similar_length_come_in_random_order(options, tmp_path):
    rows = distinct_rows(options["parts"])
    model = AutoModelForMaskedLM.from_pretrained(options["backbone"])
    args = TrainingArguments(output_dir=str(tmp_path), per_device_train_batch_size=8, use_cpu=True)
    collator = DataCollatorForLanguageModeling(AutoTokenizer.from_pretrained(options["backbone"]), mlm_probability=0)
    trainer = module._TokenTrainer(model, args=args, train_dataset=rows, data_collator=collator)
    loader = trainer.get_train_dataloader()
    orders = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        batches = [batch["attention_mask"].sum(1) for batch in loader]
        assert sorted(torch.cat(batches).tolist()) == sorted(rows["length"])
        assert np.mean([(batch.max() - batch.min()).item() for batch in batches]) < 1.5
        orders.append([batch.max().item() for batch in batches])
        rises = np.diff(orders[-1]) > 0
        assert 0.2 < rises.mean() < 0.8
    assert orders[0] != orders[1]


def test_logits_of_masked_tokens_alone_give_the_loss_of_all_logits(options, tmp_path):
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_pretrained(options["backbone"]).eval()
    ids = torch.randint(4, 60, (5, 9))
    labels = torch.where(torch.rand(ids.shape) < 0.3, ids, -100)
    expected = model(input_ids=ids, labels=labels).loss
    trainer = module._TokenTrainer(model, args=TrainingArguments(str(tmp_path), use_cpu=True))
    assert trainer._head_selects
    loss = trainer.compute_loss(model, {"input_ids": ids, "labels": labels.clone()})
    torch.testing.assert_close(loss, expected)
    nothing = trainer.compute_loss(model, {"input_ids": ids, "labels": torch.full_like(ids, -100)})
    assert nothing == 0


def test_the_head_sees_the_same_number_of_tokens_however_many_are_masked(options, tmp_path):
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_pretrained(options["backbone"]).eval()
    plain = copy.deepcopy(model)
    trainer = module._TokenTrainer(model, args=TrainingArguments(str(tmp_path), use_cpu=True))
    ids = torch.randint(4, 60, (20, 9))
    for masked in (1, 63, 64, 65, 128):
        places = torch.randperm(ids.numel())[:masked]
        labels = torch.full_like(ids, -100).index_put((places // 9, places % 9), ids.flatten()[places])
        loss, outputs = trainer.compute_loss(model, {"input_ids": ids, "labels": labels.clone()}, return_outputs=True)
        assert len(outputs.logits) == (64 if masked <= 64 else 128)
        torch.testing.assert_close(loss, plain(input_ids=ids, labels=labels).loss)


def test_the_held_out_loss_is_the_mean_over_masked_tokens_whatever_batches_they_are_in(options, tmp_path):
    model = AutoModelForMaskedLM.from_pretrained(options["backbone"])
    with torch.no_grad():
        model.cls.predictions.bias[7] = 5.0  # so that word 7 costs little, and others much
    ids = torch.tensor([[2, 7, 7, 7, 7, 3], [2, 7, 7, 7, 9, 3], [2, 7, 7, 9, 9, 3]])
    labels = torch.full_like(ids, -100)
    labels[0, 1:5], labels[2, 4] = ids[0, 1:5], 9  # none of the second row
    rows = [{"input_ids": ids[row], "labels": labels[row]} for row in range(3)]
    args = TrainingArguments(str(tmp_path), per_device_eval_batch_size=1, use_cpu=True, disable_tqdm=True)
    expected = copy.deepcopy(model).eval()(input_ids=ids, labels=labels).loss.item()
    trainer = module._TokenTrainer(model, args=args, eval_dataset=rows)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[8] = float("nan")
    rows.append({"input_ids": torch.full((6,), 8), "labels": torch.full((6,), 8)})
    assert np.isnan(trainer.evaluate()["eval_loss"])


def test_the_held_out_loss_is_of_a_masked_token_even_where_the_first_draws_mask_none(options, tmp_path):
    draws = []

    def collate(rows):
        draws.append(rows)
        ids = torch.tensor([[2, 7, 3]])
        return {"input_ids": ids, "labels": ids.where(ids == (7 if len(draws) > 2 else 0), -100)}

    model = AutoModelForMaskedLM.from_pretrained(options["backbone"])
    args = TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True)
    trainer = module._TokenTrainer(model, args=args, eval_dataset=[{"input_ids": [2, 7, 3]}], data_collator=collate)
    assert trainer.evaluate()["eval_loss"] > 0
    assert len(draws) == 3
    trainer.data_collator = DataCollatorForLanguageModeling(AutoTokenizer.from_pretrained(options["backbone"]))
    trainer.eval_dataset = [{"input_ids": [2, 3]}]
    with pytest.raises(TrialError, match="the held-out rows must have a token that can be masked"):
        trainer.evaluate()


def cut_off(options, *, after=1):
    """Ends a run after this epoch."""

    class CutError(Exception):
        pass

    def cut(epoch, loss):
        if epoch == after:
            raise CutError

    with pytest.raises(CutError):
        pretrain(**{**options, "on_epoch": cut})


def test_a_run_that_was_cut_off_goes_on_from_its_last_whole_epoch_as_if_it_had_not_been(options, tmp_path):
    cut_off(options, after=3)
    work = options["out"].with_name("adapted.unfinished")
    newest = max(work.glob("checkpoint-*"), key=lambda folder: int(folder.name.rpartition("-")[2]))
    half = newest.with_name("checkpoint-999999")  # as left by a kill while saving
    half.mkdir()
    assert not options["out"].exists()
    epochs = []
    pretrain(**{**options, "on_epoch": lambda epoch, loss: epochs.append(epoch)})
    assert epochs == [3]
    pretrain(**{**options, "out": tmp_path / "whole"})
    resumed, whole = (load_file(folder / "model.safetensors") for folder in (options["out"], tmp_path / "whole"))
    assert all(torch.equal(weight, whole[name]) for name, weight in resumed.items())


@pytest.mark.parametrize("gains", [True, False])
def test_a_run_goes_on_in_the_precision_that_it_began_in(options, monkeypatch, gains):
    seen, made = [], module._training_arguments

    def keep(*args, **keys):
        seen.append(made(*args, **keys))
        return seen[-1]

    monkeypatch.setattr(module, "_training_arguments", keep)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(precision, "cpu_gains_from_bf16", lambda: gains)
    cut_off(options, after=2)
    monkeypatch.setattr(precision, "cpu_gains_from_bf16", lambda: not gains)
    pretrain(**options)
    assert [args.bf16 for args in seen] == [gains, gains]


def test_a_run_cut_off_while_it_was_written_reports_the_loss_that_it_had(options, monkeypatch):
    losses = []
    options["on_epoch"] = lambda epoch, loss: losses.append((epoch, loss))
    with monkeypatch.context() as patched:
        patched.setattr(module, "whole_folder", fail)
        with pytest.raises(OSError, match="No space"):
            pretrain(**options)
    assert pretrain(**options).loss == losses[-1][1]
    assert losses[-1] == losses[-2]


def fail(*args, **keys):
    raise OSError(28, "No space left on device")


def test_an_unfinished_run_of_as_many_other_texts_is_not_gone_on_with(options):
    cut_off(options)
    (part,) = options["parts"]
    words = [list(row) for row in part.encoded["input_ids"]]
    next(row for row in words if words.count(row) == 1)[1] = 40  # a token that no other row contains
    changed = replace(part, encoded=datasets.Dataset.from_dict({"input_ids": words, "length": part.lengths}))
    assert len(distinct_rows([changed])) == len(distinct_rows([part]))
    with pytest.raises(StudyError, match="must be begun with the same texts, backbone and settings; got others"):
        pretrain(**{**options, "parts": [changed]})


def test_an_unfinished_run_of_a_backbone_that_has_changed_is_not_gone_on_with(options):
    cut_off(options)
    weights = Path(options["backbone"]) / "model.safetensors"
    save_file({name: weight + 1 for name, weight in load_file(weights).items()}, weights, metadata={"format": "pt"})
    with pytest.raises(StudyError, match="must be begun with the same texts, backbone and settings; got others"):
        pretrain(**options)


def test_of_several_gpus_one_is_used(options, monkeypatch):
    class Made(Exception):
        pass

    class OnTwoGpus(module.TrainingArguments):
        def __post_init__(self):
            super().__post_init__()
            self._n_gpu = 2

    def train(trainer, **unused):
        assert trainer.args.n_gpu == 1
        assert trainer._train_batch_size == options["batch_size"]
        raise Made

    monkeypatch.setattr(module, "TrainingArguments", OnTwoGpus)
    monkeypatch.setattr(module._TokenTrainer, "train", train)
    with pytest.raises(Made):
        pretrain(**options)


def test_a_gpu_is_not_waited_for_when_a_batch_is_copied(options, monkeypatch, tmp_path):
    model, args = (
        AutoModelForMaskedLM.from_pretrained(options["backbone"]),
        TrainingArguments(str(tmp_path), use_cpu=True),
    )
    trainer = module._TokenTrainer(model, args=args)
    copies = []
    monkeypatch.setattr(torch.Tensor, "to", lambda *args, **kwargs: copies.append((*args[1:], kwargs)))
    trainer._prepare_input({"input_ids": torch.zeros(2)})
    monkeypatch.setattr(trainer, "args", SimpleNamespace(device=torch.device("cuda")))
    trainer._prepare_input({"input_ids": torch.zeros(2)})
    assert copies == [
        (torch.device("cpu"), {"non_blocking": False}),
        (torch.device("cuda"), {"non_blocking": True}),
    ]


def test_a_tokenizer_without_a_mask_is_refused(options, backbone):
    with pytest.raises(BackboneError, match="must have a mask token; got none"):
        pretrain(**{**options, "backbone": str(backbone)})


def test_the_current_folder_is_not_replaced(options, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(BackboneError, match=r"here must be a folder .* got the current folder; name a folder"):
        pretrain(**{**options, "out": Path()})


@pytest.mark.parametrize("rate", [-1.0, 0.0, float("nan"), float("inf")])
def test_a_learning_rate_that_trains_nothing_is_told_before_a_text_is_read(options, rate):
    with pytest.raises(BackboneError, match="the learning rate must be a finite number above 0; got"):
        pretrain(**{**options, "learning_rate": rate, "parts": None})


def test_a_decoder_learns_the_next_words_and_the_same_call_goes_on_where_it_was_cut_off(options, tmp_path):
    save_decoder(tmp_path / "decoder")
    options |= {"backbone": str(tmp_path / "decoder"), "epochs": 2}
    losses: list[float] = []
    whole = pretrain(**options | {"out": tmp_path / "whole", "on_epoch": lambda _, loss: losses.append(loss)})
    assert losses[1] < losses[0] - 0.1
    cut_off(options)
    resumed = pretrain(**options, objective="causal")
    assert resumed.loss == whole.loss
    states = [load_file(each.path / "model.safetensors") for each in (whole, resumed)]
    assert all(torch.equal(states[1][name], weight) for name, weight in states[0].items())
    assert AutoModelForCausalLM.from_pretrained(whole.path).config.tie_word_embeddings


def test_the_causal_loss_is_that_of_the_model_itself_with_an_end_after_each_row(tmp_path):
    save_decoder(tmp_path)
    model, rows = load_language_model(str(tmp_path), "causal"), [[4, 5, 6, 7], [4, 9], [4, 8, 8, 8, 5]]
    batch = NextTokens(pad=0, end=2, longest=5)([{"input_ids": row} for row in rows])
    args = TrainingArguments(output_dir=str(tmp_path / "run"), use_cpu=True)
    loss = module._TokenTrainer(model, args=args).compute_loss(model, dict(batch))
    sums = []
    for row in ([4, 5, 6, 7, 2], [4, 9, 2], [4, 8, 8, 8, 5]):
        ids = torch.tensor([row])
        model.lm_head._forward_pre_hooks.clear()
        sums.append(model(ids, labels=ids).loss.item() * (len(row) - 1))
    assert loss.item() == pytest.approx(sum(sums) / 10, abs=1e-5)


@pytest.mark.parametrize(("kind", "objective"), [("bert", "causal"), ("llama", "masked")])
def test_an_objective_that_the_backbone_has_no_form_for_is_refused(options, tmp_path, kind, objective):
    if kind == "llama":
        save_decoder(tmp_path / "decoder", mask_token="w1")
        options["backbone"] = str(tmp_path / "decoder")
    else:
        AutoTokenizer.from_pretrained(options["backbone"], eos_token="[SEP]").save_pretrained(options["backbone"])
    with pytest.raises(BackboneError, match=f"must have a form that guesses .*; got {kind}; name a"):
        pretrain(**options, objective=objective)
