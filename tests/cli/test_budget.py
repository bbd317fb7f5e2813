"""``--trials`` says how many trials a study shall have, or how many more."""

from __future__ import annotations

import pytest

from tutti.cli import tune as tune_
from tutti.config.load import dump_study
from tutti.errors import StudyError
from tutti.records import TrialState
from tutti.workflows import stores
from tutti.workflows.preparation import changed_keys
from tutti.workflows.study import Study
from tutti.workflows.tune import _is_over, budget


def test_a_number_is_that_of_all_trials_and_with_a_plus_that_of_further_ones(make_study, tmp_path):
    study = make_study(tmp_path, search__enqueue=[{"learning_rate": 0.002}, {"learning_rate": 0.003}])
    assert [budget(text, study.file, overrides=[]) for text in ("12", "+12")] == [12, 12]
    config, folder = stores.read_study_file(study.file, overrides=[])
    folder.path.mkdir(parents=True)
    folder.study_file.write_text(dump_study(config), encoding="utf8")
    store = stores.open_store(config, folder)
    store.finish(store.ask().key, state=TrialState.FAILED)  # the second point still waits, and is no trial
    store.close()
    assert [budget(text, study.file, overrides=[]) for text in ("12", "+12")] == [12, 13]


def test_the_command_to_go_on_has_what_the_study_was_started_with(make_study, tmp_path, monkeypatch):
    file = make_study(tmp_path / "my study").file
    started = {}
    monkeypatch.setattr(Study, "tune", lambda study, *, resume: started.update(again=study.again))
    for name in ("read_study_file", "with_stores"):
        monkeypatch.setattr(stores, name, lambda *_, **__: (None, None))
    monkeypatch.setattr(stores, "count_trials", lambda study, folder: 4)
    monkeypatch.setattr(tune_, "program", lambda: "tutti")
    given = ["training.optim=[a b]", "search.max_hours=2", "storage.database=postgresql://me:secret@host/optuna"]
    given += ["tracking.uri=http://host:5000/a@b", "study=what?"]
    tune_.tune(file, trials="+20", overrides=given, resume=False)
    command = started["again"](but="search.max_hours")
    assert command == (
        f"tutti tune '{file}' --resume --trials 24 --set 'training.optim=[a b]' "
        "--set storage.database=postgresql://me@host/optuna --set tracking.uri=http://host:5000/a@b --set 'study=what?'"
    )
    assert "--set search.max_hours=2 " in started["again"]()


def test_a_start_that_died_before_its_study_was_made_has_no_trials_and_begins_anew(make_study, tmp_path):
    config, folder = stores.read_study_file(make_study(tmp_path).file, overrides=[])
    folder.path.mkdir(parents=True)
    folder.study_file.write_text(dump_study(config), encoding="utf8")
    folder.optuna_file.touch()
    assert folder.begun
    assert stores.count_trials(config, folder) == 0
    assert not _is_over(config, folder)
    folder.database_file.write_text('{"study": "x"}')  # written once the study was made there
    with pytest.raises(StudyError, match="be in the database in which it began"):
        _is_over(config, folder)


def test_a_study_is_told_from_another_one_of_its_name_from_its_first_start_on(make_study, tmp_path):
    owners = []
    for place in ("a", "a", "b"):
        config, folder = stores.read_study_file(make_study(tmp_path / place).file, overrides=[])
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.study_file.write_text(dump_study(config), encoding="utf8")
        stores.open_store(config, folder).close()
        owners.append(folder.owner)
    assert owners[0] == owners[1] != owners[2]
    assert None not in owners
    folder.owner_file.unlink()  # as of a study that began when there was none
    stores.open_store(config, folder).close()
    assert folder.owner is None


def test_a_budget_beyond_a_grid_is_refused_once_it_is_known_not_before(make_study, tmp_path):
    space = {"pooling": {"type": "categorical", "choices": ["cls", "mean"]}}
    study = make_study(tmp_path, search_space=space, search__sampler="grid", search__trials=9)
    assert budget("+2", study.file, overrides=[]) == 2


@pytest.mark.parametrize("text", ["0", "+0", "-1", "few", "1.5", "++2", "", "²"])
def test_what_is_no_number_of_trials_is_refused(tmp_path, text):
    with pytest.raises(StudyError, match="at least 1"):
        budget(text, tmp_path / "study.yaml", overrides=[])


def test_older_studies_may_move_but_not_change(make_study, tmp_path):
    first, second = make_study(tmp_path / "a"), make_study(tmp_path / "b", study="other")
    for study in (first, second):
        config, folder = stores.read_study_file(study.file, overrides=[])
        folder.path.mkdir(parents=True)
        folder.study_file.write_text(dump_study(config), encoding="utf8")
    new = make_study(tmp_path / "c", study="new")

    def named(*places):
        given = [f"search.warm_start=[{', '.join(map(str, places))}]"]
        return stores.read_study_file(new.file, overrides=given)[0]

    moved = tmp_path / "moved" / "tiny"
    moved.mkdir(parents=True)
    (moved / "study.json").write_bytes(first.folder.study_file.read_bytes())
    assert changed_keys(named(first.folder.path), named(moved)) == {}
    assert list(changed_keys(named(first.folder.path), named(second.folder.path))) == ["search.warm_start"]


def test_a_population_may_be_asked_for_so_many_more_trials(make_study, tmp_path):
    study = make_study(tmp_path, search__scheduler="pbt", search__trials=4)
    assert budget("+6", study.file, overrides=[]) == 6
