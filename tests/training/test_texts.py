"""A decoder is tuned to write texts: its gradient, what is reported of it, and the same texts in any batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from saved_models import text_task
from torch.nn import functional
from training_runs import Tune, assert_same_end, final_weights
from transformers import AutoModelForCausalLM, AutoTokenizer
from word_backbone import save_decoder

from tutti.data.encode import EncodedPart
from tutti.data.prompts import with_target_places
from tutti.errors import ConfigError, TrialError
from tutti.modeling.checkpoint import load_checkpoint
from tutti.modeling.packed import pack_rows
from tutti.tasks.kinds.text import texts_array
from tutti.tasks.task import Generation
from tutti.training.generate import generate, generation_config
from tutti.training.predict import likelihoods

KINDS = ["llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "mistral", "phi3", "gpt2"]
FIRST, END = 4, 2  # w0, </s>
TRAINING: dict[str, Any] = {
    "num_train_epochs": 2,
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-2,
    "logging_steps": 2,
    "bf16": False,
}
TASK = text_task(report=("rouge_l", "exact_match"), generation=Generation({"max_new_tokens": 6}, at_evaluations=True))


def make_part(rows: int, *, seed: int, labelled: bool = True) -> EncodedPart:
    """Prompts of random words, the first of which says what is to be written."""
    rng = np.random.default_rng(seed)
    tokens, sources, labels = [], [], []
    for _ in range(rows):
        word = int(rng.integers(3))
        prompt = [1, FIRST + word, *(FIRST + rng.integers(10, 40, size=rng.integers(1, 9))).tolist()]
        answer = [50 + word] * (word + 1)
        tokens.append([*prompt, *([FIRST + each for each in answer] if labelled else []), *([END] * labelled)])
        sources.append(len(prompt))
        labels.append(" ".join(f"w{each}" for each in answer))
    lengths = np.array([len(row) for row in tokens], dtype=np.int32)
    integer = datasets.Value("int32")
    features = datasets.Features({"input_ids": datasets.List(integer), "source": integer, "length": integer})
    columns = {"input_ids": tokens, "source": sources, "length": lengths}
    part = EncodedPart(
        ids=np.array([f"{seed}-{row}" for row in range(rows)]),
        encoded=datasets.Dataset.from_dict(columns, features=features),
        lengths=lengths,
        labels=texts_array(labels) if labelled else None,
        weights=np.ones(rows, np.float32),
        pad_token_id=0,
    )
    return with_target_places(part)


@pytest.fixture(scope="module")
def texts() -> dict[str, dict[str, EncodedPart]]:
    return {
        "answers": {
            "train": make_part(40, seed=0),
            "validation": make_part(15, seed=1),
            "test": make_part(9, seed=2, labelled=False),
        }
    }


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoder")
    save_decoder(folder)
    return folder


@pytest.fixture(scope="module")
def tune(make_tune: Callable[..., Tune], decoder: Path, texts: dict[str, dict[str, EncodedPart]]) -> Callable[..., Any]:
    run = make_tune(decoder, **TRAINING)

    def tuned(folder: Path, **options: Any) -> Any:
        return run(folder, **{"tasks": (TASK,), "parts": texts, **options})

    return tuned


@pytest.fixture(scope="module")
def whole(tune: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    folder = tmp_path_factory.mktemp("whole")
    return *tune(folder, num_train_epochs=12), folder


def token_losses(decoder: Any, part: EncodedPart) -> list[torch.Tensor]:
    """Of each row, the cross entropies of its target's tokens."""
    losses = []
    for ids, source in zip(part.encoded["input_ids"], part.encoded["source"], strict=True):
        logits = decoder(torch.tensor([ids])).logits[0, source - 1 : -1]
        losses.append(functional.cross_entropy(logits, torch.tensor(ids[source:]), reduction="none"))
    return losses


