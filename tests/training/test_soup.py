"""Greedy soups: which candidates are kept, and the mean of weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from polls import elect
from safetensors.torch import load_file
from saved_models import save_model
from scorers import score
from transformers import AutoModel
from word_backbone import save_deberta

from tutti.bank.bank import Bank
from tutti.data.encode import EncodedPart, load_tokenizer
from tutti.ensembling.nested import Fold, splits
from tutti.errors import StorageError, TrialError
from tutti.modeling.adapters import Adapter
from tutti.modeling.average import shape_of, write_mean
from tutti.modeling.checkpoint import load_checkpoint
from tutti.modeling.heads import HeadOptions
from tutti.modeling.model import MultiTaskModel, load_encoder
from tutti.orchestration.after.soup import averageable
from tutti.outputs.election.poll import Rule
from tutti.outputs.election.soup_card import refolded
from tutti.records import CheckpointRecord, TextLimit
from tutti.tasks.predictions import Predictions
from tutti.tasks.task import Task
from tutti.training.machine import precision
from tutti.training.predict import predict
from tutti.training.tricks import soup
from tutti.training.tricks.soup import Soup, _SoupEvaluator, greedy_soup

TASK = Task(name="news", names=("100", "101", "102"), pair=False, metric="accuracy", submission="csv")
Save = Callable[..., Path]


@pytest.fixture
def save(backbone: Path, tmp_path: Path) -> Save:
    """Saves a checkpoint of the backbone with slightly perturbed weights."""

    def saved(
        key: str,
        *,
        seed: int = 0,
        flipped: bool = False,
        scale: float = 1,
        pooling: str = "mean",
        adapter: Adapter | None = None,
        max_length: int = 16,
        backbone: Path = backbone,
    ) -> Path:
        torch.manual_seed(0)
        encoder = load_encoder(str(backbone), adapter=adapter)
        model = MultiTaskModel(encoder=encoder, tasks=(TASK,), heads=HeadOptions(pooling), adapter=adapter)
        torch.manual_seed(seed)
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.01 * torch.randn(weight.shape)
            model.head("news").linear.weight *= scale
            if flipped:  # predicts another class
                model.head("news").linear.weight *= -9
        save_model(tmp_path / key, model, backbone, key=key, limit=TextLimit(max_length))
        return tmp_path / key

    return saved


@pytest.fixture
def part(make_part: Callable[..., EncodedPart], save: Save) -> EncodedPart:
    """Rows labelled by one checkpoint's predictions, so that this checkpoint is always right."""
    rows = make_part(60, classes=3, seed=1)
    model, _ = load_checkpoint(save("truth", seed=1))
    outputs = predict(model, rows, task="news", batch_size=32, device=torch.device("cpu"))
    return replace(rows, labels=outputs.argmax(axis=1))


def make_soup(
    candidates: Mapping[str, Path],
    part: EncodedPart,
    folder: Path,
    *,
    folds: Sequence[Fold] | None = None,
    weights: Mapping[str, Path] | None = None,
    training: Mapping[str, bool] | None = None,
) -> Soup:
    return greedy_soup(
        list(candidates),
        weights=weights or candidates,
        parts=lambda limit: {"news": part},
        folder=folder,
        threads=1,
        folds=folds,
        training=training or {},
    )


def folds_of(part: EncodedPart, voters: Sequence[tuple[str, ...]]) -> list[Fold]:
    assert part.labels is not None
    parted = splits(part.labels, np.arange(len(part.labels)), repeats=1, seed=0)
    return [Fold(keys, {"news": train}, {"news": held}) for keys, (_, train, held) in zip(voters, parted, strict=True)]


def test_the_mean_of_checkpoints_is_a_checkpoint_of_the_mean_of_their_weights(save: Save, tmp_path: Path) -> None:
    folders = [save(f"t{number}", seed=number) for number in range(3)]
    write_mean(tmp_path / "mean", folders, key="t0+t1+t2")
    for file in ("model.safetensors", "heads.safetensors"):
        members = [load_file(folder / file) for folder in folders]
        mean = load_file(tmp_path / "mean" / file)
        assert mean.keys() == members[0].keys()
        for name, weight in mean.items():
            expected = torch.stack([each[name].double() for each in members]).mean(dim=0).float()
            torch.testing.assert_close(weight, expected, rtol=0, atol=0)
    model, metadata = load_checkpoint(tmp_path / "mean")  # verifies every file's hash
    assert (metadata.key, metadata.limit, metadata.tasks) == ("t0+t1+t2", TextLimit(16), (TASK,))
    encoder = AutoModel.from_pretrained(tmp_path / "mean", add_pooling_layer=False)
    torch.testing.assert_close(encoder.state_dict(), model.encoder.state_dict())
    assert len(load_tokenizer(str(tmp_path / "mean"))) == 64


