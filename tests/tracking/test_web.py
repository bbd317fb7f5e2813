"""The trials' page in a real browser, by the ways in which people move: a click, Back, a reload, Compare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import screenshots

from tutti.records import TrialState
from tutti.tracking.links import start_page
from tutti.tracking.mlflow_tracker import MlflowTracker
from tutti.tracking.protocol import SCORE
from tutti.tracking.server import start_ui, stop_ui, trials_page
from tutti.tracking.store import experiment_id

pytestmark = [pytest.mark.slow, pytest.mark.skipif(screenshots.chromium() is None, reason="needs Chromium")]
SCORES = {"t0000": 0.77654321, "t0001": 0.88928732}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The server's URL and the experiment of a study with two trials of three epochs."""
    folder = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{folder}/mlflow.db"
    tracker = MlflowTracker(uri, experiment="s", artifact_location=str(folder))
    columns = ["metrics.score/a", "metrics.score/b", "params.learning_rate"]
    tracker.start_study(parameters={}, tags={}, files=[], columns=columns)
    for number, (key, score) in enumerate(SCORES.items()):
        tracker.start_trial(key, number=number, parameters={"learning_rate": 0.1 / (number + 1)}, tags={})
        for epoch in (1, 2, 3):
            tracker.log_metrics(key, {SCORE: score, "validation_score": score / epoch}, step=epoch, at=float(epoch))
        scores = {SCORE: score, "score/a": score, "score/b": score}
        tracker.end_trial(key, state=TrialState.FINISHED, reason=None, metrics=scores, tags={})
    process, url = start_ui(uri, Path(folder))
    yield url, experiment_id(uri, "s")
    stop_ui(process)


@pytest.fixture(params=[1280, 1600])
def page(request: pytest.FixtureRequest) -> Iterator[Any]:
    with screenshots.browser() as new_page:
        yield new_page(viewport={"width": request.param, "height": 800})


def headings(page: Any) -> list[str]:
    """The columns' names within the screen, once the trials are there."""
    page.get_by_role("link", name="t0001").wait_for()
    cells = page.locator(".ag-header-cell").all()
    width = page.viewport_size["width"]
    boxes = [(cell.inner_text().strip(), cell.bounding_box()) for cell in cells]
    seen = {name: box["x"] for name, box in boxes if name and box and box["x"] + box["width"] <= width}
    return sorted(seen, key=seen.__getitem__)  # the elements stand in another order than the columns


def test_the_columns_and_the_kind_of_workflow_stay_on_every_way_through_the_pages(address: Any, page: Any) -> None:
    page.goto(start_page(*address))
    first = headings(page)
    assert {"tutti.state", "score", "score/a", "score/b", "learning_rate"} <= {*first}
    assert page.get_by_text("0.8893").count() == 3
    page.get_by_role("link", name="t0001").click()
    page.get_by_text("Model metrics").wait_for()
    assert page.get_by_text("Judges").count() == 0
    page.reload()
    page.get_by_text("Model metrics").wait_for()
    assert page.get_by_text("Judges").count() == 0
    page.go_back()
    assert headings(page) == first
    page.reload()
    assert headings(page) == first


def test_compare_at_first_shows_the_trials_by_their_scores(address: Any, page: Any) -> None:
    page.goto(start_page(*address))
    headings(page)
    for number in (0, 1):
        page.locator(".ag-row .ag-checkbox-input-wrapper:visible").nth(number).click()
    page.get_by_role("button", name="Compare").click()
    page.get_by_text("Comparing 2 Runs").wait_for()
    metrics = page.locator(".ant-select, [class*=select]").filter(has_text="score").first
    metrics.wait_for()
    assert metrics.inner_text().strip() == "score"


def test_an_experiment_that_is_not_there_is_told(address: Any, page: Any) -> None:
    page.goto(start_page(address[0], "999"))
    page.get_by_text("The trials cannot be opened: experiment 999").wait_for()


def test_a_server_of_others_leads_by_the_start_page_where_it_has_one(address: Any) -> None:
    assert trials_page(*address) == start_page(*address)
