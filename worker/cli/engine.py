"""scorelane engine"""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal

import click

if TYPE_CHECKING:
    from engines.build.calibration import Rowset
    from engines.package import Package
    from engines.plans import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What build and compare have in common: the model, the rows it is judged on, where, and against what."""

    model: Path
    rows: Path
    label: str | None
    user: str | None
    device: str
    gate_rows: int
    serving: Path | None
    json_path: Path | None

    def open(self) -> "tuple[Package, Rowset]":
        """The model's package and the recorded rows. Raises `LoadError`, and `ClickException` without the libraries or
        for a file of other rows: the commands import what needs the libraries after it."""
        from engines import extras

        try:
            from engines import cuda  # noqa: F401  # looked for before the rows are read
            from engines.build import calibration, pipeline  # noqa: F401
        except ImportError as error:
            raise click.ClickException(
                f"{self.model}: plans are built and run with TensorRT: {error}; {extras.install('gpu')}, on a machine"
                " with a GPU"
            ) from error
        from engines.package import Package
        from engines.writable import check_writable
        from worker.cli.rows import warn_of_columns
        from worker.replay import trace

        if self.json_path is not None:
            check_writable(self.json_path.parent)
        package = Package.open(self.model)
        tables = package.open_tables()
        if trace.is_trace(self.rows):
            if self.label is not None or self.user is not None:
                raise click.UsageError(f"{self.rows} is a trace, which has no columns: leave --label and --user out")
            try:
                records = trace.read(self.rows).records
            except trace.TraceError as error:
                raise click.ClickException(str(error)) from error
            values = [record.value for record in records if record.value is not None]
            return package, calibration.recorded(package.spec, values, self.rows, tables=tables)
        warn_of_columns(package.spec, self.rows, self.label, self.user)
        return package, calibration.read(package.spec, self.rows, label=self.label, user=self.user, tables=tables)

    def in_service(self, package: "Package") -> "Package | None":
        """The package that `package` is compared with, if there is one."""
        from engines.build import pipeline
        from engines.package import Package

        return Package.open(self.serving) if self.serving is not None else pipeline.sibling_in_service(package)

    def write(self, document: dict[str, Any]) -> None:
        """The report, where it was asked for."""
        if self.json_path is not None:
            try:
                self.json_path.write_text(json.dumps(document, indent=1) + "\n")
            except OSError as error:
                raise click.ClickException(f"{self.json_path}: cannot be written: {error.strerror}") from error


@click.group()
def engine() -> None:
    """Build TensorRT plans for a model package and compare them on this machine's GPU."""


def _on_subject[**P](command: Callable[Concatenate[Subject, P], int]) -> Callable[..., int]:
    """The parameters of a `Subject`, which the command gets as its first one."""
    options = (
        click.argument("model", type=click.Path(path_type=Path)),
        click.option(
            "--rows",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            required=True,
            help="Recorded events, CSV, JSONL or a trace: calibration draws from them, and the gates compare on them.",
        ),
        click.option("--label", help="Column of the file with 1 for a click, for the AUC."),
        click.option(
            "--user", help="Column of the file with the user.  [default: viewer_id or user_id, else the event's key]"
        ),
        click.option("--device", default="0", show_default=True, help="GPU: index, UUID or MIG UUID."),
        click.option(
            "--gate-rows", type=click.IntRange(1), default=4096, show_default=True, help="Rows the gates compare on."
        ),
        click.option(
            "--serving",
            type=click.Path(path_type=Path),
            help="Package in service.  [default: the newest other version of MODEL with a plan in service]",
        ),
        click.option(
            "--json",
            "json_path",
            type=click.Path(path_type=Path, dir_okay=False, writable=True),
            help="Write the report.",
        ),
    )

    @wraps(command)
    def gathered(*args: P.args, **given: P.kwargs) -> int:
        subject = Subject(**{field.name: given.pop(field.name) for field in fields(Subject)})  # type: ignore[arg-type]
        return command(subject, *args, **given)

    whole: Callable[..., int] = gathered
    for option in reversed(options):
        whole = option(whole)
    return whole