def test_adapters_are_averaged_over_one_backbone(save: Save, tmp_path: Path) -> None:
    folders = [save(f"t{number}", seed=number, adapter=Adapter(rank=2)) for number in range(2)]
    write_mean(tmp_path / "mean", folders, key="soup")
    model, _ = load_checkpoint(tmp_path / "mean")
    one, two = (load_checkpoint(folder)[0].trained_state() for folder in folders)
    for name, weight in model.trained_state().items():
        torch.testing.assert_close(weight, (one[name].double() + two[name].double()).div(2).float())


def test_a_trial_goes_in_only_if_the_score_does_not_fall(save: Save, part: EncodedPart, tmp_path: Path) -> None:
    candidates = {
        "best": save("best", seed=2),
        "spoils": save("spoils", seed=3, flipped=True),
        "same": tmp_path / "best",
        "truth": tmp_path / "truth",
        "spoils too": tmp_path / "spoils",
    }
    soup = tmp_path / "out" / "soup"
    made = make_soup(candidates, part, soup, folds=folds_of(part, [tuple(candidates)] * 5))
    tried = made.ingredients
    assert [each.key for each in tried] == list(candidates)
    assert [each.kept for each in tried][:3] == [True, False, True]
    assert not tried[-1].kept
    assert tried[1].score < tried[0].score == tried[2].score
    members = [each for each in tried if each.kept]
    assert all(before.score <= after.score for before, after in pairwise(members))
    model, metadata = load_checkpoint(soup)
    assert metadata.key == "+".join(each.key for each in members)
    assert metadata.score == metadata.task_scores["news"] == members[-1].score
    outputs = predict(model, part, task="news", batch_size=7, device=torch.device("cpu"))
    assert score("accuracy", labels=part.labels, predicted=outputs) == members[-1].score
    assert list(soup.parent.iterdir()) == [soup]  # rejected soups leave no files
    assert made.held_out is not None
    assert (
        made.held_out["news"] == part.labels
    ).all()  # each fold's soup starts from the checkpoint that is always right


def test_rows_that_judge_a_soup_have_no_part_in_choosing_it(save: Save, part: EncodedPart, tmp_path: Path) -> None:
    """With random labels, some soup beats chance on the rows that select it, but none does on other rows."""
    candidates = {f"t{number}": save(f"t{number}", seed=number, flipped=number % 2 == 1) for number in range(4)}
    # Classes are balanced: otherwise the most frequent class would also be the most frequent one of held-out rows.
    lots = [replace(part, labels=np.random.default_rng(seed).permutation(np.arange(60) % 3)) for seed in range(12)]
    chosen, judged = [], []
    for each in lots:
        made = make_soup(candidates, each, tmp_path / "soup", folds=folds_of(each, [tuple(candidates)] * 5))
        shutil.rmtree(tmp_path / "soup")
        assert made.held_out is not None
        chosen.append(max(member.score for member in made.ingredients if member.kept))
        judged.append((made.held_out["news"][0] == each.labels).mean())
    assert np.mean(chosen) > np.mean(judged) + 0.01
    assert abs(np.mean(judged) - 1 / 3) < 0.02


def test_labels_of_rows_that_judge_a_soup_do_not_order_the_voters_that_it_tries(save, part, tmp_path):
    voters = {"other": save("other", seed=3, flipped=True), "truth": tmp_path / "truth"}
    model, _ = load_checkpoint(voters["other"])
    outputs = predict(model, part, task="news", batch_size=32, device=torch.device("cpu"))
    assert part.labels is not None
    rows, labels = np.arange(60), part.labels.copy()
    labels[20:] = outputs.argmax(axis=1)[20:]  # by all rows, the other is the best
    fold = Fold(tuple(voters), {"news": rows[:20]}, {"news": rows[20:]})
    made = make_soup(voters, replace(part, labels=labels), tmp_path / "soup", folds=[fold])
    assert made.held_out is not None
    assert (made.held_out["news"][0, 20:] == part.labels[20:]).all()  # as the one says that is right in the first 20