def test_a_step_follows_the_gradient_of_the_mean_loss_of_all_target_tokens(
    tune: Callable[..., Any], decoder: Path, tmp_path: Path, texts: dict[str, dict[str, EncodedPart]]
) -> None:
    plain = {"max_steps": 1, "optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "weight_decay": 0.0}
    tune(tmp_path, learning_rate=0.5, warmup_steps=0, gradient_accumulation_steps=5, **plain)
    model = AutoModelForCausalLM.from_pretrained(decoder)
    torch.cat(token_losses(model, texts["answers"]["train"])).mean().backward()
    after = final_weights(tmp_path)
    for name, weight in model.model.named_parameters():
        torch.testing.assert_close(after[f"encoder.{name}"], weight - 0.5 * weight.grad, rtol=0, atol=1e-6)


def test_each_evaluation_reports_the_likelihood_of_the_labels_and_metrics_of_what_is_written(
    whole: tuple[Any, Any, Path], texts: dict[str, dict[str, EncodedPart]]
) -> None:
    done, reports, folder = whole
    part, last = texts["answers"]["validation"], reports[-1]
    model, metadata = load_checkpoint(folder / "best")
    assert metadata.epoch == last.epoch == 12
    found = likelihoods(model, part, task="answers", batch_size=4, device=torch.device("cpu"))
    decoder = AutoModelForCausalLM.from_pretrained(folder / "best")  # tied, so the checkpoint has all of it
    with torch.no_grad():
        expected = token_losses(decoder, part)
    np.testing.assert_allclose(found[:, 0], [-losses.sum().item() for losses in expected], rtol=1e-4)
    assert found[:, 1].tolist() == [len(losses) for losses in expected]
    mean = torch.cat(expected).mean().item()
    assert last.metrics["answers/loss"] == pytest.approx(mean, rel=1e-4)
    assert last.metrics["answers/perplexity"] == pytest.approx(np.exp(mean), rel=1e-4)
    written = done.predictions["answers"]["validation"].outputs
    assert last.metrics["answers/exact_match"] == pytest.approx(np.mean(written == part.labels))
    assert last.metrics["answers/exact_match"] > 0.5
    assert last.score == pytest.approx(-np.exp(mean), rel=1e-4)
    assert done.predictions["answers"]["test"].outputs.shape == (9,)


@pytest.mark.parametrize("adapter", [{}, {"adapter": "lora", "lora_r": 2}], ids=["full", "lora"])
def test_a_run_killed_within_an_epoch_ends_bit_equal_and_writes_the_same(
    tune: Callable[..., Any], tmp_path: Path, adapter: dict[str, Any]
) -> None:
    often = {"evals_per_epoch": 2, **adapter}
    done, reports = tune(tmp_path / "whole", **often)
    with pytest.raises(InterruptedError):
        tune(tmp_path / "cut", stop_after=3, **often)
    torch.manual_seed(99)
    resumed, later = tune(tmp_path / "cut", **often)
    assert_same_end(done, resumed, tmp_path / "whole", tmp_path / "cut")
    assert later == [replace(reports[2], repeated=True), *reports[3:]]


def test_texts_are_written_once_where_no_metric_of_an_evaluation_needs_them(
    tune: Callable[..., Any], tmp_path: Path
) -> None:
    task = replace(TASK, report=(), generation=replace(TASK.generation, at_evaluations=False))
    done, reports = tune(tmp_path, tasks=(task,), num_train_epochs=1)
    assert "answers/perplexity" in reports[0].metrics
    assert not {"answers/rouge_l", "answers/exact_match"} & reports[0].metrics.keys()
    assert all(isinstance(text, str) for text in done.predictions["answers"]["validation"].outputs)


def with_scores(
    folder: Path, part: EncodedPart, settings: dict[str, Any], **options: Any
) -> tuple[list[str], np.ndarray]:
    model, _ = load_checkpoint(folder)
    model.tasks["answers"] = replace(TASK, generation=Generation(settings))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found, scores = generate(model, part, task="answers", tokenizer=tokenizer, device=torch.device("cpu"), **options)
    return list(found), scores


def test_of_several_samples_of_a_row_the_first_one_has_its_own_score(
    whole: tuple[Any, Any, Path], texts: dict[str, dict[str, EncodedPart]]
) -> None:
    settings = {"max_new_tokens": 3, "do_sample": True, "num_return_sequences": 2}
    found, scores = with_scores(whole[2] / "best", texts["answers"]["test"], settings)
    assert len(scores) == len(found)
    assert (np.isfinite(scores) & (scores < 0)).all()


def written(folder: Path, part: EncodedPart, settings: dict[str, Any], **options: Any) -> list[str]:
    return with_scores(folder, part, settings, **options)[0]


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3, "num_return_sequences": 2}], ids=["greedy", "beams"])
def test_a_row_has_the_same_text_in_a_batch_of_any_size(
    whole: tuple[Any, Any, Path], texts: dict[str, dict[str, EncodedPart]], settings: dict[str, Any]
) -> None:
    part = texts["answers"]["test"]
    together = written(whole[2] / "best", part, {"max_new_tokens": 5, **settings})
    assert together == written(whole[2] / "best", part, {"max_new_tokens": 5, **settings}, max_tokens=1)
    assert len(set(together)) > 1


