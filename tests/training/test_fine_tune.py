from __future__ import annotations

import json
import logging
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tutti.data.encode import EncodedPart
from tutti.errors import BackboneError, StorageError, TrialError
from tutti.files import sha256_of
from tutti.modeling.checkpoint import load_checkpoint
from tutti.tasks.task import Task
from tutti.training import EpochReport, FineTuned, fine_tune, precision
from tutti.training.trainer import MultiTaskTrainer

Tune = Callable[..., tuple[FineTuned, list[EpochReport]]]
TRAINING = {"num_train_epochs": 3, "per_device_train_batch_size": 8, "learning_rate": 3e-3, "logging_steps": 4}
TRAINING |= {"bf16": False}  # for equal numbers on any machine


@pytest.fixture(scope="module")
def tune(make_tune: Callable[..., Tune], backbone: Path) -> Tune:
    return make_tune(backbone, **TRAINING)


@pytest.fixture(scope="module")
def steady_tune(make_tune: Callable[..., Tune], steady_backbone: Path) -> Tune:
    return make_tune(steady_backbone, **TRAINING)


RANDOM = {"ema_decay": 0.9, "head_dropout": 0.3}


@pytest.fixture(scope="module")
def whole(tune: Tune, tmp_path_factory: pytest.TempPathFactory) -> tuple[FineTuned, list[EpochReport], Path]:
    """An uninterrupted run of three epochs, with weight average and dropout."""
    folder = tmp_path_factory.mktemp("whole")
    return *tune(folder, **RANDOM), folder


def _newest(folder: Path) -> Path:
    """The folder of the newest state."""
    return max(
        (folder / "resume").glob("stage-*"), key=lambda path: [int(number) for number in path.name.split("-")[1::2]]
    )


def _final_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(_newest(folder) / "model.safetensors")


def _assert_same_end(one: FineTuned, other: FineTuned, folder: Path, other_folder: Path) -> None:
    torch.testing.assert_close(_final_weights(folder), _final_weights(other_folder), rtol=0, atol=0)
    for task, by_part in one.predictions.items():
        for part, predictions in by_part.items():
            other_probabilities = other.predictions[task][part].probabilities
            np.testing.assert_array_equal(predictions.probabilities, other_probabilities)


def test_a_run_learns_reports_each_epoch_and_predicts_the_other_parts(
    tune: Tune, tmp_path: Path, parts: dict[str, dict[str, EncodedPart]], tasks: tuple[Task, ...]
) -> None:
    done, reports = tune(tmp_path, num_train_epochs=6)
    assert [report.epoch for report in reports] == list(range(1, 7))
    assert [report.done for report in reports] == [False] * 5 + [True]
    assert done.checkpoint.score == max(report.score for report in reports) > 0.8
    assert reports[-1].metrics["train_loss"] < reports[0].metrics["train_loss"]
    for task in tasks:
        assert set(done.predictions[task.name]) == {"validation", "test"}  # training rows are not predicted
        for name, predictions in done.predictions[task.name].items():
            part = parts[task.name][name]
            np.testing.assert_array_equal(predictions.ids, part.ids)
            assert (predictions.labels is None) == (name == "test")
            assert predictions.class_names == task.class_names


def test_a_report_holds_scores_losses_and_the_steps_of_its_epoch(tune: Tune, tmp_path: Path) -> None:
    _, reports = tune(tmp_path)
    first = reports[0]
    assert set(first.metrics) == {
        "train_loss",
        *("news.v1/train_loss", "news.v1/loss", "news.v1/macro_f1", "news.v1/accuracy"),
        *("mood/train_loss", "mood/loss", "mood/macro_f1", "mood/accuracy"),
    }
    assert first.task_scores == {
        "news.v1": first.metrics["news.v1/macro_f1"],
        "mood": first.metrics["mood/accuracy"],
    }
    assert first.score == pytest.approx(np.mean(list(first.task_scores.values())))
    assert [[step for step, _ in report.steps] for report in reports] == [[4, 8, 12], [16, 20, 24], [28, 32, 36]]
    assert set(first.steps[0][1]) == {"loss", "grad_norm", "learning_rate"}
    mean = np.mean([values["loss"] for _, values in first.steps])
    assert first.metrics["train_loss"] == pytest.approx(mean, rel=1e-5)


def test_the_last_part_of_an_epoch_is_logged_at_its_end(tune: Tune, tmp_path: Path) -> None:
    _, reports = tune(tmp_path, logging_steps=5, num_train_epochs=1)
    assert [step for step, _ in reports[0].steps] == [5, 10, 12]


