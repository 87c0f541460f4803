"""The gates' report as a table: one column a plan, one row a figure and bucket, for people; `pipeline.to_json` is for
machines."""

from collections.abc import Mapping

from engines.build.gates import Check, Measured, Report
from engines.plans import PlanFile

Row = list[str]


def side_by_side(reports: Mapping[str, Report]) -> tuple[Row, list[Row]]:
    """(headings, rows) of all plans measured together: FP32 | FP16 | INT8 and the one in service.

    A cell ends with "!" where its gate failed.
    """
    columns: dict[str, Measured] = {name: report.measured for name, report in reports.items()}
    for report in reports.values():
        columns.update({name: other for name, other in report.compared.items() if name not in columns})
    failed = {(name, check.gate, check.bucket) for name, report in reports.items() for check in report.failed}
    buckets = sorted({bucket for one in columns.values() for bucket in one.parity})
    rows: list[Row] = []
    for bucket in buckets:
        for figure, gate in _FIGURES.items():
            cells = [
                _cell(one, figure, bucket) + ("!" if (name, gate, bucket) in failed else "")
                for name, one in columns.items()
            ]
            rows.append([str(bucket), figure, *cells])
    return ["batch", "", *columns], rows


def checks(report: Report) -> tuple[Row, list[Row]]:
    """(headings, rows) of one plan's gates, failed ones first."""
    ordered = [*report.failed, *(check for check in report.checks if check.passed)]
    return ["gate", "batch", "against", "found", "limit", ""], [_check(check) for check in ordered]


def plan_line(plan: PlanFile) -> str:
    """One plan in one line."""
    record = plan.record
    state = "in service" if record.accepted else "refused" if record.judged_ms else "not judged"
    layers = ", ".join(f"{count} {name}" for name, count in record.layers.items())
    buckets = ", ".join(str(size) for size in sorted({profile.batch for profile in record.profiles}))
    return (
        f"{record.precision}: {state}; TensorRT {record.tensorrt}, {record.device.name} (sm"
        f"{record.device.compute_capability.replace('.', '')}), batches {buckets}, layers: {layers},"
        f" {record.plan_bytes / 1e6:.1f} MB, built in {record.build_s:.1f} s; {plan.path}"
    )


_FIGURES = {
    "max error": "max error",
    "p99 error": "p99 error",
    "p99 relative error": "",
    "distinct scores": "distinct scores",
    "KS distance": "KS distance",
    "calibration ratio": "calibration",
    "AUC": "AUC drop",
    "p50 us": "",
    "p99 us": "p99 latency",
    "rows/s": "throughput",
}
"""Figure -> the gate that judges it."""


def _cell(one: Measured, figure: str, bucket: int) -> str:
    parity, speed = one.parity.get(bucket), one.speed.get(bucket)
    if parity is None or speed is None:
        return "-"
    match figure:
        case "max error":
            return f"{parity.max_abs:.2g}" if not parity.not_finite else f"{parity.not_finite} not finite"
        case "p99 error":
            return f"{parity.p99_abs:.2g}"
        case "p99 relative error":
            return f"{parity.p99_rel:.2%}"
        case "distinct scores":
            return f"{parity.distinct} of {parity.distinct_reference}"
        case "KS distance":
            return f"{parity.ks:.4f}"
        case "calibration ratio":
            return f"{parity.calibration:.5f}"
        case "AUC":
            return "-" if parity.auc is None else f"{parity.auc:.5f} ({parity.auc_by})"
        case "p50 us":
            return f"{speed.p50_us:.0f}"
        case "p99 us":
            return f"{speed.p99_us:.0f}"
        case _:
            return f"{speed.rows_per_s:,.0f}"


def _check(check: Check) -> Row:
    sign = "at least" if check.at_least else "at most"
    found = "not measured" if check.observed is None else f"{check.observed:.4g}"
    verdict = "passed" if check.passed else "FAILED"
    return [check.gate, str(check.bucket), check.against, found, f"{sign} {check.limit:g}", verdict]
