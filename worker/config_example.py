"""The example configuration, written from the configuration's own structs: every key, its default, its docstring."""

import ast
import inspect
import json
import textwrap
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from worker.config import Config

REQUIRED = {"bootstrap_servers": "localhost:9092", "name": "tips", "model": "models/tipping"}
WIDTH = 118
HEADER = """\
# Configuration of scorelane. Written by `scorelane check --example`; check yours with `scorelane check --config FILE`.
# Keys behind a "#" show their defaults. Relative paths are relative to this file. Every key of a [section] can be
# overridden by the environment: SCORELANE_<SECTION>_<KEY>, for example SCORELANE_KAFKA_BOOTSTRAP_SERVERS=broker:9092.
"""


def example() -> str:
    """A file that loads, with every key."""
    parts = [HEADER]
    hints = get_type_hints(Config)
    for field in msgspec.structs.fields(Config):
        struct = _tables(hints[field.name])
        if struct is None:
            parts.append(_section(hints[field.name], f"[{field.name}]"))
        else:
            parts.append(_section(struct, f"[[{field.name}]]", optional=not field.required))
    return "\n".join(parts)


def _tables(kind: Any) -> type[msgspec.Struct] | None:
    """The struct of which `kind` is a list of tables, None when it is no such list."""
    element = get_args(kind)[0] if get_origin(kind) is tuple else None
    return element if isinstance(element, type) and issubclass(element, msgspec.Struct) else None


def documentation(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Key -> the docstring below its declaration, on one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(struct))).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for declared, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(declared, ast.AnnAssign) and isinstance(declared.target, ast.Name):
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                found[declared.target.id] = " ".join(str(after.value.value).split())
    return found


def _section(struct: type[msgspec.Struct], header: str, *, optional: bool = False) -> str:
    """A table with every key; an `optional` one is shown behind "#" as a whole. Tables inside it come last."""
    about = (inspect.getdoc(struct) or "").removeprefix(f"{header}: ")
    lines = [f"# {about[:1].upper()}{about[1:]}", f"#{header}" if optional else header]
    documented = documentation(struct)
    hints = get_type_hints(struct)
    inner = []
    for field in msgspec.structs.fields(struct):
        if (tables := _tables(hints[field.name])) is not None:
            inner.append(_section(tables, f"[[{header.strip('[]')}.{field.name}]]", optional=True))
            continue
        lines += textwrap.wrap(documented[field.name], WIDTH, initial_indent="# ", subsequent_indent="# ")
        if field.required:
            lines.append(
                f"{'#' if optional else ''}{field.name} = {_toml('...' if optional else REQUIRED[field.name])}"
            )
        else:
            default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
            lines.append(f"#{field.name} = {_toml(default)}")
    return "\n".join(["\n".join(lines) + "\n", *inner])


def _toml(value: Any) -> str:
    """JSON writes strings, numbers, booleans and lists of them as TOML does."""
    return json.dumps(value)
