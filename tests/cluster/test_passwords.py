"""A database's password is nowhere where others may read it: not in Ray's pages and logs, nor with the study."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
import requests

from tutti.config.load import parse_study

PAGES = (
    "api/jobs/",
    "api/v0/actors?detail=1",
    "api/v0/tasks?detail=1",
    "api/v0/workers?detail=1",
    "nodes?view=summary",
)


def files_with(words: tuple[str, ...], folder: Path) -> list[Path]:
    files = [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
    return [file for file in files if any(word.encode() in file.read_bytes() for word in words)]


@pytest.mark.ray
@pytest.mark.slow
def test_a_planted_password_is_on_no_page_in_no_log_and_in_no_file_that_others_may_read(
    cluster, postgres, make_study, tutti, tmp_path
):
    planted = (postgres.password, quote(postgres.password, safe=""))
    stores = {"storage__database": postgres.new_database(), "tracking": {"uri": postgres.new_database()}}
    study = make_study(tmp_path, search__trials=1, **stores)
    output = tutti("submit", study.file, "--address", cluster.address, "--wait", env=cluster.env)
    assert "t0000 finished" in output
    header = {"Authorization": f"Bearer {cluster.env['RAY_AUTH_TOKEN']}"}
    pages = {page: requests.get(f"{cluster.address}/{page}", headers=header, timeout=30) for page in PAGES}
    assert all(page.ok for page in pages.values())
    assert "tiny" in pages["api/jobs/"].text
    for text in (output, *(page.text for page in pages.values())):
        assert not any(word in text for word in planted)
    assert files_with(planted, study.folder.path) == []  # MLflow's files are below it too
    carried = files_with(planted, cluster.folder)
    assert carried  # the job's own study file, on the nodes: for its user alone
    assert [file for file in carried if file.stat().st_mode & 0o077] == []
    database = parse_study(study.folder.study_file).storage.database
    assert database is not None
    assert database.startswith("postgresql://tutti@127.0.0.1")