def test_an_epoch_is_evaluated_so_often_as_asked_for_and_that_changes_nothing_of_what_is_learnt(
    tune: Tune, tmp_path: Path
) -> None:
    tricks = {**RANDOM, "loss_balancing": "dynamic", "num_train_epochs": 3}
    _, plain = tune(tmp_path / "plain", **tricks)
    done, reports = tune(tmp_path / "often", evals_per_epoch=5, **tricks)
    assert [report.epoch for report in reports] == list(range(1, 16))
    assert [report.done for report in reports] == [False] * 14 + [True]
    assert [report.steps[-1][0] for report in reports[:6]] == [3, 5, 8, 10, 12, 15]
    torch.testing.assert_close(_final_weights(tmp_path / "plain"), _final_weights(tmp_path / "often"), rtol=0, atol=0)
    assert [report.metrics for report in reports[4::5]] == [report.metrics for report in plain]
    assert done.checkpoint.score == max(report.score for report in reports)


@pytest.mark.parametrize("killed_after", [3, 4], ids=["within an epoch", "at its end"])
def test_a_run_killed_after_an_evaluation_ends_bit_equal_to_one_that_was_not(
    tune: Tune, tmp_path: Path, killed_after: int
) -> None:
    often = {**RANDOM, "evals_per_epoch": 2, "loss_balancing": "dynamic"}
    done, reports = tune(tmp_path / "whole", **often)
    with pytest.raises(InterruptedError):
        tune(tmp_path / "cut", stop_after=killed_after, **often)
    torch.manual_seed(99)
    resumed, later = tune(tmp_path / "cut", **often)
    _assert_same_end(done, resumed, tmp_path / "whole", tmp_path / "cut")
    assert [(report.epoch, report.metrics, report.steps) for report in later] == [
        (report.epoch, report.metrics, report.steps) for report in reports[killed_after:]
    ]


@pytest.mark.parametrize(
    ("training", "evaluations", "steps"),
    [
        ({"num_train_epochs": 0.5}, [1], [6]),
        ({"num_train_epochs": 1.5}, [1, 2, 3], [6, 12, 18]),
        ({"num_train_epochs": 1.4}, [1, 2, 3], [6, 12, 17]),
        ({"max_steps": 8}, [1, 2], [6, 8]),
        ({"num_train_epochs": 1, "gradient_accumulation_steps": 3}, [1, 2], [2, 4]),
        ({"num_train_epochs": 1, "gradient_accumulation_steps": 8}, [1, 2], [1, 2]),
        ({"num_train_epochs": 1, "gradient_accumulation_steps": 12}, [2], [1]),
        (
            {"stages": [{"num_train_epochs": 1.5}, {"num_train_epochs": 1, "freeze_encoder": True}]},
            [1, 2, 3, 5, 6],
            [6, 12, 18, 24, 30],
        ),
    ],
)
def test_evaluations_are_counted_whatever_ends_an_epoch_and_the_last_is_at_the_end(
    tune: Tune, tmp_path: Path, training: dict[str, Any], evaluations: list[int], steps: list[int]
) -> None:
    _, reports = tune(tmp_path, evals_per_epoch=2, **training)
    assert [report.epoch for report in reports] == evaluations
    assert [report.steps[-1][0] for report in reports] == steps
    assert [report.whole for report in reports] == [report.epoch >= 2 or report.done for report in reports]
    assert [report.done for report in reports] == [False] * (len(reports) - 1) + [True]


def test_a_run_of_pairs_learns_from_both_texts_and_its_checkpoint_says_the_same(
    tune: Tune, backbone: Path, tasks: tuple[Task, ...], parts: dict[str, dict[str, EncodedPart]], tmp_path: Path
) -> None:
    def with_types(part: EncodedPart) -> EncodedPart:
        types = [[int(position > 1) for position in range(len(row))] for row in part.encoded["input_ids"]]
        return replace(part, encoded=part.encoded.add_column("token_type_ids", types))

    mood = next(task for task in tasks if task.name == "mood")
    pairs = {"mood": {name: with_types(part) for name, part in parts["mood"].items()}}
    trick = {"pooling": "pair", "rdrop_alpha": 1.0, "num_train_epochs": 4}
    done, reports = tune(tmp_path, tasks=(replace(mood, pair=True),), parts=pairs, **trick)
    assert done.checkpoint.score == max(report.score for report in reports) > 0.8
    model, _ = load_checkpoint(tmp_path / "best")
    assert model.head("mood").linear.in_features == 4 * model.config.hidden_size
    part = pairs["mood"]["validation"]
    probabilities = done.predictions["mood"]["validation"].probabilities
    assert probabilities is not None
    for row in range(4):
        ids, types = (torch.tensor([part.encoded[row][name]]) for name in ("input_ids", "token_type_ids"))
        with torch.no_grad():
            outputs = model("mood", ids, torch.ones_like(ids), types).softmax(dim=1)[0]
        np.testing.assert_allclose(outputs.numpy(), probabilities[row], atol=1e-5)


