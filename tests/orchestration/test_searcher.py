"""The searcher hands out what the store proposes."""

from __future__ import annotations

import pickle

from ray.tune.search import Searcher

from tutti.orchestration.driver.searcher import StoreSearcher
from tutti.records import TrialState
from tutti.search.limits import Ending
from tutti.search.trial_attributes import Resumption


def test_unfinished_trials_come_first_then_new_ones_then_the_end(store):
    left = [store.ask(), store.ask()]
    store.finish(left[0].key, state=TrialState.FAILED)
    searcher = StoreSearcher(store, unfinished=store.unfinished(), new=2)
    suggested = [searcher.suggest(f"ray{number}") for number in range(3)]
    assert [each["key"] for each in suggested] == ["t0001", "t0002", "t0003"]
    assert suggested[0]["parameters"] == dict(left[1].parameters)
    assert [each["number"] for each in suggested] == [1, 2, 3]
    assert searcher.suggest("ray3") == searcher.suggest("ray4") == Searcher.FINISHED
    assert len(store.records()) == 4


def test_what_tune_tells_it_changes_nothing_in_the_store(store):
    searcher = StoreSearcher(store, unfinished=[], new=1)
    searcher.suggest("ray0")
    searcher.on_trial_complete("ray0", {"score": 0.9}, error=False)
    assert [record.state for record in store.records()] == [TrialState.RUNNING]


def test_tune_s_snapshot_holds_nothing_of_the_store(store):
    assert vars(pickle.loads(pickle.dumps(StoreSearcher(store, unfinished=[], new=3)))) == {}


def test_a_study_that_has_reached_a_limit_gets_no_new_trial_until_one_that_runs_lifts_it(store):
    limits: list[Ending | None] = [None]
    searcher = StoreSearcher(store, unfinished=[], new=3, reached=lambda: limits[0])
    assert searcher.suggest("ray0")["key"] == "t0000"
    limits[0] = Ending("patience", "none was better")
    assert searcher.suggest("ray1") is None  # not now
    limits[0] = None  # what ran was better
    searcher.on_trial_complete("ray0")
    assert searcher.suggest("ray2")["key"] == "t0001"
    limits[0] = Ending("patience", "none was better")
    searcher.on_trial_complete("ray2", error=True)
    assert searcher.suggest("ray3") == Searcher.FINISHED


def test_trials_that_were_cut_off_run_to_their_end_in_a_study_out_of_patience(store):
    store.ask()
    searcher = StoreSearcher(store, unfinished=store.unfinished(), new=3, reached=lambda: Ending("patience", "none"))
    assert searcher.suggest("ray0")["key"] == "t0000"
    assert searcher.suggest("ray1") is None


def test_a_trial_goes_on_with_what_is_known_of_it_and_begins_anew_where_its_halved_batch_has_not_fitted(store):
    known = [Resumption(halved="no memory"), Resumption(halved="no memory", fitted=True), Resumption(fitted=True)]
    for resumption in known:
        store.keep(store.ask().key, resumption)
    searcher = StoreSearcher(store, unfinished=store.unfinished(), new=1)
    suggested = [searcher.suggest(f"ray{number}")["resumption"] for number in range(4)]
    assert suggested == [*known, Resumption()]
    assert [each.begins_anew for each in suggested] == [True, False, False, False]
