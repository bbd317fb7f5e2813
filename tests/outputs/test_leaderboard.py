"""Public scores beside local ones."""

from __future__ import annotations

import json
import math

import pytest
from polls import write_ensemble

from tutti.errors import StorageError, StudyError
from tutti.files import sha256_of
from tutti.outputs.election.poll import Rule
from tutti.outputs.submission.leaderboard import Entry, Leaderboard, correlation


@pytest.fixture
def board(tmp_path) -> Leaderboard:
    return Leaderboard(tmp_path / "leaderboard.json")


def submission(make_finished, place, *, test_files=True, **rule):
    study = make_finished()
    tests = {} if test_files else {"test_ids": {}}
    write_ensemble(**study.ensemble(place, tasks=study.tasks[:1], rule=Rule(**rule), **tests))
    return place


def test_a_submission_is_kept_with_what_it_was_worth_locally(make_finished, tmp_path, board):
    out = submission(make_finished, tmp_path / "out", top=2)
    assert board.entries() == []
    place, entry = board.add(out, study="demo", public=0.81)
    card = json.loads((out / "card.json").read_text())
    assert (place, entry.public, entry.local) == (1, 0.81, card["objective"]["score"])
    assert entry.tasks == {"emotion": card["tasks"][0]["score"]["score"]}
    assert (entry.recipe, entry.made, entry.submission) == ("baseline", card["created"], str(out))
    assert Leaderboard(tmp_path / "leaderboard.json").entries() == [entry]


def test_the_same_submission_gets_its_new_score_and_another_one_a_place_of_its_own(make_finished, tmp_path, board):
    first, second = (submission(make_finished, tmp_path / f"top{top}", top=top) for top in (1, 3))
    board.add(first, study="demo", public=0.7)
    assert board.add(second, study="demo", public=0.8)[0] == 2
    copied = submission(make_finished, tmp_path / "again", top=1)
    assert board.add(copied, study="demo", public=0.75)[0] == 1
    assert [each.public for each in board.entries()] == [0.75, 0.8]


def test_a_submission_is_the_same_where_a_picture_alone_changed(make_finished, tmp_path, board):
    out = submission(make_finished, tmp_path / "out", top=2)
    board.add(out, study="demo", public=0.7)
    (out / "ensemble.png").write_bytes(b"with one trial more, which does not vote")
    card = json.loads((out / "card.json").read_text())
    card["files"]["ensemble.png"] = sha256_of(out / "ensemble.png")
    (out / "card.json").write_text(json.dumps(card))
    assert board.add(out, study="demo", public=0.72)[0] == 1
    assert [each.public for each in board.entries()] == [0.72]


def test_without_a_test_file_ensembles_are_told_apart_by_who_votes_and_how(make_finished, tmp_path, board):
    rules = [{"top": 1}, {"top": 3}, {"top": 3, "method": "hard"}, {"top": 3, "method": "stacking"}]
    for number, rule in enumerate(rules):
        out = submission(make_finished, tmp_path / str(number), test_files=False, **rule)
        assert not [file for file in json.loads((out / "card.json").read_text())["files"] if not file.endswith(".png")]
        assert board.add(out, study="demo", public=0.7)[0] == number + 1
    again = submission(make_finished, tmp_path / "again", test_files=False, top=3)
    assert board.add(again, study="demo", public=0.75)[0] == 2
    assert [each.public for each in board.entries()] == [0.7, 0.75, 0.7, 0.7]


def test_a_changed_submission_or_another_study_s_is_refused_and_nothing_kept(make_finished, tmp_path, board):
    out = submission(make_finished, tmp_path / "out", top=2)
    with pytest.raises(StudyError, match="be a submission of the study other; got demo; name it with the study demo"):
        board.add(out, study="other", public=0.8)
    (out / "emotion_predict.json").write_text("{}")
    with pytest.raises(StudyError, match=r"emotion_predict.json must be the file that the card lists; got another"):
        board.add(out, study="demo", public=0.8)
    (out / "emotion_predict.json").unlink()
    with pytest.raises(StudyError, match=r"emotion_predict.json must be the file that the card lists; got none"):
        board.add(out, study="demo", public=0.8)
    assert board.entries() == []


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"objective": {}}, "no 'score' where it belongs"),
        ({"objective": {"score": 10**400}}, "int too large to convert to float"),
        ({"tasks": None}, "'NoneType' object is not iterable"),
        ({"recipe": None}, "None where a text belongs"),
    ],
)
def test_a_card_of_another_form_is_refused_in_one_sentence(make_finished, tmp_path, board, changes, got):
    out = submission(make_finished, tmp_path / "out", top=2)
    card = json.loads((out / "card.json").read_text())
    (out / "card.json").write_text(json.dumps({**card, **changes}))
    with pytest.raises(StudyError) as error:
        board.add(out, study="demo", public=0.8)
    rule = "must be a folder that `tutti ensemble` wrote; got an invalid card.json"
    assert f"{out} {rule} ({got}); name the folder that contains card.json" in str(error.value)
    assert board.entries() == []


