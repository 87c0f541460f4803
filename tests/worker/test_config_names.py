"""Names in a configuration that are none, and what is said to have been meant."""

from pathlib import Path

import pytest

from tests.worker.test_config import MINIMAL, load, problems

SECTIONS = "admin, alarms, breaker, classes, kafka, topics, worker"


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("SCORELANE_KAKFA_GROUP_ID", "did you mean SCORELANE_KAFKA_GROUP_ID?"),
        ("SCORELANE_WORKERLANES", "did you mean SCORELANE_WORKER_LANES?"),
        ("SCORELANE_CONFG", "did you mean SCORELANE_CONFIG?"),
        ("SCORELANE_GROUP_ID", "did you mean SCORELANE_KAFKA_GROUP_ID?"),
        ("SCORELANE_ADMIN_TLS", "unset it; known are SCORELANE_ADMIN_HOST, SCORELANE_ADMIN_PORT"),
        (
            "SCORELANE_LOG",
            "unset it; known are SCORELANE_ADMIN_<KEY>, SCORELANE_ALARMS_<KEY>, SCORELANE_BREAKER_<KEY>, "
            "SCORELANE_KAFKA_<KEY>, SCORELANE_WORKER_<KEY>",
        ),
    ],
)
def test_a_variable_that_names_nothing_is_refused_with_the_nearest_name(
    variable: str, said: str, tmp_path: Path
) -> None:
    assert problems(tmp_path, MINIMAL, **{variable: "x"}) == [f"environment: {variable}: unknown key; {said}"]


def test_variables_for_others_are_left_alone(tmp_path: Path) -> None:
    # A Service named scorelane-metrics, and the variable that the command line reads.
    load(
        tmp_path,
        MINIMAL,
        SCORELANE_CONFIG="/etc/scorelane/worker.toml",
        SCORELANE_METRICS_SERVICE_HOST="10.0.0.1",
        SCORELANE_METRICS_PORT="tcp://10.0.0.1:80",
        SCORELANE_METRICS_PORT_80_TCP_PROTO="tcp",
        SCORELANE_PORT="tcp://10.0.0.1:80",
        SCORELANERS="x",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[metrics]\nport = 1\n", f"metrics: unknown key; remove it; known are {SECTIONS}"),
        ("[alarm]\n", "alarm: unknown key; did you mean alarms?"),
        ("[admin]\nports = 1\n", "admin.ports: unknown key; did you mean port?"),
        ("[admin]\ntls = true\n", "admin.tls: unknown key; remove it; known are host, port"),
    ],
)
def test_only_what_is_near_is_said_to_be_meant(text: str, problem: str, tmp_path: Path) -> None:
    assert problems(tmp_path, MINIMAL + text) == [f"worker.toml: {problem}"]


@pytest.mark.parametrize(
    ("value", "problem"), [('"auto"', "'auto': Invalid enum value 'auto'"), ("-1", "-1: Expected `float` >= 0.0")]
)
def test_a_choice_or_a_number_may_be_given_where_both_are_allowed(value: str, problem: str, tmp_path: Path) -> None:
    assert problems(tmp_path, f"{MINIMAL}primary_above_ms = {value}\n") == [
        f"worker.toml: topics[tips].primary_above_ms: {problem}; "
        "use a number or 'predicted', or remove it (default 'predicted')"
    ]


def test_a_path_that_no_system_has_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path, MINIMAL.replace("models/tipping", "models\\u0000")) == [
        "worker.toml: topics[tips].model: 'models\\x00': no path has a NUL in it; correct it"
    ]
