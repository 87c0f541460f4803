"""The deployment files parse, and agree with the configuration, the metrics and the command line."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_docs import METRICS, README, fences, without_suffix
from worker.chain import CLOSE_S
from worker.committer import COMMIT_TIMEOUT_S
from worker.config import Config, WorkerConfig
from worker.config_example import example
from worker.fetching import LEAVE_S
from worker.preflight import named_topics
from worker.webhook import MAX_ALERTS, Alert, Authenticator, OutsideAlarms

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
AFTER_DRAIN_MS = 1000 * (2 * COMMIT_TIMEOUT_S + 2 * LEAVE_S + CLOSE_S)
"""Commits, the consumer's and the producer's own stop, and an engine that hangs."""
PINNED = re.compile(r"^([a-z0-9-]+)==([^ ;]+)", re.MULTILINE)


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def kubernetes() -> dict[str, Any]:
    return {document["kind"]: document for document in documents("k8s/worker.yaml")}


def worker_config(tmp_path: Path) -> Config:
    """The configuration of the Kubernetes manifests."""
    file = tmp_path / "worker.toml"
    file.write_text(kubernetes()["ConfigMap"]["data"]["worker.toml"])
    return Config.load(file, {})


def test_the_example_configuration_is_the_one_that_check_prints() -> None:
    assert (DEPLOY / "worker.toml").read_text() == example()


# Image


def test_the_image_is_built_from_files_that_are_there() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [
        word for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE) for word in line.split()[:-1]
    ]
    assert copied and all((ROOT / path).exists() for path in copied)
    assert sorted(f"!{path}" for path in copied) == sorted(line for line in ignored if line.startswith("!"))


def test_the_image_runs_as_nobody_special_and_knows_its_configuration(tmp_path: Path) -> None:
    [user] = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    assert int(user) == kubernetes()["Deployment"]["spec"]["template"]["spec"]["securityContext"]["runAsUser"] > 0
    environ = dict(re.findall(r"(SCORELANE_\w+)=(\S+)", DOCKERFILE))
    path = environ.pop("SCORELANE_CONFIG")
    mounts = kubernetes()["Deployment"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert path in {mount["mountPath"] for mount in mounts}
    file = tmp_path / "worker.toml"
    file.write_text(kubernetes()["ConfigMap"]["data"]["worker.toml"])
    admin = Config.load(file, environ).admin
    assert admin.host == "0.0.0.0"
    assert f"EXPOSE {admin.port}\n" in DOCKERFILE and f":{admin.port}/healthz" in DOCKERFILE


def test_the_image_has_what_the_project_needs_at_the_versions_that_are_tested() -> None:
    runtime = dict(PINNED.findall((ROOT / "requirements-runtime.lock").read_text()))
    tested = dict(PINNED.findall((ROOT / "requirements.lock").read_text()))
    assert {name: version for name, version in runtime.items() if tested.get(name) != version} == {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    names = {re.match(r"[a-z0-9-]+", line)[0] for line in needed}  # type: ignore[index]
    assert names <= runtime.keys()


# Compose


def test_compose_starts_the_worker_of_the_readme(tmp_path: Path) -> None:
    [compose] = documents("compose.yaml")
    kafka, topics, worker = (compose["services"][name] for name in ("kafka", "topics", "worker"))
    internal = re.findall(r"INTERNAL://(kafka:\d+)", kafka["environment"]["KAFKA_ADVERTISED_LISTENERS"])
    assert [worker["environment"]["SCORELANE_KAFKA_BOOTSTRAP_SERVERS"]] == internal
    assert internal[0] in topics["command"][0]
    file = tmp_path / "worker.toml"
    file.write_text(next(body for body in fences(README, "toml") if "[kafka]" in body))
    created = set(re.findall(r"for topic in (.*); do", topics["command"][0])[0].split())
    assert created == set(named_topics(Config.load(file, {})))
    [partitions] = re.findall(r"scorelane topics (--partitions \d+)", README.read_text())
    assert partitions in topics["command"][0]
    assert worker["build"]["dockerfile"] == "deploy/Dockerfile"
    grace_ms = int(worker["stop_grace_period"].removesuffix("s")) * 1000
    assert grace_ms > WorkerConfig().drain_timeout_ms + AFTER_DRAIN_MS


# Kubernetes


def test_a_pod_has_the_time_to_drain(tmp_path: Path) -> None:
    config = worker_config(tmp_path)
    pod = kubernetes()["Deployment"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] * 1000 > config.worker.drain_timeout_ms + AFTER_DRAIN_MS


def test_the_probes_ask_pages_that_exist(tmp_path: Path) -> None:
    container = kubernetes()["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "admin"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "admin"}
    assert container["ports"] == [{"name": "admin", "containerPort": worker_config(tmp_path).admin.port}]


def test_the_scaler_looks_at_the_lag_of_the_workers_own_group(tmp_path: Path) -> None:
    config = worker_config(tmp_path)
    scaler = kubernetes()["ScaledObject"]["spec"]
    [trigger] = scaler["triggers"]
    metadata = trigger["metadata"]
    assert metadata["bootstrapServers"] == config.kafka.bootstrap_servers
    assert metadata["consumerGroup"] == config.kafka.group_id
    assert metadata["topic"] in {topic.name for topic in config.topics}
    assert metadata["offsetResetPolicy"] == config.kafka.auto_offset_reset
    assert scaler["scaleTargetRef"]["name"] == kubernetes()["Deployment"]["metadata"]["name"]
    assert all(isinstance(value, str) for value in metadata.values()), "KEDA takes strings only"


# Prometheus


def rules() -> list[dict[str, Any]]:
    [document] = documents("prometheus/alerts.yaml")
    return [rule for group in document["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_every_alert_is_on_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    named = {without_suffix(name) for name in re.findall(r"\bscorelane_\w+", rule["expr"])}
    assert named <= METRICS
    assert named or "DCGM_" in rule["expr"]
    assert rule["expr"].count("(") == rule["expr"].count(")")
    assert rule["annotations"]["summary"] and rule["labels"]["severity"] in {"info", "warning", "critical"}


def test_every_alert_that_the_runbook_names_exists() -> None:
    named = set(re.findall(r"\bScorelane[A-Z]\w+", (ROOT / "docs" / "operations.md").read_text()))
    assert named and named <= {rule["alert"] for rule in rules()}


def test_what_holds_the_primary_is_routed_to_the_webhook() -> None:
    [document] = documents("prometheus/alertmanager.yaml")
    [route] = [route for route in document["route"]["routes"] if route["receiver"] == "scorelane"]
    [matcher] = route["matchers"]
    label, value = re.fullmatch(r'(\w+)="(\w+)"', matcher).groups()  # type: ignore[union-attr]
    assert any(rule["labels"].get(label) == value for rule in rules())
    [receiver] = [receiver for receiver in document["receivers"] if receiver["name"] == "scorelane"]
    [webhook] = receiver["webhook_configs"]
    assert webhook["url"].endswith("/alarms") and webhook["send_resolved"] and webhook["max_alerts"] <= MAX_ALERTS
    scheme = webhook["http_config"]["authorization"]["type"]
    Authenticator(["secret"]).check({"Authorization": f"{scheme} secret"})
    hours = int(route["repeat_interval"].removesuffix("h"))
    held = OutsideAlarms()
    held.apply([Alert(status="firing", fingerprint="1", starts_at="2026-01-01T00:00:00Z")], 0.0)
    assert not held.expire(hours * 3600.0), "an alert that still fires is repeated before it counts as over"