def test_the_best_checkpoint_gives_the_recorded_score(tune: Tune, tmp_path: Path, tasks: tuple[Task, ...]) -> None:
    done, reports = tune(tmp_path)
    _, metadata = load_checkpoint(tmp_path / "best")
    best = max(reports, key=lambda report: report.score)
    assert (metadata.epoch, metadata.score, metadata.key) == (best.epoch, best.score, "t0003")
    assert done.checkpoint.path == str(tmp_path / "best")
    validation = done.predictions["mood"]["validation"]
    assert validation.probabilities is not None
    accuracy = (validation.probabilities.argmax(axis=1) == validation.labels).mean()
    assert accuracy == done.checkpoint.task_scores["mood"]


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_a_run_stopped_after_an_epoch_ends_bit_equal_to_one_that_was_not(
    tune: Tune, tmp_path: Path, stop_after: int, whole: tuple[FineTuned, list[EpochReport], Path]
) -> None:
    done, reports, folder = whole
    with pytest.raises(InterruptedError):
        tune(tmp_path, stop_after=stop_after, **RANDOM)
    torch.manual_seed(99)  # resuming must not depend on the generator's state
    resumed, later = tune(tmp_path, **RANDOM)
    _assert_same_end(done, resumed, folder, tmp_path)
    assert [(report.epoch, report.metrics, report.steps) for report in later] == [
        (report.epoch, report.metrics, report.steps) for report in reports[stop_after:]
    ]
    assert done.checkpoint.score == resumed.checkpoint.score
    assert done.checkpoint.parameters == resumed.checkpoint.parameters


def test_a_run_can_be_ended_after_any_step_that_no_evaluation_follows(
    backbone: Path, tasks: tuple[Task, ...], parts: dict[str, dict[str, EncodedPart]], tmp_path: Path
) -> None:
    steps: list[int] = []

    def on_step() -> None:
        steps.append(len(steps) + 1)
        if len(steps) == 3:
            raise InterruptedError

    def run(training: dict[str, Any], call: Any) -> None:
        arguments: dict[str, Any] = {"backbone": str(backbone), "tasks": tasks, "parts": parts, "folder": tmp_path}
        fine_tune(**arguments, training={**TRAINING, **training}, on_epoch=lambda report: None, on_step=call)

    with pytest.raises(InterruptedError):
        run({}, on_step)
    assert steps == [1, 2, 3]
    run({"max_steps": 1}, lambda: pytest.fail("its only step is evaluated"))


def test_the_weights_are_counted_that_the_last_stage_trains(
    tune: Tune, tmp_path: Path, whole: tuple[FineTuned, list[EpochReport], Path]
) -> None:
    done, _, folder = whole
    model, _ = load_checkpoint(folder / "best")
    assert done.checkpoint.parameters == sum(each.numel() for each in model.parameters())
    stages = [{"num_train_epochs": 1}, {"num_train_epochs": 1, "freeze_encoder": True}]
    heads = tune(tmp_path, stages=stages)[0].checkpoint.parameters
    assert heads == sum(each.numel() for name, each in model.named_parameters() if not name.startswith("encoder."))


EVERYTHING = {
    "ema_decay": 0.9,
    "head_dropout": 0.3,
    "pooling_layers": 2,
    "head_dropout_samples": 2,
    "rdrop_alpha": 1.0,
    "loss_balancing": "uncertainty",
    "adversarial": "awp",
    "mixout": 0.1,
    "layer_lr_decay": 0.9,
    "state_steps": 5,
    "stages": [{"num_train_epochs": 2}, {"num_train_epochs": 1, "freeze_encoder": True, "adversarial": None}],
}


