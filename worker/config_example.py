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
    for section, kind in get_type_hints(Config).items():
        struct, header = (get_args(kind)[0], f"[[{section}]]") if get_origin(kind) is tuple else (kind, f"[{section}]")
        parts.append(_section(struct, header))
    return "\n".join(parts)


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


def _section(struct: type[msgspec.Struct], header: str) -> str:
    about = (inspect.getdoc(struct) or "").partition(": ")[2]
    lines = [f"# {about[:1].upper()}{about[1:]}", header]
    documented = documentation(struct)
    for field in msgspec.structs.fields(struct):
        lines += textwrap.wrap(documented[field.name], WIDTH, initial_indent="# ", subsequent_indent="# ")
        if field.required:
            lines.append(f"{field.name} = {_toml(REQUIRED[field.name])}")
        else:
            default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
            lines.append(f"#{field.name} = {_toml(default)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """JSON writes strings, numbers, booleans and lists of them as TOML does."""
    return json.dumps(value)
