"""A study that runs is seen from the outside: by Prometheus, and on Grafana's page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from tutti.orchestration.driver.metrics import ASKED, BEST, DESCRIPTIONS, TRIALS, WAITING

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "tutti.json"


def test_the_dashboard_shows_every_metric_of_a_study_and_no_other():
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf8"))
    shown = "\n".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    assert set(re.findall(r"ray_(tutti_\w+)", shown)) == {*DESCRIPTIONS}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@pytest.mark.slow
@pytest.mark.ray
def test_prometheus_sees_how_far_a_study_is(cluster, make_study, tutti_command, tmp_path):
    changes = {"training__num_train_epochs": 60, "search__trials": 3, "resources__concurrent_trials": 1}
    study = make_study(tmp_path, study="seen", **changes)
    running = tutti_command("submit", study.file, "--address", cluster.address, "--wait", env=cluster.env)

    def seen(name: str, **labels: str) -> float | None:
        for family in text_string_to_metric_families(requests.get(cluster.metrics, timeout=10).text):
            for sample in family.samples:
                if sample.name == f"ray_{name}" and {"study": "seen", **labels}.items() <= sample.labels.items():
                    return sample.value
        return None

    running.wait_for(lambda: seen(TRIALS, state="running") == 1, what="a trial that runs")
    assert seen(ASKED) == 3
    running.wait_for(lambda: (seen(TRIALS, state="finished") or 0) >= 1, what="a trial that has ended")
    assert seen(WAITING, destination="tracker") is not None
    assert running.wait() == 0, running.output
    best = seen(BEST)
    assert best is not None
    assert best in [pytest.approx(record.score) for record in study.records()]