@pytest.mark.parametrize("lost", [1, 2], ids=["in the second stage", "in the first stage"])
def test_a_run_cut_within_an_epoch_ends_bit_equal_with_every_trick_on(tune: Tune, tmp_path: Path, lost: int) -> None:
    done, reports = tune(tmp_path / "whole", **EVERYTHING)
    with pytest.raises(InterruptedError):
        tune(tmp_path / "cut", stop_after=4 - lost, **EVERYTHING)
    states = sorted(path.name for path in (tmp_path / "cut" / "resume").glob("stage-*"))
    assert states == {1: ["stage-1-step-10", "stage-1-step-12"], 2: ["stage-0-step-20", "stage-0-step-24"]}[lost]
    shutil.rmtree(
        tmp_path / "cut" / "resume" / states[-1]
    )  # as if killed some steps later, before the state was complete
    torch.manual_seed(99)
    resumed, later = tune(tmp_path / "cut", **EVERYTHING)
    _assert_same_end(done, resumed, tmp_path / "whole", tmp_path / "cut")
    assert [(report.epoch, report.metrics, report.steps) for report in later] == [
        (report.epoch, report.metrics, report.steps) for report in reports[-len(later) :]
    ]


def test_a_run_whose_data_workers_stay_ends_bit_equal_when_cut_within_an_epoch(tune: Tune, tmp_path: Path) -> None:
    staying = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "num_train_epochs": 2}
    staying |= {"evals_per_epoch": 2}
    done, _ = tune(tmp_path / "whole", **staying)
    with pytest.raises(InterruptedError):
        tune(tmp_path / "cut", stop_after=1, **staying)
    resumed, _ = tune(tmp_path / "cut", **staying)
    _assert_same_end(done, resumed, tmp_path / "whole", tmp_path / "cut")


STAGED = {"stages": [{"num_train_epochs": 1}, {"num_train_epochs": 2, "mixout": 0.3, "learning_rate": 1e-2}]}


@pytest.mark.parametrize("gains", [True, False])
def test_a_run_goes_on_in_its_precision_on_a_machine_where_the_other_is_the_faster(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gains: bool
) -> None:
    whole, _ = tune(tmp_path / "whole", bf16=gains)
    monkeypatch.setattr(precision, "cpu_gains_from_bf16", lambda: gains)
    with pytest.raises(InterruptedError):
        tune(tmp_path / "cut", bf16=None, stop_after=1)
    monkeypatch.setattr(precision, "cpu_gains_from_bf16", lambda: not gains)
    done, _ = tune(tmp_path / "cut", bf16=None)
    _assert_same_end(whole, done, tmp_path / "whole", tmp_path / "cut")