@engine.command()
@_on_subject
@click.option(
    "--precision",
    type=click.Choice(["fp32", "tf32", "fp16", "int8"]),
    default="fp32",
    show_default=True,
    help="fp16: hidden GEMMs only. int8: hidden GEMMs by calibrated Q/DQ. All else stays float32.",
)
@click.option(
    "--batch",
    "batches",
    type=click.IntRange(1),
    multiple=True,
    help="Bucket, repeatable.  [default: 1, 8, 32, 256 for tipping, else 32, 256, 1024]",
)
@click.option("--length", "lengths", type=click.IntRange(1), multiple=True, help="Shorter sequence bucket, repeatable.")
@click.option(
    "--method",
    type=click.Choice(["percentile", "entropy"]),
    default="percentile",
    show_default=True,
    help="How int8 ranges are found. Entropy clips more and takes longer.",
)
@click.option("--calibration-rows", type=click.IntRange(1), default=2048, show_default=True)
@click.option("--workspace-mib", type=click.IntRange(1), default=1024, show_default=True)
@click.option("--level", type=click.IntRange(0, 5), default=3, show_default=True, help="Builder optimisation level.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draw of calibration rows.")
@click.option("--layers", is_flag=True, help="Keep the inspector's report beside the plan.")
@click.option("--require", is_flag=True, help="Exit with 1 when a gate fails.")
def build(
    subject: Subject,
    precision: "Precision",
    batches: tuple[int, ...],
    lengths: tuple[int, ...],
    method: Literal["entropy", "percentile"],
    calibration_rows: int,
    workspace_mib: int,
    level: int,
    seed: int,
    layers: bool,
    require: bool,
) -> int:
    """Build a plan for MODEL (models/<name>, or one of its versions) and let it into service if the gates pass.

    The gates compare it with the ONNX on the CPU, row by row at every bucket, and with the float32 plan and the one in
    service for speed. A plan that fails stays a candidate beside the package's plans, with its report.
    """
    package, recorded = subject.open()
    from engines.build import pipeline, table
    from engines.build.builder import Options
    from engines.writable import check_writable

    check_writable(package.path / "plans")

    options = Options(
        precision=precision,
        batches=batches,
        lengths=lengths,
        method=method,
        calibration_rows=calibration_rows,
        seed=seed,
        workspace_bytes=workspace_mib << 20,
        optimization_level=level,
        keep_inspection=layers,
    )
    plan, report = pipeline.accept(
        package, options, recorded, subject.device, serving=subject.in_service(package), gate_rows=subject.gate_rows
    )
    click.echo(table.plan_line(plan))
    _print(*table.side_by_side({precision: report}))
    _print(*table.checks(report))
    subject.write(pipeline.to_json(report))
    return 1 if require and not report.passed else 0


@engine.command()
@_on_subject
@click.option(
    "--require",
    "required",
    type=click.Choice(["fp32", "tf32", "fp16", "int8"]),
    multiple=True,
    help="Exit with 1 when a gate of this plan fails, or there is none; repeatable.",
)
def compare(subject: Subject, required: tuple["Precision", ...]) -> int:
    """Measure all plans of MODEL for this GPU and TensorRT side by side, and the one in service.

    Changes nothing. A figure whose gate fails is marked with "!".
    """
    package, recorded = subject.open()
    from engines.build import pipeline, table

    reports = pipeline.compare(
        package, recorded, subject.device, serving=subject.in_service(package), gate_rows=subject.gate_rows
    )
    _print(*table.side_by_side(reports))
    for name, report in reports.items():
        failed = ", ".join(f"{check.gate} at {check.bucket}" for check in report.failed)
        click.echo(f"{name}: {f'fails {failed}' if failed else 'passes all gates'}")
    subject.write({name: pipeline.to_json(report) for name, report in reports.items()})
    return 1 if any(name not in reports or not reports[name].passed for name in required) else 0


def _print(headings: list[str], rows: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, overflow="fold")  # by default a figure without room is cut off
    for row in rows:
        table.add_row(*row)
    Console().print(table)
