"""cluster.yaml is what Ray's own cluster launcher takes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cluster() -> dict:
    return YAML(typ="safe", pure=True).load((ROOT / "cluster.yaml").read_text(encoding="utf8"))


def _filled(config: dict) -> dict:
    from ray.autoscaler._private.util import fillout_defaults

    return fillout_defaults(config)


def test_ray_accepts_it_with_its_own_schema_and_defaults(cluster):
    from ray.autoscaler._private.util import validate_config

    filled = _filled(cluster)
    validate_config(filled)  # raises where the schema refuses it
    assert filled["head_node_type"] in filled["available_node_types"]


def test_ray_refuses_it_with_a_key_misspelt(cluster):
    import jsonschema
    from ray.autoscaler._private.util import validate_config

    cluster["max_wrokers"] = cluster.pop("max_workers")
    with pytest.raises(jsonschema.ValidationError):
        validate_config(_filled(cluster))


@pytest.mark.parametrize("provider", ["gcp", "local"])
def test_the_providers_in_comments_are_valid_too(cluster, provider):
    from ray.autoscaler._private.util import validate_config

    text = (ROOT / "cluster.yaml").read_text(encoding="utf8")
    match = re.search(rf"#   provider: (\{{type: {provider}.*\}})", text)
    assert match
    cluster["provider"] = YAML(typ="safe", pure=True).load(match[1])
    if provider == "local":
        del cluster["available_node_types"], cluster["head_node_type"]
        assert "worker_ips" in cluster["provider"]
    validate_config(_filled(cluster) if provider != "local" else {**cluster, "cluster_synced_files": []})


def test_nodes_install_this_project_from_its_pinned_constraints(cluster):
    assert cluster["file_mounts"]["~/tutti"] == "."
    assert any(
        '-c ~/tutti/constraints.txt -e "$HOME/tutti[postgres,qlora]"' in command
        for command in cluster["setup_commands"]
    )
    assert (ROOT / "constraints.txt").is_file()


def test_there_are_three_values_to_fill_in(cluster):
    text = "\n".join(cluster["setup_commands"][:2])
    assert re.findall(r"export (\w+)=", text) == ["TUTTI_SHARED", "MLFLOW_TRACKING_URI"]
    images = {node["node_config"]["ImageId"] for node in cluster["available_node_types"].values()}
    assert images == {"ami-0123456789abcdef0"}  # one that is found by `resolve:ssm:` the head has no right to look up


def test_the_head_runs_the_dashboard(cluster):
    start = " ".join(cluster["head_start_ray_commands"])
    assert "--include-dashboard=false" not in start
    assert "--autoscaling-config" in start


def test_every_node_has_the_token_and_asks_for_it(cluster):
    assert cluster["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    assert any("RAY_AUTH_MODE=token" in command for command in cluster["setup_commands"])
    started = [*cluster["head_start_ray_commands"], *cluster["worker_start_ray_commands"]]
    assert all(command.startswith(". ~/.tutti && ") for command in started)


def test_files_are_limited_where_more_are_not_allowed_and_ray_starts_all_the_same(cluster):
    command = next(each for each in cluster["worker_start_ray_commands"] if "ray start" in each)
    limits = command.removeprefix(". ~/.tutti && ").partition(" && ray start")[0]
    script = f"ulimit -Sn 4000 && ulimit -Hn 5000 && {limits} && ulimit -n"
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout == "5000\n"