def test_a_run_begun_in_fp16_goes_on_where_nothing_scales_the_loss(
    tune: Tune, tmp_path: Path, whole: tuple[FineTuned, list[EpochReport], Path]
) -> None:
    with pytest.raises(InterruptedError):
        tune(tmp_path, stop_after=1, **RANDOM)
    state = _newest(tmp_path)
    scaler = {"scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}
    torch.save({**scaler, "_growth_tracker": 12}, state / "scaler.pt")
    manifest = json.loads((state / "manifest.json").read_text())
    manifest["files"]["scaler.pt"] = sha256_of(state / "scaler.pt")
    (state / "manifest.json").write_text(json.dumps(manifest))
    done, later = tune(tmp_path, **RANDOM)
    assert [report.epoch for report in later] == [2, 3]
    _assert_same_end(whole[0], done, whole[2], tmp_path)


@pytest.fixture(scope="module")
def staged(tune: Tune, tmp_path_factory: pytest.TempPathFactory) -> tuple[FineTuned, Path]:
    folder = tmp_path_factory.mktemp("staged")
    return tune(folder, **STAGED)[0], folder


@pytest.mark.parametrize("lost", [[], ["stage-1-step-12"], ["stage-1-step-12", "best"]], ids=str)
def test_a_later_stage_begins_from_the_same_weights_whenever_it_is_begun_again(
    tune: Tune, tmp_path: Path, lost: list[str], staged: tuple[FineTuned, Path]
) -> None:
    with pytest.raises(InterruptedError):
        tune(tmp_path, stop_after=2, **STAGED)
    for name in lost:
        if name == "best":  # killed between the two renames of a replacement
            retired = tmp_path / ".best.x_0y1z2w.old"
            retired.mkdir()
            (tmp_path / "best").rename(retired / "best")
        else:  # damaged, or incomplete when killed
            (tmp_path / "resume" / name / "model.safetensors").write_bytes(b"")
    resumed, _ = tune(tmp_path, **STAGED)
    _assert_same_end(staged[0], resumed, staged[1], tmp_path)
    assert not list(tmp_path.glob(".best*"))


def test_stages_see_their_batches_in_different_orders(steady_tune: Tune, tmp_path: Path) -> None:
    stages = [{"num_train_epochs": 1}, {"num_train_epochs": 1}]
    _, reports = steady_tune(tmp_path, logging_steps=1, learning_rate=1e-30, head_dropout=0.0, stages=stages)
    one, two = ([values["loss"] for _, values in report.steps] for report in reports)
    assert one != pytest.approx(two, rel=1e-3)  # the weights are equal and dropout is off: only the batches differ


def test_the_highest_seed_has_stages_too(tune: Tune, tmp_path: Path) -> None:
    _, reports = tune(tmp_path, seed=2**32 - 1, stages=[{"max_steps": 1}, {"max_steps": 1}])
    assert [report.epoch for report in reports] == [1, 2]


SWITCHES: dict[str, dict[str, Any]] = {
    "class weights": {"class_weights": "balanced"},
    "focal": {"focal_gamma": 2.0},
    "task weights": {"task_weights": {"mood": 2.0}},
    "uncertainty": {"loss_balancing": "uncertainty"},
    "R-Drop": {"rdrop_alpha": 2.0},
    "FGM": {"adversarial": "fgm"},
    "AWP": {"adversarial": "awp"},
    "mixout": {"mixout": 0.5},
    "reinit": {"reinit_layers": 1},
    "layer rates": {"layer_lr_decay": 0.5},
    "head rate": {"head_learning_rate": 1e-2},
    "last layers": {"pooling_layers": 2},
    "dropout samples": {"head_dropout_samples": 3},
    "uniform": {"task_sampling": "uniform"},
    "temperature": {"task_sampling": "temperature", "sampling_temperature": 50.0},
    "ungrouped": {"group_by_length": False},
    "token budget": {"max_tokens_per_batch": 100},
    "LoRA": {"adapter": "lora"},
}


@pytest.fixture(scope="module")
def plain_losses(tune: Tune, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    _, (report,) = tune(tmp_path_factory.mktemp("switch"), num_train_epochs=1, logging_steps=1)
    return [values["loss"] for _, values in report.steps]


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_changes_what_is_trained(tune: Tune, tmp_path: Path, name: str, plain_losses: list[float]) -> None:
    _, (report,) = tune(tmp_path, num_train_epochs=1, logging_steps=1, **SWITCHES[name])
    assert [values["loss"] for _, values in report.steps] != plain_losses


def test_mixout_keeps_nothing_of_layers_that_start_anew(tune: Tune, tmp_path: Path) -> None:
    _, plain = tune(tmp_path / "plain", num_train_epochs=1, reinit_layers=2)
    _, mixed = tune(tmp_path / "mixed", num_train_epochs=1, reinit_layers=2, mixout=0.5)
    assert mixed[0].steps == plain[0].steps  # mixout has no layer left


def test_an_attack_begins_with_its_epoch(tune: Tune, tmp_path: Path) -> None:
    attack = {"adversarial": "fgm", "num_train_epochs": 2}
    _, plain = tune(tmp_path / "plain", num_train_epochs=2)
    _, late = tune(tmp_path / "late", adversarial_start=1, **attack)
    assert late[0].metrics == plain[0].metrics
    assert late[1].metrics != plain[1].metrics


def _seen(parts: dict[str, dict[str, EncodedPart]]) -> list[int]:
    """The words whose embeddings are trained: those of training rows, and the padding token."""
    return sorted({0}.union(*(row for part in parts.values() for row in part["train"].encoded["input_ids"])))


WORDS = "encoder.embeddings.word_embeddings.weight"


def test_the_mean_over_the_last_epochs_is_what_is_kept(
    tune: Tune, parts: dict[str, dict[str, EncodedPart]], tmp_path: Path
) -> None:
    tune(tmp_path, swa_epochs=2, num_train_epochs=2)
    ends = [load_file(tmp_path / "resume" / f"stage-0-step-{step}" / "model.safetensors") for step in (12, 24)]
    average = load_file(_newest(tmp_path) / "average.safetensors")
    assert average.pop("updates") == 2
    ends = [{**end, WORDS: end[WORDS][_seen(parts)]} for end in ends]
    for name, weight in average.items():
        torch.testing.assert_close(weight, (ends[0][name] + ends[1][name]) / 2, rtol=1e-5, atol=1e-6)


def test_the_balance_of_tasks_is_learnt_within_a_run(tune: Tune, tmp_path: Path) -> None:
    tune(tmp_path, loss_balancing="uncertainty", learning_rate=1e-5)
    learnt = json.loads((_newest(tmp_path) / "progress.json").read_text())["balance"]
    assert max(abs(value) for value in learnt.values()) > 0.05


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"reinit_layers": 3}, "reinit_layers must be at most 2"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "min_lr or min_lr_rate should be set"),
        (
            {"optim": "apollo_adamw", "optim_target_modules": "attn", "layer_lr_decay": 0.9},
            "fit the machine|one setting",
        ),
    ],
)
def test_what_the_model_or_the_optimizer_cannot_do_is_a_trial_error(
    tune: Tune, tmp_path: Path, training: dict[str, Any], words: str
) -> None:
    with pytest.raises(TrialError, match=words):
        tune(tmp_path, **training)