def test_what_is_kept_is_read_back_though_a_score_is_no_number(tmp_path, board):
    kept = entries((1, None), (0.5, math.nan))
    content = {"submissions": [{**vars(entry), "tasks": {"a": entry.local}} for entry in kept]}
    (tmp_path / "leaderboard.json").write_text(json.dumps(content))
    first, second = board.entries()
    assert (first.public, first.local, first.tasks) == (1.0, None, {"a": None})
    assert math.isnan(second.local)


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"public": "0.8"}, r"submissions.0.public \(input should be a valid number\)"),
        ({"place": 1}, r"submissions.0.place \(unexpected keyword argument\)"),
    ],
)
def test_what_was_changed_by_hand_is_named(tmp_path, board, changes, got):
    content = {"submissions": [{**vars(*entries((0.8, 0.7))), **changes}]}
    (tmp_path / "leaderboard.json").write_text(json.dumps(content))
    with pytest.raises(StorageError, match=f"leaderboard.json must be as `tutti leaderboard add` wrote it; got {got}"):
        board.entries()


@pytest.mark.parametrize("content", ["", "[]", '{"submissions": [{"public": 1}]}', '{"submissions": null}'])
def test_a_damaged_file_is_named_and_not_written_over(make_finished, tmp_path, board, content):
    (tmp_path / "leaderboard.json").write_text(content)
    with pytest.raises(StorageError, match=r"leaderboard.json must be as `tutti leaderboard add` wrote it"):
        board.add(submission(make_finished, tmp_path / "out", top=1), study="demo", public=0.8)
    assert (tmp_path / "leaderboard.json").read_text() == content


def entries(*scores: tuple[float, float | None]) -> list[Entry]:
    return [Entry(str(n), "s", "r", "m", "a", public, local, {}) for n, (public, local) in enumerate(scores)]


def test_the_correlation_is_that_of_submissions_with_both_scores():
    found = correlation(entries((0.1, 1.0), (0.2, 2.0), (0.9, 3.0), (0.5, None)))
    assert (found.submissions, found.spearman) == (3, pytest.approx(1))
    assert found.pearson == pytest.approx(0.9177, abs=1e-3)
    assert correlation(entries((0.1, 3.0), (0.2, 2.0), (0.3, 1.0))).pearson == pytest.approx(-1)


def test_a_local_score_that_is_no_number_has_no_part_in_the_correlation():
    scores = [(0.7, 0.1), (0.8, 0.3), (0.9, 0.2)]
    assert correlation(entries(*scores, (0.5, math.nan))) == correlation(entries(*scores))
    assert correlation(entries(*scores[1:], (0.5, math.nan))) is None
    assert correlation([]) is None


def test_a_file_of_a_submission_that_cannot_be_read_is_named(make_finished, tmp_path, board):
    out = submission(make_finished, tmp_path / "out", top=2)
    card = json.loads((out / "card.json").read_text())
    (out / "card.json").write_text(json.dumps({**card, "files": {"n" * 300: "a"}}))
    with pytest.raises(StudyError, match="must be the file that the card lists; got File name too long; restore it"):
        board.add(out, study="demo", public=0.8)


@pytest.mark.parametrize("scores", [[(0.7, 1.0), (0.8, 1.0), (0.9, 1.0)], [(0.7, 1.0), (0.7, 2.0), (0.7, 3.0)]])
def test_scores_that_do_not_differ_have_no_correlation(scores):
    assert correlation(entries(*scores)) is None