def test_rows_that_judge_a_soup_have_no_part_in_choosing_who_may_go_into_it(save, make_part, tmp_path, monkeypatch):
    """With random labels and predictions, the best trials by all rows also look good on the held-out rows."""
    rows, place = make_part(120, classes=3, seed=1), save("any")
    weights = {f"t{number:04d}": place for number in range(40)}
    flattered, judged = [], []
    for lot in range(12):
        rng = np.random.default_rng(lot)
        part = replace(rows, labels=rng.permutation(np.arange(120) % 3))
        probabilities = dict(zip(weights, rng.dirichlet(np.ones(3), size=(40, 120)).astype(np.float32), strict=True))
        monkeypatch.setattr(
            _SoupEvaluator,
            "outputs",
            lambda _, members, probabilities=probabilities: {"news": sum(probabilities[key] for key in members)},
        )
        bank = Bank(tmp_path / f"bank-{lot}")
        for number, (key, own) in enumerate(probabilities.items()):
            alone = score("accuracy", labels=part.labels, predicted=own)
            known = Predictions(ids=part.ids, outputs=own, labels=part.labels, names=TASK.names)
            record = CheckpointRecord(key, number, 1, alone, {"news": alone}, None)
            bank.put(record, {"news": {"validation": known}})
        election = elect(
            study="lots",
            bank=bank,
            tasks=[TASK],
            validation={"news": pd.DataFrame({"id": part.ids, "text": part.ids})},
            needed={},
            rule=Rule(top=4),
        )
        members = [member.key for member in election.tasks["news"].members]
        fixed, anew = folds_of(part, [tuple(members)] * 5), refolded(election, by="objective")
        for folds, scores in ((fixed, flattered), (anew, judged)):
            made = make_soup(dict.fromkeys(members, place), part, tmp_path / "soup", folds=folds, weights=weights)
            shutil.rmtree(tmp_path / "soup")
            assert made.held_out is not None
            scores.append((made.held_out["news"][0] == part.labels).mean())
    assert np.mean(flattered) > np.mean(judged) + 0.05
    assert abs(np.mean(judged) - 1 / 3) < 0.03


def test_a_fold_s_soup_is_one_of_its_voters_that_are_of_the_shape_of_their_best(save, part, tmp_path):
    candidates = {"cls": save("cls", pooling="cls"), "long": save("long", max_length=32, seed=3, flipped=True)}
    weights = {**candidates, "truth": tmp_path / "truth"}
    folds = folds_of(part, [("cls", "truth", "long")] * 4 + [("long",)])
    made = make_soup({"cls": weights["cls"]}, part, tmp_path / "soup", folds=folds, weights=weights)
    assert [each.key for each in made.ingredients] == ["cls"]
    assert made.held_out is not None
    assert all((made.held_out["news"][0] == part.labels)[fold.held_out["news"]].all() for fold in folds[:4])
    model, _ = load_checkpoint(weights["long"])
    decisions = predict(model, part, task="news", batch_size=32, device=torch.device("cpu")).argmax(axis=1)
    last = folds[4].held_out["news"]
    assert (made.held_out["news"][0, last] == decisions[last]).all()


def test_a_soup_that_predicts_no_number_is_refused_and_leaves_nothing(save, part, tmp_path):
    folder = save("overflows", scale=float("inf"))
    message = "what the mean of overflows predicts in news must be finite; got NaN or infinity; take overflows out of"
    with pytest.raises(TrialError, match=message):
        make_soup({"overflows": folder}, part, tmp_path / "soup")
    assert not (tmp_path / "soup").exists()