def test_an_optimizer_of_8_bits_keeps_its_rule_for_embeddings_with_rates_of_their_own(
    tune: Tune, tmp_path: Path
) -> None:
    pytest.importorskip("bitsandbytes")
    done, _ = tune(tmp_path, optim="adamw_8bit", layer_lr_decay=0.9, num_train_epochs=1)
    assert done.checkpoint.epoch == 1


def test_a_state_of_other_workers_is_passed_over(tune: Tune, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tune(tmp_path, num_train_epochs=1)
    manifest = _newest(tmp_path) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"workers": 1', '"workers": 2'))
    with caplog.at_level(logging.WARNING):
        _, reports = tune(tmp_path, num_train_epochs=1)
    assert len(reports) == 1
    assert "made by 2 workers" in caplog.text


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _of_another_version(manifest: Path) -> None:
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 1}))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda state: _cut(state / "optimizer.pt"), id="optimizer cut short"),
        pytest.param(lambda state: (state / "scheduler.pt").unlink(), id="scheduler missing"),
        pytest.param(lambda state: (state / "rng_state.pth").unlink(), id="random state missing"),
        pytest.param(lambda state: (state / "manifest.json").unlink(), id="manifest missing"),
        pytest.param(lambda state: _cut(state / "manifest.json"), id="manifest cut short"),
        pytest.param(lambda state: _of_another_version(state / "manifest.json"), id="of another version"),
    ],
)
def test_a_damaged_newest_state_is_passed_over_for_the_one_before(
    tune: Tune,
    tmp_path: Path,
    damage: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
    whole: tuple[FineTuned, list[EpochReport], Path],
) -> None:
    done, _, folder = whole
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    damage(_newest(damaged))
    with caplog.at_level(logging.WARNING):
        again, reports = tune(damaged, **RANDOM)
    assert [report.epoch for report in reports] == [3]
    assert "stage-0-step-36 is passed over" in caplog.text
    _assert_same_end(done, again, folder, damaged)


def test_without_a_whole_state_a_run_starts_anew(tune: Tune, tmp_path: Path) -> None:
    tune(tmp_path, num_train_epochs=1)
    for state in (tmp_path / "resume").iterdir():
        (state / "model.safetensors").unlink()
    _, reports = tune(tmp_path, num_train_epochs=1)
    assert [report.epoch for report in reports] == [1]


def test_the_newest_two_states_are_kept(whole: tuple[FineTuned, list[EpochReport], Path]) -> None:
    folder = whole[2]
    assert sorted(path.name for path in (folder / "resume").iterdir()) == ["stage-0-step-24", "stage-0-step-36"]
    assert sorted(path.name for path in folder.iterdir()) == ["best", "resume"]


@pytest.mark.parametrize("training", [{}, {"max_steps": 17}])
def test_a_finished_run_trains_no_more(tune: Tune, tmp_path: Path, training: dict[str, Any]) -> None:
    whole, reports = tune(tmp_path, **training)
    assert reports[-1].done
    weights = _final_weights(tmp_path)
    again, none = tune(tmp_path, **training)
    assert none == []
    torch.testing.assert_close(weights, _final_weights(tmp_path), rtol=0, atol=0)
    np.testing.assert_array_equal(
        whole.predictions["mood"]["test"].probabilities, again.predictions["mood"]["test"].probabilities
    )


def test_max_steps_ends_a_run_within_an_epoch(tune: Tune, tmp_path: Path) -> None:
    _, reports = tune(tmp_path, max_steps=17)
    assert [(report.epoch, report.done) for report in reports] == [(1, False), (2, True)]
    assert reports[-1].steps[-1][0] == 17