@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 3.0}, {"num_beams": 2}], ids=str)
def test_a_text_has_the_log_probability_of_its_tokens_and_of_its_end(
    whole: tuple[Any, Any, Path], texts: dict[str, dict[str, EncodedPart]], settings: dict[str, Any]
) -> None:
    part, folder = texts["answers"]["test"], whole[2] / "best"
    found, scores = with_scores(folder, part, {"max_new_tokens": 5, **settings})
    decoder, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for prompt, text, score in zip(part.encoded["input_ids"], found, scores, strict=True):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = [*ids, END] if len(ids) < 5 else ids
        with torch.no_grad():
            logits = decoder(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        expected = -functional.cross_entropy(logits, torch.tensor(ids), reduction="sum")
        assert score == pytest.approx(expected.item(), abs=1e-3)


def test_writing_reads_each_token_once_and_leaves_an_adapter_and_its_weights_as_they_were(
    tune: Callable[..., Any], texts: dict[str, dict[str, EncodedPart]], tmp_path: Path
) -> None:
    tune(tmp_path, num_train_epochs=1, adapter="lora", lora_r=2, learning_rate=0.1)
    model, _ = load_checkpoint(tmp_path / "best")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    widths = []
    model.encoder.register_forward_pre_hook(
        lambda _, __, given: widths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    tokenizer, part = AutoTokenizer.from_pretrained(tmp_path / "best"), texts["answers"]["test"]
    generate(model, part, task="answers", tokenizer=tokenizer, device=torch.device("cpu"))
    assert widths[1:] == [1] * (len(widths) - 1)
    assert len(widths) > 1
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_texts_that_are_drawn_are_the_same_again_and_leave_the_state_of_chance(
    whole: tuple[Any, Any, Path], texts: dict[str, dict[str, EncodedPart]]
) -> None:
    drawn = {"max_new_tokens": 5, "do_sample": True, "temperature": 5.0}
    torch.manual_seed(1)
    first = written(whole[2] / "best", texts["answers"]["test"], drawn)
    state = torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    assert first == written(whole[2] / "best", texts["answers"]["test"], drawn)
    assert first != written(whole[2] / "best", texts["answers"]["test"], drawn, seed=7)


def test_each_prompt_counts_and_the_generated_tokens_do_not(texts: dict[str, dict[str, EncodedPart]]) -> None:
    test = texts["answers"]["test"]
    assert test.targets.tolist() == test.encoded["source"][:] == test.lengths.tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"temprature": 0.5},
            "temprature must be a field of .*GenerationConfig; .*did you mean 'temperature'",
        ),
        ({"num_beams": 2, "num_return_sequences": 4}, "generation must be settings that fit each other; got"),
        ({"temperature": 0.5}, "generation must be settings that fit each other; got"),  # greedy
    ],
)
def test_settings_that_transformers_does_not_know_or_allow_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        generation_config(settings)


