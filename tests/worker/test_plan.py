"""Plans: the formula agrees with the simulation, and the plan with both."""

import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from engines.package import write_package
from engines.plans import Device, PlanRecord
from worker.cli.plan import plan as command
from worker.plan import Load, PlanError, capacity, plan, simulate
from worker.service_time import ServiceTime

LINE = ServiceTime.measured([(1, 1.01e-3), (256, 3.56e-3)])  # 1 ms + 10 us a row


def mean_bound(rate: float, fixed_s: float, row_s: float) -> float:
    """Upper bound of the mean latency of single arrivals at a lane with `fixed_s + row_s * n` a batch, seconds.

    Inoue, Queueing analysis of GPU-based inference servers with dynamic batching, 2021, theorem 2.
    """
    load = rate * row_s
    light = (row_s + fixed_s) / (2 * (1 - load)) * (1 + 2 * rate * fixed_s + (1 - rate * fixed_s) / (1 + load))
    heavy = 1.5 * fixed_s / (1 - load) + row_s / 2 * (load + 2) / (1 - load * load)
    return min(light, heavy)


def test_capacity_is_a_full_batch_by_its_time() -> None:
    assert capacity(LINE, 256) == pytest.approx(256 / 3.56e-3)


@pytest.mark.parametrize("rate", [10, 100, 1_000, 10_000, 50_000, 80_000])
def test_mean_of_the_simulation_is_just_below_the_closed_form_bound(rate: float) -> None:
    mean = simulate(LINE, rate, max_batch=100_000).mean
    bound = mean_bound(rate, 1e-3, 1e-5)
    assert 0.88 * bound < mean <= bound * 1.01  # 1 %: error of a simulation of 50,000 rows


def test_one_row_at_a_time_takes_its_service_time() -> None:
    latency = simulate(LINE, 0.01, rows=1000)
    assert latency.p99 == pytest.approx(1.01e-3)
    assert latency.mean_batch == 1.0
    assert latency.busy == pytest.approx(0.01 * 1.01e-3, rel=0.1)


def test_a_chunk_larger_than_a_batch_waits_for_its_first_batches() -> None:
    latency = simulate(LINE, 0.1, chunk=512, rows=51_200)
    assert latency.p50 == pytest.approx(3.56e-3 * 1.5, rel=0.01)  # between the first batch and the second
    assert latency.p99 == pytest.approx(3.56e-3 * 2)


def test_same_seed_same_numbers() -> None:
    assert simulate(LINE, 20_000, seed=3) == simulate(LINE, 20_000, seed=3) != simulate(LINE, 20_000, seed=4)


def test_small_load_needs_one_of_each() -> None:
    made = plan(LINE, Load(rate=1000, budget_s=0.05))
    assert (made.lanes, made.processes, made.partitions) == (1, 1, 2)
    assert made.latency.p99 < 0.04


def test_utilisation_asks_for_lanes() -> None:
    made = plan(LINE, Load(rate=200_000, budget_s=0.05, host_row_s=0.0))
    assert (made.lanes, made.limited_by) == (4, "utilisation")  # 200,000 / 71,910 / 0.7 = 3.97
    assert made.capacity == pytest.approx(4 * 256 / 3.56e-3)


def test_capacity_is_that_of_the_lanes_or_of_the_host_whichever_is_smaller() -> None:
    lanes = plan(LINE, Load(rate=20_000, budget_s=0.05))
    # One lane: 256 rows in 3.56 ms; one process: 1e6 / 10 us = 100,000.
    assert (lanes.lanes, lanes.processes, lanes.bounded_by) == (1, 1, "lanes")
    assert lanes.capacity == pytest.approx(71_910.11)
    fast = ServiceTime.measured([(1, 0.9e-3), (256, 1.0e-3)])
    host = plan(fast, Load(rate=20_000, budget_s=0.05))
    # One lane: 256,000; the host is the smaller one.
    assert (host.lanes, host.processes, host.bounded_by) == (1, 1, "host")
    assert host.capacity == pytest.approx(100_000)
    more = plan(fast, Load(rate=150_000, budget_s=0.05, host_row_s=8e-6))
    # 1.2 cores / 0.7: two processes, 2 / 8 us = 250,000; two lanes, 512,000.
    assert (more.lanes, more.processes, more.bounded_by) == (2, 2, "host")
    assert more.capacity == pytest.approx(250_000)


def test_without_host_time_the_lanes_are_the_bound() -> None:
    made = plan(LINE, Load(rate=20_000, budget_s=0.05, host_row_s=0.0))
    assert (made.bounded_by, made.processes) == ("lanes", 1)


def test_a_tight_budget_asks_for_more_lanes_than_utilisation_does() -> None:
    loose = plan(LINE, Load(rate=200_000, budget_s=0.050, host_row_s=0.0))
    tight = plan(LINE, Load(rate=200_000, budget_s=0.014, host_row_s=0.0))
    assert tight.limited_by == "latency"
    assert tight.lanes > loose.lanes
    assert tight.latency.p99 <= 0.004


def test_cores_ask_for_processes_and_every_process_has_a_lane() -> None:
    made = plan(LINE, Load(rate=500_000, budget_s=0.05, host_row_s=20e-6))
    assert (made.processes, made.limited_by) == (15, "cores")  # 10 cores / 0.7
    assert made.lanes == 15 and made.partitions == 30
    assert made.host_busy == pytest.approx(10 / 15)