def test_with_an_average_the_averaged_weights_are_evaluated_and_kept(
    tune: Tune, parts: dict[str, dict[str, EncodedPart]], tmp_path: Path
) -> None:
    tune(tmp_path, ema_decay=0.99, num_train_epochs=1)
    average = load_file(_newest(tmp_path) / "average.safetensors")
    saved = load_file(tmp_path / "best" / "model.safetensors")
    saved[WORDS.removeprefix("encoder.")] = saved[WORDS.removeprefix("encoder.")][_seen(parts)]
    own = _final_weights(tmp_path)
    own[WORDS] = own[WORDS][_seen(parts)]
    for name, weight in saved.items():
        torch.testing.assert_close(weight, average[f"encoder.{name}"], rtol=0, atol=0)
        assert not torch.equal(weight, own[f"encoder.{name}"])


class _TwoSetsOfWeights(torch.optim.SGD):
    """SGD with the evaluation mode of a schedule-free optimizer, in which the weights are divided by 3."""

    evaluating = False

    def eval(self) -> None:
        self._switch(evaluating=True)

    def train(self) -> None:
        self._switch(evaluating=False)

    def _switch(self, *, evaluating: bool) -> None:
        if evaluating is not self.evaluating:  # the Trainer calls train() before each step
            for weight in self.param_groups[0]["params"] + self.param_groups[1]["params"]:
                weight.data.mul_(1 / 3 if evaluating else 3)
        self.evaluating = evaluating


def test_what_a_schedule_free_optimizer_has_found_is_evaluated_and_kept_and_not_trained_on(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"num_train_epochs": 1, "optim": "sgd", "learning_rate": 0.1}
    tune(tmp_path / "plain", **settings)
    monkeypatch.setattr(torch.optim, "SGD", _TwoSetsOfWeights)
    tune(tmp_path / "found", **settings)
    tune(tmp_path / "often", evals_per_epoch=3, **settings)
    trained, name = _final_weights(tmp_path / "plain"), "heads.task:mood.linear.weight"
    for folder in ("found", "often"):  # restoring the weights leaves no rounding error
        torch.testing.assert_close(_final_weights(tmp_path / folder), trained, rtol=0, atol=0)
    saved = load_file(tmp_path / "found" / "best" / "heads.safetensors")
    torch.testing.assert_close(saved[name.removeprefix("heads.")], trained[name] / 3)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tune: Tune, tmp_path: Path) -> None:
    for name, seed in {"a": 7, "b": 7, "c": 8}.items():
        tune(tmp_path / name, seed=seed, num_train_epochs=1)
    first, second, other = (_final_weights(tmp_path / name) for name in "abc")
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not torch.equal(first["heads.task:mood.linear.weight"], other["heads.task:mood.linear.weight"])


def test_accumulated_batches_give_the_loss_and_weights_of_one_large_batch(
    steady_backbone: Path, tasks: tuple[Task, ...], parts: dict[str, dict[str, EncodedPart]], tmp_path: Path
) -> None:
    reports: dict[int, list[EpochReport]] = {1: [], 4: []}
    for steps, batch in ((1, 40), (4, 10)):  # 37 rows: the last of the four batches is smaller
        fine_tune(
            backbone=str(steady_backbone),
            tasks=tasks[1:],
            parts=parts,
            training={"per_device_train_batch_size": batch, "gradient_accumulation_steps": steps}
            | {"optim": "sgd", "learning_rate": 0.1, "head_dropout": 0.0, "logging_steps": 1, "bf16": False},
            folder=tmp_path / str(steps),
            on_epoch=reports[steps].append,
        )
    torch.testing.assert_close(_final_weights(tmp_path / "1"), _final_weights(tmp_path / "4"), rtol=1e-4, atol=1e-6)
    for one, four in zip(reports[1], reports[4], strict=True):
        assert one.metrics["train_loss"] == pytest.approx(four.metrics["train_loss"], rel=1e-5)
        assert one.steps[0][1] == pytest.approx(four.steps[0][1], rel=1e-4)


def test_a_loss_that_is_not_finite_ends_the_trial_naming_step_and_parameters(tune: Tune, tmp_path: Path) -> None:
    with pytest.raises(TrialError, match=r"loss at step [23] must be a finite number.*learning_rate=1e\+30"):
        tune(tmp_path, learning_rate=1e30, optim="sgd", warmup_steps=0)


