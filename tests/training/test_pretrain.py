"""Pretraining on a study's texts improves the prediction of tokens, and interrupted runs resume."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from mlflow import MlflowClient
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
)
from word_backbone import save_deberta, save_decoder

from tutti.config.pretraining import PretrainingSettings
from tutti.data.distinct import distinct_rows
from tutti.errors import BackboneError, StudyError
from tutti.tracking.mlflow_tracker import MlflowTracker
from tutti.training.machine import precision
from tutti.training.pretraining import loop, run
from tutti.training.pretraining.kept import kept_backbones
from tutti.training.pretraining.language_model import load_language_model
from tutti.training.pretraining.run import pretrain

SETTINGS = PretrainingSettings(epochs=3, learning_rate=1e-2, batch_size=8)


def changed(**keys):
    return SETTINGS.model_copy(update=keys)


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
        "texts": [replace(part, encoded=encoded)],
        "out": tmp_path / "adapted",
        "settings": SETTINGS,
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
    assert pretrain(**{**options, "settings": changed(epochs=1)}).loss < 5


def test_held_out_tokens_are_guessed_better_and_the_auto_classes_load_what_is_written(options, capsys):
    losses = []
    pretrained = pretrain(**options, on_progress=held_out(losses))
    assert capsys.readouterr().out == ""
    assert [epoch for epoch, _ in losses] == [1, 2, 3]
    assert losses[2][1] < losses[0][1] - 0.1
    assert pretrained.loss == losses[2][1]
    encoder, before = AutoModel.from_pretrained(pretrained.path), AutoModel.from_pretrained(options["backbone"])
    assert not torch.equal(encoder.embeddings.word_embeddings.weight, before.embeddings.word_embeddings.weight)
    assert AutoTokenizer.from_pretrained(pretrained.path).get_vocab() == (
        AutoTokenizer.from_pretrained(options["backbone"]).get_vocab()
    )
    assert not options["out"].with_name("adapted.unfinished").exists()


def test_rows_that_are_equal_count_once(options):
    twice = {"settings": changed(epochs=1), "texts": [*options["texts"], *options["texts"]]}
    pretrained = pretrain(**{**options, **twice})
    assert pretrained.documents == len({tuple(ids) for part in options["texts"] for ids in part.encoded["input_ids"]})


class CutError(Exception):
    pass


def cut_off(options, *, step=0):
    """Ends a run at a step, or at its first held-out loss."""

    def cut(progress):
        if progress.step == step or (progress.held_out and not step):
            raise CutError

    with pytest.raises(CutError):
        pretrain(**{**options, "on_progress": cut})


def held_out(losses):
    """Collects the held-out losses of a run, by epoch."""
    return lambda seen: losses.append((seen.epoch, seen.measures["held_out_loss"])) if seen.held_out else None


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def assert_equal(first, second):
    assert first.keys() == second.keys()
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())


@pytest.mark.parametrize("objective", ["masked", "electra"])
def test_a_run_cut_off_within_an_epoch_ends_bit_equal_and_passes_a_damaged_state_over(options, tmp_path, objective):
    options |= {"objective": objective, "settings": changed(save_steps=3, log_steps=1)}
    whole = pretrain(**{**options, "out": tmp_path / "whole"})
    cut_off(options, step=26)
    states = options["out"].with_name("adapted.unfinished") / "states"
    kept = sorted(int(each.name.removeprefix("step-")) for each in states.iterdir())
    assert kept == [21, 24]
    (states / "step-24" / "state.pt").write_bytes(b"half")
    notices, steps = [], []
    resumed = pretrain(**options, on_notice=notices.append, on_progress=lambda seen: steps.append(seen.step))
    assert len(notices) == 1
    assert "step-24 is damaged" in notices[0]
    assert min(steps) == 22
    assert resumed.measures == whole.measures
    assert_equal(weights_of(resumed.path), weights_of(whole.path))


def test_backbones_are_kept_while_a_run_goes_on_each_once_and_whole(options, tmp_path):
    options["settings"] = changed(keep_every=20, save_steps=9, log_steps=1)
    cut_off(options, step=45)
    kept = kept_backbones(options["out"])
    assert [*kept] == [0, 20, 40]
    before, first = (AutoModelForMaskedLM.from_pretrained(each) for each in (options["backbone"], kept[0]))
    assert_equal(before.bert.state_dict(), first.bert.state_dict())
    AutoTokenizer.from_pretrained(kept[20])
    shutil.rmtree(kept[40])  # of a run that was killed before it was written
    made = pretrain(**options)
    kept = kept_backbones(options["out"])
    assert [*kept] == [0, 20, 40, 54]
    assert_equal(weights_of(kept[54]), weights_of(made.path))
    shutil.rmtree(made.path)
    with pytest.raises(BackboneError, match=r"adapted\.kept must be a new or an empty folder"):
        pretrain(**options)


def test_a_run_goes_on_in_the_precision_that_it_began_in(options, monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(loop, "autocast", lambda device, name: seen.append(name) or nullcontext())
    monkeypatch.setattr(precision, "cpu_gains_from_bf16", lambda: True)
    cut_off(options)
    monkeypatch.setattr(precision, "cpu_gains_from_bf16", lambda: False)
    pretrain(**options)
    assert set(seen) == {"bf16"}


def test_a_run_cut_off_while_it_was_written_reports_the_loss_that_it_had(options, monkeypatch):
    losses = []
    options["on_progress"] = held_out(losses)
    with monkeypatch.context() as patched:
        patched.setattr(run, "whole_folder", fail)
        with pytest.raises(OSError, match="No space"):
            pretrain(**options)
    assert pretrain(**options).loss == losses[-1][1]
    assert losses[-1] == losses[-2]


def fail(*args, **keys):
    raise OSError(28, "No space left on device")


def test_an_unfinished_run_of_as_many_other_texts_is_not_gone_on_with(options):
    cut_off(options)
    (part,) = options["texts"]
    words = [list(row) for row in part.encoded["input_ids"]]
    next(row for row in words if words.count(row) == 1)[1] = 40  # a token that no other row contains
    other = replace(part, encoded=datasets.Dataset.from_dict({"input_ids": words, "length": part.lengths}))
    assert len(distinct_rows([other])) == len(distinct_rows([part]))
    with pytest.raises(StudyError, match="must be begun with the same texts, backbone and settings; got others"):
        pretrain(**{**options, "texts": [other]})


def test_an_unfinished_run_of_a_backbone_that_has_changed_is_not_gone_on_with(options):
    cut_off(options)
    weights = Path(options["backbone"]) / "model.safetensors"
    save_file({name: weight + 1 for name, weight in load_file(weights).items()}, weights, metadata={"format": "pt"})
    with pytest.raises(StudyError, match="must be begun with the same texts, backbone and settings; got others"):
        pretrain(**options)


def test_a_decoder_learns_the_next_words_and_the_same_call_goes_on_where_it_was_cut_off(options, tmp_path):
    save_decoder(tmp_path / "decoder")
    options |= {"backbone": str(tmp_path / "decoder"), "settings": changed(epochs=2)}
    losses = []
    whole = pretrain(**options | {"out": tmp_path / "whole", "on_progress": held_out(losses)})
    assert losses[1][1] < losses[0][1] - 0.1
    cut_off(options)
    resumed = pretrain(**options, objective="causal")
    assert resumed.loss == whole.loss
    assert_equal(weights_of(resumed.path), weights_of(whole.path))
    assert AutoModelForCausalLM.from_pretrained(whole.path).config.tie_word_embeddings


@pytest.mark.parametrize(("kind", "objective"), [("bert", "causal"), ("llama", "masked")])
def test_an_objective_that_the_backbone_has_no_form_for_is_refused(options, tmp_path, kind, objective):
    if kind == "llama":
        save_decoder(tmp_path / "decoder", mask_token="w1")
        options["backbone"] = str(tmp_path / "decoder")
    else:
        AutoTokenizer.from_pretrained(options["backbone"], eos_token="[SEP]").save_pretrained(options["backbone"])
    with pytest.raises(BackboneError, match=f"must have a form that guesses .*; got {kind}; name a"):
        pretrain(**options, objective=objective)


def test_a_run_is_logged_to_mlflow_with_the_losses_of_both_models(options, tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    options |= {"objective": "electra", "settings": changed(epochs=1, log_steps=1)}
    made = pretrain(**options, make_tracker=lambda run: MlflowTracker(uri, experiment="adapted", owner=run))
    (run,) = MlflowClient(uri).search_runs([MlflowClient(uri).get_experiment_by_name("adapted").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["objective"] == "electra"
    assert run.data.metrics["held_out_loss"] == pytest.approx(made.loss, rel=1e-3)  # rounded for reading
    assert run.data.metrics["final_held_out_loss"] == pytest.approx(made.loss, rel=1e-3)
    expected = {"generator_loss", "discriminator_accuracy", "learning_rate", "tokens_per_second", "loss"}
    assert expected <= run.data.metrics.keys()
