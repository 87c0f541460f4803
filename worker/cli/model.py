"""scorelane model"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from engines.package import Package


@click.group()
def model() -> None:
    """Train and inspect model packages: models/<name>/<version>/ with digests."""


@model.command()
@click.argument("sample", type=click.Choice(["criteo", "avazu", "alimama", "tipping", "ad"]))
@click.option(
    "--kind",
    type=click.Choice(["lr", "mlp", "din"]),
    default="mlp",
    show_default=True,
    help="Primary model. din needs a behaviour sequence (alimama, ad).",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("models"), show_default=True)
@click.option("--name", help="Name of the model.  [default: the sample's]")
@click.option("--version", help="Version of the model.  [default: the time]")
@click.option("--rows", type=click.IntRange(10), help="Rows to train on.  [default: all of a file, 20000 made up]")
@click.option("--epochs", type=click.IntRange(1), help="Passes over the rows.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="CSV file in the sample's format.  [default: the public sample in tests/data, of the source tree or here]",
)
def train(
    sample: str,
    kind: Literal["lr", "mlp", "din"],
    out: Path,
    name: str | None,
    version: str | None,
    rows: int | None,
    epochs: int | None,
    seed: int,
    data: Path | None,
) -> int:
    """Train a model on SAMPLE and write its package: ONNX, light model, trees, spec and manifest.

    criteo, avazu and alimama are public ad logs, tipping and ad are made up with a planted signal. Needs the [train]
    extra; running the model does not.
    """
    from engines import extras
    from schemas.samples import SAMPLES
    from schemas.spec import builtin
    from worker.cli.rows import warn_of_columns

    try:
        from engines.train.train import train_model
    except ImportError as error:
        raise click.ClickException(f"{error}; {extras.install('train')}") from error
    if data is not None and sample in SAMPLES:
        warn_of_columns(builtin(SAMPLES[sample].spec), data, SAMPLES[sample].label)
    package = train_model(sample, kind, out, name=name, version=version, rows=rows, epochs=epochs, seed=seed, data=data)
    _show(package)
    return 0


@model.command()
@click.argument("path", type=click.Path(path_type=Path))
def show(path: Path) -> int:
    """Verify the package at PATH (models/<name>, or one of its versions) and show what it holds.

    Verified are digests, spec and tables, and that its models load and take what the spec makes; plans are not run.
    """
    from engines.package import Package
    from worker.preflight import check_package

    package = Package.open(path)
    check_package(package)
    _show(package)
    return 0


def _show(package: "Package") -> None:
    manifest = package.manifest
    click.echo(f"{package.name} {package.version} ({manifest.kind}) in {package.path}")
    for tensor in package.spec.tensors:
        click.echo(f"  input   {tensor.name} {tensor.dtype} {list(tensor.shape)}")
    for file, digest in sorted(manifest.files.items()):
        click.echo(f"  file    {file} sha256 {digest[:16]}...")
    for key, value in manifest.metrics.items():
        click.echo(f"  metric  {key} = {value}")
    if manifest.note:
        click.echo(f"  note    {manifest.note}")