@pytest.mark.parametrize(("logging_steps", "last"), [(100, 12), (4, 4)])
def test_where_steps_are_not_waited_for_the_first_bad_one_is_named_before_anything_is_kept(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logging_steps: int, last: int
) -> None:
    taken: list[int] = []
    after_step = MultiTaskTrainer.after_step
    monkeypatch.setattr(MultiTaskTrainer, "_checks_each_step", False)
    monkeypatch.setattr(
        MultiTaskTrainer, "after_step", lambda self: [taken.append(self.state.global_step + 1), after_step(self)][1]
    )
    with pytest.raises(TrialError, match=r"loss at step [23] must be a finite number.*learning_rate=1e\+30"):
        tune(tmp_path, learning_rate=1e30, optim="sgd", warmup_steps=0, logging_steps=logging_steps)
    assert taken[-1] == last
    assert not (tmp_path / "best").exists()
    assert not list((tmp_path / "resume").glob("*"))


def test_weights_that_the_last_step_ruined_end_the_trial_before_they_are_kept(tune: Tune, tmp_path: Path) -> None:
    with pytest.raises(TrialError, match=r"predicts of the task .+ after step 1 must be a finite number.*rate=1e\+30"):
        tune(tmp_path, learning_rate=1e30, optim="sgd", warmup_steps=0, max_steps=1)
    assert not (tmp_path / "best").exists()


@pytest.fixture(scope="module")
def plain_epoch(tune: Tune, tmp_path_factory: pytest.TempPathFactory) -> EpochReport:
    return tune(tmp_path_factory.mktemp("plain"), num_train_epochs=1)[1][0]


@pytest.mark.parametrize(
    "training",
    [
        {"bf16": True},
        {"activation_checkpointing": True},
        {"neftune_noise_alpha": 5.0},
        {"label_smoothing_factor": 0.1},
        {"max_grad_norm": 0.0},
        {"pooling": "cls", "lr_scheduler_type": "cosine", "optim": "adafactor"},
        {"pooling": "mean", "full_determinism": True},
        {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 2},
    ],
    ids=lambda training: next(iter(training)),
)
def test_fields_of_training_arguments_work_under_their_own_names(
    tune: Tune, tmp_path: Path, training: dict[str, Any], plain_epoch: EpochReport
) -> None:
    try:
        done, reports = tune(tmp_path, num_train_epochs=1, **training)
    finally:
        torch.use_deterministic_algorithms(False)
    assert done.checkpoint.epoch == 1
    same = reports[0].metrics["train_loss"] == plain_epoch.metrics["train_loss"]
    assert same == (next(iter(training)) in ("activation_checkpointing", "dataloader_num_workers"))


def test_fp16_without_a_gpu_is_a_trial_error(tune: Tune, tmp_path: Path) -> None:
    with pytest.raises(TrialError, match="set bf16 instead"):
        tune(tmp_path, fp16=True, use_cpu=True)


def test_an_optimizer_whose_library_is_missing_is_a_trial_error(tune: Tune, tmp_path: Path) -> None:
    with pytest.raises(TrialError, match="fit the machine that trains"):
        tune(tmp_path, optim="galore_adamw", optim_target_modules="attn")


def test_a_backbone_without_tokenizer_is_a_backbone_error(
    backbone: Path, tmp_path: Path, tasks: tuple[Task, ...], parts: dict[str, dict[str, EncodedPart]]
) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((backbone / name).read_bytes())
    with pytest.raises(BackboneError, match="tokenizer"):
        fine_tune(
            backbone=str(tmp_path),
            tasks=tasks,
            parts=parts,
            training={},
            folder=tmp_path / "t",
            on_epoch=lambda _: None,
        )


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limits the size of files, as on a full disk; lifted before pytest writes its log."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [5_000, 60_000, 150_000])
def test_a_file_that_cannot_be_written_is_a_storage_error_and_leaves_nothing_half_written(
    tune: Tune, tmp_path: Path, size: int
) -> None:
    with largest_file(size), pytest.raises(StorageError, match="must be written whole"):
        tune(tmp_path)
    left = [path.relative_to(tmp_path).parts for path in tmp_path.rglob("*") if path.is_dir()]
    assert all(not part.startswith(".") for parts in left for part in parts)


def test_a_run_is_silent_and_leaves_the_thread_count_alone(
    tune: Tune, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    tune(tmp_path, num_train_epochs=1)
    assert torch.get_num_threads() == threads
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""
