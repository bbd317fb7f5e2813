"""Working copies of studies on object storage, and the versions of their parts that are stored there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from tutti import mirror, objects
from tutti.copies import address_of, use, working_copies
from tutti.errors import StorageError
from tutti.files import whole_folder, write_whole
from tutti.objects import Objects, is_address


@pytest.fixture
def machine(s3, monkeypatch, tmp_path):
    """Returns the folder of a study on one machine or another, each with a cache of its own."""

    def folder(name: str) -> Path:
        monkeypatch.setenv("TUTTI_CACHE", str(tmp_path / name))
        return working_copies(s3.address) / "topics"

    return folder


def _save(folder: Path, **files: str) -> Path:
    with whole_folder(folder) as temporary:
        for name, content in files.items():
            (temporary / name).write_text(content)
    return folder


def _files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_what_one_machine_stores_another_one_has(machine):
    here, there = machine("here"), machine("there")
    write_whole(here / "study.json", "{}")
    _save(here / "data", prepared="1")
    _save(here / "ensembles" / "auto", card="2")
    _save(here / "trials" / "t0000" / "best", weights="3")
    _save(here / "ray" / "tune", own="4")
    mirror.push(here)
    mirror.push(here / "trials")

    mirror.pull(there)
    assert _files(there / "data") | _files(there / "ensembles") == {"prepared": "1", "card": "2"}
    assert (there / "study.json").read_text() == "{}"
    assert not (there / "ray").exists()
    assert not (there / "trials").exists()  # weights come when they are asked for
    mirror.pull(there / "trials" / "t0000" / "best")
    assert _files(there / "trials") == {"weights": "3"}
    assert mirror.sizes(there / "trials" / "t0000") == {"best/weights": 1}
    assert mirror.study_names(there.parent) == ["topics"]


def test_only_what_has_changed_is_sent_and_files_that_are_gone_are_gone_elsewhere_too(machine, s3):
    here, there = machine("here"), machine("there")
    trial = here / "trials" / "t0000"
    _save(trial / "best", weights="1", config="a")
    _save(trial / "resume" / "step-1", state="1")
    mirror.push(trial)
    mirror.pull(there / "trials")
    _save(trial / "resume" / "step-2", state="2")
    shutil.rmtree(trial / "resume" / "step-1")
    mirror.push(trial)
    stored = Objects(f"{s3.address}/topics/trials/t0000").names()
    assert sorted(name.partition("/")[2] for name in stored) == [
        "",
        "best/config",
        "best/weights",
        "resume/step-2/state",
    ]
    asked = s3.requests
    mirror.push(trial)
    assert s3.requests == asked
    mirror.pull(there / "trials")
    assert _files(there / "trials") == {"weights": "1", "config": "a", "state": "2"}


def test_a_part_that_another_machine_has_gone_on_with_takes_the_place_of_what_is_here(machine):
    here, there = machine("here"), machine("there")
    _save(here / "trials" / "t0000" / "best", weights="1")
    mirror.push(here / "trials")
    with mirror.held(there / "trials" / "t0000", release=True):
        _save(there / "trials" / "t0000" / "best", weights="2")
        mirror.push(there / "trials" / "t0000", wait=False)
    assert not (there / "trials" / "t0000").exists()
    _save(here / "trials" / "t0000" / "resume", state="1")  # of a worker that was cut off
    mirror.pull(here / "trials" / "t0000")
    assert _files(here / "trials") == {"weights": "2"}
    _save(here / "trials" / "t0000" / "resume", state="3")
    mirror.pull(here / "trials" / "t0000")
    assert _files(here / "trials") == {"weights": "2", "state": "3"}  # not yet stored, and nothing newer is


def test_a_worker_that_was_given_up_stores_nothing_over_what_another_one_has_stored_since(machine):
    here, there = machine("here"), machine("there")
    with mirror.held(here / "trials" / "t0000", release=False):
        _save(here / "trials" / "t0000" / "best", weights="1")
        mirror.push(here / "trials" / "t0000")
        with mirror.held(there / "trials" / "t0000", release=True):
            _save(there / "trials" / "t0000" / "best", weights="2")
            mirror.push(there / "trials" / "t0000")
        _save(here / "trials" / "t0000" / "best", weights="of before")
        mirror.push(here / "trials" / "t0000")
    mirror.pull(there / "trials" / "t0000")
    assert _files(there / "trials") == {"weights": "2"}


def test_what_two_machines_write_into_the_study_s_own_folder_is_kept(machine):
    here, there = machine("here"), machine("there")
    write_whole(here / "study.json", "{}")
    mirror.push(here)
    mirror.pull(there)
    write_whole(here / "database.json", "1")
    mirror.push(here)
    write_whole(there / "leaderboard.json", "2")
    mirror.push(there)
    for folder in (here, there):
        mirror.pull(folder)
        names = ("study.json", "database.json", "leaderboard.json")
        assert [(folder / name).read_text() for name in names] == ["{}", "1", "2"]


def test_states_of_ended_trials_and_whole_parts_are_removed_from_the_storage(machine, s3):
    here, there = machine("here"), machine("there")
    for key in ("t0000", "t0001"):
        _save(here / "trials" / key / "best", weights=key)
        _save(here / "trials" / key / "fold-0" / "resume" / "step-1", state=key)
        _save(here / "bank" / key / "0001-ab", record=key)
    mirror.push(here / "trials")
    mirror.push(here)
    mirror.drop(there / "trials", inside="resume", keys=["t0000"])
    mirror.drop(there / "bank" / "t0001")
    left = Objects(f"{s3.address}/topics").names()
    assert not [name for name in left if "bank/t0001" in name or ("resume" in name and "t0000" in name)]
    assert [name for name in left if "resume" in name and "t0001" in name]
    mirror.pull(there)
    mirror.pull(there / "trials")
    assert sorted(path.name for path in (there / "bank").iterdir()) == ["t0000"]
    assert _files(there / "trials" / "t0000") == {"weights": "t0000"}
    mirror.drop(there / "trials")
    assert not Objects(f"{s3.address}/topics/trials").names()


def test_a_version_that_is_not_whole_is_never_read(machine, s3):
    here, there = machine("here"), machine("there")
    _save(here / "data", rows="old")
    mirror.push(here)
    known = Objects(f"{s3.address}/topics")
    known.write("data/000002-aaaaaaaa/rows", b"half of")  # its list was never written
    known.write("data/000003-bbbbbbbb.json", b'{"files": {"ro')
    known.write("data/000004-cccccccc.json", json.dumps({"files": {"rows": ["000004-cccccccc", 3, "0"]}}).encode())
    known.write("data/000004-cccccccc/rows", b"cut")  # other contents than the list tells
    mirror.pull(there)
    assert _files(there / "data") == {"rows": "old"}
    _save(here / "data", rows="new")
    mirror.push(here)
    mirror.pull(there)
    assert _files(there / "data") == {"rows": "new"}
    assert len(known.names("data")) == 2  # the file and its list: the leftovers are gone


def test_what_killed_uploads_left_is_found_and_removed(machine, s3):
    here = machine("here")
    for key in ("t0000", "t0001"):
        _save(here / "trials" / key / "best", weights=key)
    mirror.push(here / "trials")
    assert mirror.leftovers(here / "trials") == {}
    stored, known = Objects(f"{s3.address}/topics").names(), Objects(f"{s3.address}/topics")
    known.write("trials/t0001/000007-aaaaaaaa/best/weights", b"half of")
    known.write("trials/t0002/000001-bbbbbbbb/best/weights", b"half of")
    found = mirror.leftovers(here / "trials")
    assert [*found] == ["trials/t0001", "trials/t0002"]
    for sweep in found.values():
        sweep()
    assert known.names() == stored


def test_uploads_that_are_killed_leave_the_version_before(machine, s3, tmp_path):
    here, there = machine("here"), machine("there")
    code = """
