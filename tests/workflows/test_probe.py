"""``study.probe`` and its command: what a pretraining run has kept is tried on a study, once."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
from bad_input_run import run
from mlflow import MlflowClient
from word_backbone import save_bert

import tutti
from tutti.errors import StudyError
from tutti.tracking.protocol import readable
from tutti.workflows.pretraining import _tracker, tracked_run


@pytest.fixture
def place(make_study, tiny_data, tmp_path) -> Path:
    """The tiny study, and two backbones that a run has kept."""
    make_study(tmp_path, training__num_train_epochs=1)
    for step in (0, 10):
        kept(tmp_path, tiny_data, step)
    return tmp_path


def kept(place: Path, data: Path, step: int) -> None:
    folder = Path(shutil.copytree(data / "backbone", place / f"made.kept/step-{step}"))
    save_bert(folder, num_hidden_layers=1, hidden_dropout_prob=step / 100)


def scores(place: Path) -> list[dict[str, str]]:
    with (place / "made.probes/tiny/scores.csv").open(newline="") as file:
        return [*csv.DictReader(file)]


def test_kept_backbones_are_each_tried_once_and_later_ones_are_added(place, tiny_data, capsys):
    study = tutti.Study(place / "study.yaml", quiet=True)
    first = study.probe(place / "made")
    assert capsys.readouterr().out == ""
    assert [(each.step, each.seed) for each in first.scores] == [(0, 0), (10, 0)]
    assert {*first.scores[0].task_scores} == {"mood", "same"}
    (place / "made.kept/.step-20.abcdefgh.tmp").mkdir()  # one that is being written
    assert "seed 0" not in run(place, "backbone probe made study.yaml", code=0).out  # nothing new was kept
    kept(place, tiny_data, 20)
    out = run(place, "backbone probe made study.yaml --seeds 2", code=0).out
    assert "step 20, seed 1" in out
    assert "step 20, seed 0" in out
    assert "step 10, seed 0" not in out
    rows = scores(place)
    assert [(row["step"], row["seed"]) for row in rows] == [
        (step, seed) for step in ("0", "10", "20") for seed in ("0", "1")
    ]
    assert float(rows[0]["score"]) == first.scores[0].score
    assert (place / "made.probes/tiny/scores.png").read_bytes().startswith(b"\x89PNG")
    assert not [*(place / "made.probes/tiny/trials").iterdir(), *(place / "made.probes/tiny/bank").iterdir()]
    assert not (place / "studies").exists()


def test_scores_are_metrics_over_steps_of_the_pretraining_s_run(place):
    _tracker(place / "made", None)("the-run").close()
    tracked_run(place / "made").start_study(parameters={}, tags={}, files=[])
    study = tutti.Study(place / "study.yaml", quiet=True)
    found = [study.probe(place / "made").scores for _ in range(2)][-1]
    client = MlflowClient(f"sqlite:///{place}/made.tracking/mlflow.db")
    (run_,) = client.search_runs([client.get_experiment_by_name("made").experiment_id])
    history = client.get_metric_history(run_.info.run_id, "probe/tiny/score")
    assert [(point.step, point.value) for point in history] == [(each.step, readable(each.score)) for each in found]
    assert "probe/tiny/mood" in run_.data.metrics


def test_a_backbone_that_was_kept_anew_is_tried_anew(place, tiny_data):
    study = tutti.Study(place / "study.yaml", quiet=True)
    before = study.probe(place / "made").scores
    shutil.rmtree(place / "made.kept/step-10")
    kept(place, tiny_data, 11)
    (place / "made.kept/step-11").rename(place / "made.kept/step-10")
    after = study.probe(place / "made").scores
    assert before[0] == after[0]
    assert before[1].weights != after[1].weights


def test_scores_of_other_settings_are_not_mixed_and_a_run_that_kept_nothing_is_told(place):
    tutti.Study(place / "study.yaml", quiet=True).probe(place / "made.kept")
    changed = tutti.Study(place / "study.yaml", overrides={"training.learning_rate": 1e-4}, quiet=True)
    with pytest.raises(StudyError, match="be of the study as it is now; got scores with other training"):
        changed.probe(place / "made")
    with pytest.raises(StudyError, match=r"have kept a backbone; got none in .*none\.kept; pretrain with --keep-every"):
        changed.probe(place / "none")
