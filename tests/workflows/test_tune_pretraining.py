"""``tutti tune`` of a pretraining file: killed and resumed, it leaves the best backbone."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient
from transformers import AutoModel, AutoTokenizer

import tutti
from tutti.errors import BackboneError, ConfigError, StudyError
from tutti.records import TrialState
from tutti.search.study_store import StudyStore

FILE = """
backbone: bert
texts: texts.txt
out: best
steps: 40
evaluate_steps: 10
batch_size: 4
max_length: 16
processes: 1
search_space:
  learning_rate: {type: log_uniform, low: 1.0e-4, high: 1.0e-2}
search: {trials: 3, concurrent_trials: 1, scheduler: none}
"""


@pytest.fixture
def place(tiny_data, make_study, tmp_path) -> Path:
    make_study(tmp_path, training__num_train_epochs=1)
    AutoModel.from_pretrained(tiny_data / "backbone").save_pretrained(tmp_path / "bert")
    AutoTokenizer.from_pretrained(tiny_data / "backbone", mask_token="w59").save_pretrained(tmp_path / "bert")
    lines = [" ".join(f"w{(row * step) % 59}" for step in range(1, 9)) for row in range(1, 60)]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    (tmp_path / "tune.yaml").write_text(FILE)
    return tmp_path


def records(place: Path):
    store = StudyStore.load(f"sqlite:///{place}/best.search/optuna.db", name="best.search")
    try:
        return store.records()
    finally:
        store.close()


@pytest.mark.slow
@pytest.mark.ray
def test_a_killed_search_goes_on_with_its_trials_and_leaves_the_best_backbone(place, tutti_command, tutti):
    running = tutti_command("tune", place / "tune.yaml")
    running.wait_for(lambda: "t0001 running, epoch 2" in running.output, what="the second trial's second evaluation")
    running.kill()
    before = records(place)
    assert [record.state for record in before] == [TrialState.FINISHED, TrialState.RUNNING]
    out = tutti("tune", place / "tune.yaml", "--resume")
    assert "3 of 3 trials done" in out
    after = records(place)
    assert after[0] == before[0]
    assert [record.state for record in after] == [TrialState.FINISHED] * 3
    assert [*after[1].scores_by_epoch] == [1, 2, 3, 4]
    best = max(after, key=lambda record: record.score)
    assert best.score == -best.task_scores["held_out_loss"]
    assert f"wrote {place}/best: the backbone of {best.key}" in out
    AutoModel.from_pretrained(place / "best")
    assert [each.parent.name for each in place.glob("best.search/trials/*/best")] == [best.key]
    client = MlflowClient(f"sqlite:///{place}/best.search/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("best").experiment_id])
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert {"train/loss", "held_out_accuracy", "score"} <= runs[0].data.metrics.keys() | runs[1].data.metrics.keys()
    refused = tutti("tune", place / "tune.yaml", code=2)
    assert "must be new; got a search that has begun; add --resume" in refused
    changed = tutti("tune", place / "tune.yaml", "--resume", "--set", "batch_size=8", code=2)
    assert "one with other batch_size" in changed


@pytest.mark.slow
@pytest.mark.ray
def test_trials_are_compared_by_a_study_that_their_backbones_are_tried_on(place):
    tuned = tutti.tune_pretraining(
        place / "tune.yaml",
        overrides=[
            "search.objective=downstream",
            "search.study=study.yaml",
            "search_space.objective={type: categorical, choices: [masked, electra]}",
            "evaluate_steps=20",
        ],
        trials=2,
        quiet=True,
    )
    assert {*tuned.best.task_scores} == {"mood", "same", "held_out_loss"}
    assert tuned.best.score == pytest.approx((tuned.best.task_scores["mood"] + tuned.best.task_scores["same"]) / 2)
    assert tuned.path == place / "best"
    AutoModel.from_pretrained(tuned.path)
    assert not [*place.glob("best.search/downstream/tiny/trials/*")]


def test_held_out_losses_are_compared_of_backbones_with_one_tokenizer_alone(place, tiny_data):
    AutoModel.from_pretrained(place / "bert").save_pretrained(place / "other")
    AutoTokenizer.from_pretrained(tiny_data / "backbone", mask_token="w58").save_pretrained(place / "other")
    both = "search_space.backbone={type: categorical, choices: [bert, other]}"
    with pytest.raises(ConfigError, match=r"backbone\.choices must be backbones of one tokenizer and one objective"):
        tutti.tune_pretraining(place / "tune.yaml", overrides=[both], quiet=True)


def test_a_file_without_a_search_space_and_a_folder_that_holds_files_are_refused(place):
    with pytest.raises(StudyError, match="must have a search space to be tuned"):
        tutti.tune_pretraining(place / "tune.yaml", overrides=["search_space=null"])
    (place / "best").mkdir()
    (place / "best/notes.txt").write_text("mine")
    with pytest.raises(BackboneError, match="best must be a new or an empty folder"):
        tutti.tune_pretraining(place / "tune.yaml")