import sys
from pathlib import Path
from tutti import mirror
from tutti.files import whole_folder
trial = Path(sys.argv[1])
for number in range(1, 1000):
    with whole_folder(trial / "best") as folder:
        for name in range(4):
            (folder / str(name)).write_text(str(number) * 200_000)
    mirror.push(trial, wait=False)
    print(number, flush=True)
"""
    trial = here / "trials" / "t0000"
    for seconds in (0.0, 0.15, 0.3):
        with subprocess.Popen([sys.executable, "-c", code, trial], stdout=subprocess.PIPE, env={**os.environ}) as saves:
            assert saves.stdout is not None
            for _ in range(4):  # two have been stored
                saves.stdout.readline()
            time.sleep(seconds)
            saves.kill()
        mirror.pull(there / "trials")
        found = _files(there / "trials")
        assert len(found) == 4
        assert len(set(found.values())) == 1  # all of one save


def test_one_of_twenty_requests_may_fail(machine, s3):
    here, there = machine("here"), machine("there")
    s3.fail(0.05)
    for number in range(4):
        for key in ("t0000", "t0001"):
            _save(here / "trials" / key / "best", weights=f"{key} {number}", config="c")
            _save(here / "trials" / key / "resume" / f"step-{number}", state="s" * number)
            mirror.push(here / "trials" / key, wait=False)
        mirror.pull(there / "trials")
        for key in ("t0000", "t0001"):
            found = _files(there / "trials" / key) if (there / "trials" / key).exists() else {}
            assert found.get("weights", key).startswith(key)
            assert not found or found["config"] == "c"
    mirror.flush(here)
    mirror.pull(there / "trials")
    assert _files(there / "trials" / "t0001") == _files(here / "trials" / "t0001")


def test_a_storage_that_stays_away_is_told_in_one_sentence_without_credentials(machine, s3, monkeypatch):
    here = machine("here")
    monkeypatch.setattr(objects, "FIRST_PATIENCE", 0)
    monkeypatch.setattr(objects, "PATIENCE", 0)
    s3.refuses = lambda method, path: True
    _save(here / "data", rows="1")
    with pytest.raises(StorageError, match=f"{s3.address}/topics/data must be .*check whether it exists") as caught:
        mirror.push(here)
    assert "secret" not in str(caught.value)
    s3.refuses = lambda method, path: False
    mirror.push(here)
    assert mirror.sizes(here / "data") == {"rows": 1}


def test_saves_after_one_that_failed_are_stored(machine, s3, monkeypatch):
    monkeypatch.setattr(objects, "PATIENCE", 0)
    here, there = machine("here"), machine("there")
    trial = here / "trials" / "t0000"
    for number in range(3):
        _save(trial / "best", weights=str(number))
        s3.refuses = lambda method, path, number=number: number == 1 and method == "DELETE"
        with pytest.raises(StorageError) if number == 1 else nullcontext():
            mirror.push(trial)
    mirror.pull(there / "trials")
    assert _files(there / "trials") == {"weights": "2"}


def test_a_bucket_that_does_not_exist_is_told_at_once(monkeypatch, s3, tmp_path):
    monkeypatch.setenv("TUTTI_CACHE", str(tmp_path))
    folder = working_copies("s3://none/studies") / "topics"
    with pytest.raises(StorageError, match=r"s3://none/studies/topics/.* must be written; got .*bucket does not exist"):
        mirror.check(folder)


def test_a_third_upload_waits_for_the_first(machine, s3):
    trial = machine("here") / "trials" / "t0000"
    s3.refuses = lambda method, path: bool(time.sleep(0.3))
    took = []
    for number in range(4):
        _save(trial / "best", weights=str(number))
        began = time.monotonic()
        mirror.push(trial, wait=False)
        took.append(time.monotonic() - began)
    assert max(took[:2]) < 0.25 < max(took[2:])
    mirror.flush(trial)


def test_paths_of_no_working_copy_are_left_alone(tmp_path):
    mirror.pull(tmp_path / "s")
    mirror.push(tmp_path / "s")
    mirror.drop(tmp_path / "s" / "bank")
    assert mirror.sizes(tmp_path / "s" / "data") == {}
    assert address_of(tmp_path / "s") is None


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("s3://bucket/studies", True),
        ("gs://bucket", True),
        ("abfs://container@account.dfs.core.windows.net/studies", True),
        ("hdfs://host:8020/studies", True),
        ("s3://key:secret@bucket/studies", False),
        ("s3:/bucket", False),
        ("http://host/studies", False),
        ("studies", False),
    ],
)
def test_addresses_of_object_storage_are_told_from_paths(text, good):
    assert is_address(text) is good


def test_beyond_the_limit_copies_of_studies_that_no_process_uses_lose_what_is_stored(machine, monkeypatch):
    folder = machine("here")
    others = [folder.with_name(name) for name in ("oldest", "in_use", "newest")]
    for other in others:
        _save(other / "data", prepared="x" * 10_000)
        mirror.push(other)
        write_whole(other / "tracking.jsonl", "what MLflow has not received")
        _save(other / "bank" / "t0000", scores="changed here, and not stored")
    mirror._in_use.clear()  # as if the processes that stored them had ended
    monkeypatch.setattr(mirror, "_mirrors", {})
    for age, other in enumerate(others):
        os.utime(other.with_name(f".in-use-{other.name}"), (age, age))
    held = use(others[1])
    os.utime(held.fileno(), (1, 1))

    monkeypatch.setenv("TUTTI_CACHE_GIGABYTES", "3e-5")
    mirror.pull(folder)
    assert [(other / "data").exists() for other in others] == [False, True, True]
    assert (others[0] / "tracking.jsonl").exists()
    assert (others[0] / "bank" / "t0000" / "scores").exists()
    mirror.pull(others[0])
    assert (others[0] / "data" / "prepared").read_text() == "x" * 10_000


@pytest.mark.parametrize("limit", ["no", "0", "nan"])
def test_a_limit_that_is_no_number_of_gigabytes_is_refused(machine, monkeypatch, limit):
    monkeypatch.setenv("TUTTI_CACHE_GIGABYTES", limit)
    monkeypatch.setattr(mirror, "_mirrors", {})
    with pytest.raises(StorageError, match=r"TUTTI_CACHE_GIGABYTES must be a number of gigabytes greater than 0"):
        mirror.pull(machine("here"))
