"""The demo's models, trained once and kept in the user's cache."""

import hashlib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click

import engines
from engines import extras
from engines.errors import LoadError
from engines.package import Package
from schemas.spec import builtin

KIND = "mlp"


def model(sample: str, say: Callable[[str], None]) -> Package:
    """The package of a sample. Raises `click.ClickException` with the trainer's words when it cannot be trained."""
    directory = cache() / "models" / sample / version(sample)
    try:
        return Package.open(directory)
    except LoadError:
        say(f"training the {sample} model (once, kept in {directory})")
    # A process of its own: the trainer's libraries take memory and threads that the demo does not want.
    arguments = ["--kind", KIND, "--out", str(directory.parents[1]), "--version", directory.name]
    command = [sys.executable, "-P", "-m", "worker.cli", "model", "train", sample, *arguments]
    trained = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return Package.open(directory)
    except LoadError as error:
        said = trained.stderr.strip().splitlines()[-1:] or [str(error)]
        # The demo needs more than the trainer alone: its own extra, which has the trainer's libraries too.
        words = said[0].removeprefix("scorelane: ").replace(extras.install("train"), extras.install("demo"))
        raise click.ClickException(f"training the {sample} model failed: {words}") from error


def cache() -> Path:
    """The user's cache directory for scorelane."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "scorelane"


def criteo_file() -> Path | None:
    """The public Criteo rows; they are in the source tree, not in the installed package."""
    path = Path(engines.__file__).parents[1] / "tests" / "data" / "criteo_sample.txt"
    return path if path.is_file() else None


def version(sample: str) -> str:
    """Another trainer or another spec makes another model."""
    digest = hashlib.sha256(builtin(sample).dumps())
    for path in sorted((Path(engines.__file__).parent / "train").glob("*.py")):
        digest.update(path.read_bytes())
    return f"{importlib.metadata.version('scorelane')}-{digest.hexdigest()[:12]}"