def test_packed_rows_have_the_likelihoods_and_the_training_of_padded_ones(
    tune: Callable[..., Any], whole: tuple[Any, Any, Path], texts: dict[str, dict[str, EncodedPart]], tmp_path: Path
) -> None:
    model, _ = load_checkpoint(whole[-1] / "best")
    part = texts["answers"]["validation"]
    options: dict[str, Any] = {"task": "answers", "batch_size": 4, "device": torch.device("cpu")}
    padded = likelihoods(model, part, **options)
    pack_rows(model.encoder, asked=False, exact=True)
    model.packs = True
    np.testing.assert_allclose(likelihoods(model, part, **options), padded, rtol=1e-5)
    _, reports = tune(tmp_path, num_train_epochs=12, batching="packed", group_by_length=False)
    assert reports[-1].metrics["answers/perplexity"] < reports[0].metrics["answers/perplexity"] / 2


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_tuned_with_an_adapter_and_writes_and_packs_as_it_does_row_by_row(
    make_tune: Callable[..., Tune], texts: dict[str, dict[str, EncodedPart]], tmp_path: Path, kind: str
) -> None:
    save_decoder(tmp_path / "backbone", kind)
    keys = {"max_steps": 2, "learning_rate": 0.1, "adapter": "lora", "lora_r": 2}
    run = make_tune(tmp_path / "backbone", **{**TRAINING, **keys})
    task = replace(TASK, report=(), generation=Generation({"max_new_tokens": 3}))
    done, reports = run(tmp_path / "trial", tasks=(task,), parts=texts)
    assert not (tmp_path / "trial/best/model.safetensors").exists()
    part, options = texts["answers"]["validation"], {"task": "answers", "device": torch.device("cpu")}
    model, _ = load_checkpoint(tmp_path / "trial/best")
    alone = likelihoods(model, part, batch_size=1, **options)
    np.testing.assert_allclose(likelihoods(model, part, batch_size=16, **options), alone, rtol=1e-4)
    assert reports[-1].metrics["answers/loss"] == pytest.approx(-alone[:, 0].sum() / alone[:, 1].sum(), rel=1e-4)
    found = written(tmp_path / "trial/best", texts["answers"]["test"], {"max_new_tokens": 3}, max_tokens=1)
    assert done.predictions["answers"]["test"].outputs.tolist() == found
    if kind == "gpt2":
        with pytest.raises(TrialError, match="packed with a model of type 'gpt2'"):
            pack_rows(model.encoder, asked=False, exact=True)
        return
    pack_rows(model.encoder, asked=False, exact=True)
    model.packs = True
    np.testing.assert_allclose(likelihoods(model, part, batch_size=16, **options), alone, rtol=1e-4)


def test_questions_are_answered_at_the_end_even_where_patience_ends_it(
    tune: Callable[..., Any], texts: dict[str, dict[str, EncodedPart]], tmp_path: Path
) -> None:
    questions = replace(texts["answers"]["validation"], groups=np.array(["a", "b", "b"] * 5, dtype=object))
    parts = {"answers": {**texts["answers"], "report-quiz": questions}}
    task = replace(TASK, generation=Generation({"max_new_tokens": 2}, report_sets={"quiz": "end"}))
    options = {"early_stopping_patience": 2, "learning_rate": 0.0, "num_train_epochs": 5}
    result, reports = tune(tmp_path, tasks=(task,), parts=parts, **options)
    assert ["answers/quiz" in report.metrics for report in reports] == [False, False, True]
    assert reports[-1].set_scores == {"answers/quiz": reports[-1].metrics["answers/quiz"]}
    assert {"answers/quiz/a", "answers/quiz/b"} <= reports[-1].metrics.keys()
    assert "report-quiz" not in result.predictions["answers"]