def test_a_budget_below_one_row_is_refused_with_the_remedy() -> None:
    with pytest.raises(PlanError, match=r"one row alone takes .* lighter model or a larger budget"):
        plan(LINE, Load(rate=1000, budget_s=0.011))


def test_a_budget_that_publishing_uses_up_is_refused_plainly() -> None:
    with pytest.raises(PlanError, match=r"^publishing alone takes 10 ms, the whole budget is 5 ms; .*--publish-ms"):
        plan(LINE, Load(rate=20_000, budget_s=0.005))


def test_the_time_of_one_row_is_told_with_and_without_its_margin() -> None:
    with pytest.raises(PlanError, match=r"\(with a safety margin, 9\.0 ms without\) of the 5\.0 ms"):
        plan(ServiceTime.measured([(1, 9e-3)]), Load(rate=1000, budget_s=0.015))


def test_chunks_that_no_lane_scores_in_time_are_refused() -> None:
    with pytest.raises(PlanError, match="chunks of 250 rows are too large"):
        plan(LINE, Load(rate=1000, budget_s=0.0133, chunk=250))


def test_command_prints_the_plan() -> None:
    result = CliRunner().invoke(
        command,
        ["--rate", "200000", "--measured", "1:1.01", "--measured", "256:3.56", "--host-us", "1", "--chunk", "1"],
    )
    assert result.exit_code == 0, result.output
    assert "4 (for utilisation)" in result.output
    assert "1, each 20% of a core" in result.output
    assert "partitions   4 at least" in result.output
    assert re.search(r"latency +mean \S+ ms, p99 \S+ ms, plus 10 ms to publish\s", result.output)
    assert "287,640 events/s, bounded by the lanes, 70% of it used" in result.output


def test_command_takes_ten_microseconds_of_the_host_for_an_event() -> None:
    result = CliRunner().invoke(command, ["--rate", "20000", "--measured", "1:0.9", "--measured", "256:1.0"])
    assert result.exit_code == 0, result.output
    assert "1, each 20% of a core" in result.output  # 20,000 * 10 us
    assert "100,000 events/s, bounded by --host-us 10, 20% of it used" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "either --model DIR or --measured"),
        (["--measured", "x:1"], "give rows and milliseconds"),
        (["--measured", "0:1"], "rows must be at least 1"),
        (["--measured", "1:100", "--measured", "256:120"], "lighter model or a larger budget"),
        (["--measured", "1:5"], "one size of batch does not tell what a row costs; give two or more, at best 1:MS and"),
        (["--measured", "64:5", "--measured", "64:6", "--max-batch", "128"], "at best 1:MS and 128:MS"),
    ],
)
def test_command_says_what_is_wrong(options: list[str], message: str) -> None:
    result = CliRunner().invoke(command, ["--rate", "1000", *options])
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())


def test_batches_of_one_row_need_no_second_size() -> None:
    result = CliRunner().invoke(command, ["--rate", "100", "--measured", "1:5", "--max-batch", "1", "--chunk", "1"])
    assert result.exit_code == 0, result.output
    assert "200 events/s, bounded by the lanes, 50% of it used" in result.output  # 1 / 5 ms


SPEC = b'event = "custom"\nkey = "id"\nfeatures = [{ name = "x", tensor = "dense" }]\n'


def package(root: Path) -> Path:
    files = {"spec.toml": SPEC}
    return write_package(root, name="m", version="1", kind="none", files=files, metrics={"base_rate": 0.5}).path


def test_command_times_the_engine_of_a_package(tmp_path: Path) -> None:
    options = ["--rate", "1000", "--model", str(package(tmp_path)), "--engine", "constant", "--max-batch", "64"]
    result = CliRunner().invoke(command, options)
    assert result.exit_code == 0, result.output
    assert all(f"{rows} rows" in result.output for rows in (1, 16, 64))
    assert "lanes        1 (for utilisation)" in result.output


def test_command_takes_the_report_of_the_accepted_plan(tmp_path: Path) -> None:
    root = package(tmp_path)
    options = ["--rate", "1000", "--model", str(root), "--engine", "trt"]
    missing = CliRunner().invoke(command, options)
    assert missing.exit_code != 0 and "scorelane engine build" in missing.output
    speed = {"16": {"p99_us": 90.0}, "256": {"p99_us": 330.0}}
    record = PlanRecord(
        model="m",
        version="1",
        tensorrt="10.6.0",
        device=Device(name="gpu", compute_capability="9.0"),
        precision="fp16",
        profiles=[],
        output="score",
        recipe={},
        layers={},
        onnx_sha256="",
        timing_cache_sha256="",
        plan_sha256="",
        plan_bytes=0,
        build_s=0.0,
        created_ms=0,
        accepted=True,
        judged_ms=1,
        report={"measured": {"speed": speed}},
    )
    (root / "plans").mkdir()
    (root / "plans" / "one.json").write_bytes(msgspec.json.encode(record))
    result = CliRunner().invoke(command, options)
    assert result.exit_code == 0, result.output
    assert "16 rows 0.09 ms, 256 rows 0.33 ms" in result.output