def test_checkpoints_that_fail_in_half_precision_have_a_soup_in_float32(save, part, backbone, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(precision, "cpu_gains_from_bf16", lambda: True)
    shutil.copytree(backbone, tmp_path / "deberta")
    save_deberta(tmp_path / "deberta")
    make_soup({"t": save("t", backbone=tmp_path / "deberta")}, part, tmp_path / "soup")


@pytest.mark.parametrize("bf16", [{}, {"bf16": False}])
def test_a_study_of_float32_has_a_soup_of_it(save, part, tmp_path, monkeypatch, bf16):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(precision, "cpu_gains_from_bf16", lambda: True)
    seen = []
    monkeypatch.setattr(
        soup,
        "predict",
        lambda *args, **kwargs: seen.append(torch.is_autocast_enabled("cpu")) or predict(*args, **kwargs),
    )
    make_soup({"t": save("t")}, part, tmp_path / "soup", training=bf16)
    assert seen == [not bf16]


def test_what_is_not_finite_in_half_precision_is_predicted_in_float32(save, part, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(precision, "cpu_gains_from_bf16", lambda: True)
    monkeypatch.setattr(
        soup,
        "predict",
        lambda *args, **kwargs: predict(*args, **kwargs) * (np.nan if torch.is_autocast_enabled("cpu") else 1),
    )
    made = make_soup({"truth": tmp_path / "truth"}, part, tmp_path / "soup")
    assert made.ingredients[0].score == 1


def test_without_folds_a_soup_is_chosen_and_not_judged(save: Save, part: EncodedPart, tmp_path: Path) -> None:
    assert make_soup({"t": save("t")}, part, tmp_path / "soup").held_out is None


def test_of_trials_with_folds_each_folds_models_are_mixed_and_predict_the_rows_of_their_fold(save, part, tmp_path):
    weights = {key: [save(f"{key}-{fold}", seed=seed + fold) for fold in (0, 1)] for key, seed in (("a", 1), ("b", 5))}
    of_rows = {"news": np.arange(len(part.ids)) % 2}
    given = {"parts": lambda limit: {"news": part}, "folds": None, "training": {}, "threads": 1}
    greedy_soup(["a", "b"], weights=weights, folder=tmp_path / "soup", fold_of_rows=of_rows, **given)
    assert sorted(path.name for path in (tmp_path / "soup").iterdir()) == ["fold-0", "fold-1"]
    evaluator = _SoupEvaluator(weights, given["parts"], tmp_path / "tried", {}, of_rows)
    together = evaluator.outputs(["a", "b"])["news"]
    for fold in (0, 1):
        write_mean(tmp_path / f"mean-{fold}", [weights["a"][fold], weights["b"][fold]], key="soup")
        model, _ = load_checkpoint(tmp_path / f"mean-{fold}")
        own = predict(model, part, task="news", batch_size=64, device=torch.device("cpu"))
        rows = of_rows["news"] == fold
        apart = np.abs(together - own).mean(axis=1)
        assert apart[rows].max() < 0.003  # it may be bfloat16
        assert apart[~rows].mean() > 0.003


def test_checkpoints_of_another_shape_are_not_mixed(save: Save, tmp_path: Path) -> None:
    folders = {
        "plain": save("plain"),
        "cls": save("cls", pooling="cls"),
        "lora": save("lora", adapter=Adapter(rank=2)),
        "long": save("long", max_length=32),
        "alike": save("alike", seed=2),
    }
    assert list(averageable({key: [folder] for key, folder in folders.items()})) == ["plain", "alike"]
    assert shape_of(folders["plain"]) == shape_of(folders["alike"])


def test_a_damaged_checkpoint_is_an_error_that_leaves_no_soup(save: Save, part: EncodedPart, tmp_path: Path) -> None:
    good, bad = save("good"), save("bad", seed=1)
    with (bad / "model.safetensors").open("rb+") as file:
        file.truncate(500)
    with pytest.raises(StorageError, match="must be written whole"):
        write_mean(tmp_path / "out" / "mean", [good, bad], key="soup")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_weights_that_are_not_what_they_were_go_into_no_soup(save, part, tmp_path, damage):
    good, bad = save("good"), save("bad", seed=1)
    file = bad / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-64] + bytes(64))  # the damaged file still loads
    if damage == "gone":
        file.unlink()
    got = {"changed": "be what it was; got changed content", "gone": "be there in a complete checkpoint; got No such"}
    with pytest.raises(StorageError, match=f"^{file} must {got[damage]}"):
        make_soup({"good": good, "bad": bad}, part, tmp_path / "soup")
    assert not (tmp_path / "soup").exists()
