"""Rows of a file as the events of a topic: by which model and in which format, and whether they fit."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

from engines.package import Package
from schemas.errors import remedy_of
from schemas.samples import JSON_LINES, must_be_regular, rows
from schemas.spec import ModelSpec
from schemas.wire import Format
from worker.config import TopicConfig

_AS_IS = "or send the lines as they are with --as-is"


class Chosen(NamedTuple):
    """How rows become events."""

    spec: ModelSpec | None
    """None: the lines of a JSONL file as they are."""
    format: Format


def choose(
    model: str | None, format_: Format | None, as_is: bool, configured: TopicConfig | None, source: Path | None
) -> Chosen:
    """By the options, and where they are not given by the topic's configuration in `source`.

    Warns, in one line, of options that contradict it. Raises `UsageError`, `LoadError`, `InvalidSpec`.
    """
    if as_is and model is not None:
        raise click.UsageError("--as-is sends lines as they are, --model encodes rows; give one of them")
    if configured is None:
        return Chosen(spec_of(model) if model is not None else None, "json" if as_is else format_ or "msgpack")
    format_ = "json" if as_is else format_ or configured.format
    odd = []
    if format_ != configured.format:
        odd.append(f"format is {configured.format}, sent is {format_}")
    spec: ModelSpec | None = None
    if model is not None:
        spec = spec_of(model)
        odd += _other_model(configured.model, model, spec)
    elif not as_is:
        spec = Package.open(configured.model).spec
    if odd:
        click.echo(f"scorelane: warning: {source}: topics[{configured.name}]: {'; '.join(odd)}", err=True)
    return Chosen(spec, format_)


def _other_model(configured: str, model: str, spec: ModelSpec) -> list[str]:
    from engines.errors import LoadError

    try:
        same = Package.open(configured).spec == spec
    except LoadError as error:
        return [f"model cannot be compared with --model {model}: {error}"]
    return [] if same else [f"model is {configured}, which reads other events than --model {model}"]


def spec_of(model: str) -> ModelSpec:
    """Of a package, a spec file or a built-in name. Raises `UsageError`, `LoadError`, `InvalidSpec`."""
    from schemas.errors import InvalidSpec
    from schemas.spec import builtin

    path = Path(model)
    try:
        is_dir, is_file = path.is_dir(), path.is_file()
    except OSError as error:
        mend = remedy_of(error, "check the path")
        raise click.UsageError(f"--model {model}: cannot be read: {error.strerror}; {mend}") from error
    if is_dir:
        return Package.open(path).spec
    if is_file:
        return ModelSpec.load(path)
    try:
        return builtin(model)
    except InvalidSpec as error:
        problem = "no such package, spec file or built-in spec"
        raise click.UsageError(
            f"--model {model}: {problem}; built in are criteo, avazu, alimama, tipping, ad"
        ) from error


def events(file: Path, chosen: Chosen) -> Callable[[], Iterator[bytes]]:
    """A function that reads the file from the beginning, as record values.

    Warns, in one line, of columns that the spec does not name, and of fields that the file has not. Raises
    `UsageError`, and `ClickException` for a file that cannot be read and rows that are no events of the spec.
    """
    try:
        must_be_regular(file)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    if chosen.spec is None:
        if file.suffix not in JSON_LINES:
            raise click.UsageError("a CSV file needs --model, which says how a row becomes an event")
        if chosen.format != "json":
            raise click.UsageError("lines as they are need --format json; or give --model to encode them")
        return lambda: _lines(file)
    from schemas.encoder import Encoder
    from schemas.errors import InvalidEvent

    warn_of_columns(chosen.spec, file, otherwise=_AS_IS)
    encoder = Encoder(chosen.spec, chosen.format)

    def encoded() -> Iterator[bytes]:
        try:
            for number, row in enumerate(rows(file), 1):
                try:
                    yield encoder.encode(row)
                except InvalidEvent as error:
                    problem = f"{file}: row {number}: {error}; correct the row or give the right --model"
                    raise click.ClickException(problem) from error
        except (ValueError, OSError) as error:
            raise _unreadable(file, error, _AS_IS) from error

    return encoded


def warn_of_columns(spec: ModelSpec, file: Path, *others: str | None, otherwise: str = "") -> None:
    """One line on stderr for what is odd about the file's columns; `others` are read beside the spec's fields.

    Raises `ClickException` where the rows are no events of the spec, or a line cannot be read: `otherwise` is what
    there is to do beside correcting a line of JSON.
    """
    from schemas.fit import fit

    try:
        found = fit(spec, file, others=[name for name in others if name is not None])
    except (ValueError, OSError) as error:
        raise _unreadable(file, error, otherwise) from error
    if found.problem:
        raise click.ClickException(f"{file}: {found.problem}")
    if found.warning:
        click.echo(f"scorelane: warning: {file}: {found.warning}", err=True)


def _unreadable(file: Path, error: ValueError | OSError, otherwise: str) -> click.ClickException:
    of_line = isinstance(error, ValueError) and file.suffix in JSON_LINES
    return click.ClickException(f"{error}, {otherwise}" if of_line and otherwise else str(error))


def _lines(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as lines:
            for line in lines:
                if value := line.strip():
                    yield value
    except OSError as error:
        raise click.ClickException(str(error)) from error
