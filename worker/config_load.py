"""From a TOML file and the environment to a `Config`, or to the list of everything that is wrong with them."""

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from schemas.errors import remedy_of
from worker.config import SECRETS, Config, ConfigError, Problem
from worker.config_rules import rules

PREFIX = "SCORELANE_"
ELSEWHERE = (f"{PREFIX}CONFIG",)
"""Variables that the command line reads itself."""
PATHS = (
    "model",
    "ssl_cafile",
    "ssl_certfile",
    "ssl_keyfile",
    "sasl_password_file",
    "sasl_token_file",
    "webhook_token_file",
)
# Kubernetes describes each Service to every pod: a Service named scorelane-admin sets SCORELANE_ADMIN_PORT=tcp://...
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT(_.+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")
_AT = re.compile(r" - at `\$\[(\d+)\]`$")
_SERVICE_PORT = re.compile(r"_PORT=(tcp|udp|sctp)://")

type Table = dict[str, Any]


def load[C: Config](cls: type[C], path: Path, environ: Mapping[str, str]) -> C:
    """See `Config.load`."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        problem = Problem(str(path), "", "", error.strerror or str(error), remedy_of(error, "give --config FILE"))
        raise ConfigError([problem]) from error
    try:
        table = tomllib.loads(raw.decode("utf-8-sig"))  # some editors begin with a byte order mark
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        problem = Problem(str(path), f"line {line}", "", "not UTF-8", "save the file as UTF-8")
        raise ConfigError([problem]) from error
    except tomllib.TOMLDecodeError as error:
        problem = Problem(str(path), _line(str(error)), "", str(error), "mend the TOML syntax there")
        raise ConfigError([problem]) from error
    except RecursionError:
        problem = Problem(str(path), "", "", "lists or tables are nested too deeply", "see `scorelane check --example`")
        raise ConfigError([problem]) from None
    reader = _Reader(path)
    reader.override(cls, table, environ)
    config = reader.struct(cls, table, "")
    problems = reader.problems
    if config is not None:
        problems = problems + [Problem(str(path), *found) for found in rules(config)]
    if problems or config is None:
        raise ConfigError(problems)
    return config


class _Reader:
    """Converts tables to structs field by field, so that one bad value does not hide the next."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self._from_environment: dict[str, str] = {}

    def override(self, cls: type[msgspec.Struct], table: Table, environ: Mapping[str, str]) -> None:
        """Write the environment's values over the file's. Lists of tables cannot be overridden."""
        hints = get_type_hints(cls)
        sections = {name: kind for name, kind in hints.items() if isinstance(kind, type) and _is_struct(kind)}
        names = {
            f"{section}_{field.name}": (section, field.name)
            for section, kind in sections.items()
            for field in msgspec.structs.fields(kind)
        }
        for variable in sorted(environ):
            if not variable.startswith(PREFIX) or variable in ELSEWHERE:
                continue
            if _SERVICE_LINK.search(variable) or _SERVICE_PORT.search(f"{variable}={environ[variable]}"):
                continue
            name = variable.removeprefix(PREFIX).lower()
            if name not in names:
                self.problems.append(Problem("environment", variable, "", *self._unknown(name, hints, names)))
                continue
            section, key = names[name]
            target = table.setdefault(section, {})
            if isinstance(target, dict):
                target[key] = environ[variable]
                self._from_environment[f"{section}.{key}"] = variable

    def _unknown(self, name: str, hints: Mapping[str, Any], names: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
        """Problem and remedy of a variable that names no key. Compared without what it has in common with the names."""
        section, _, key = name.partition("_")
        own = [key for of, key in names.values() if of == section]
        if section in hints and not own:
            return f"[[{section}]] is not set from here", f"set it in {self.path}, or unset the variable"
        if own:
            near, common, known = _nearest(key, own), f"{PREFIX}{section}_", own
        else:
            elsewhere = [variable.removeprefix(PREFIX).lower() for variable in ELSEWHERE]
            near, common = _nearest(name, [*names, *elsewhere]), PREFIX
            known = [f"{section}_<key>" for section in {of for of, _ in names.values()}]
        if near:
            return "unknown key", f"did you mean {common.upper()}{near.upper()}?"
        return "unknown key", f"unset it; known are {', '.join(f'{common}{one}'.upper() for one in sorted(known))}"

    def struct[S: msgspec.Struct](self, cls: type[S], table: object, prefix: str) -> S | None:
        """The struct, or None when a part of it is wrong; the reasons are in `problems`."""
        if not isinstance(table, dict):
            self._report(prefix, table, "not a table", f"write [{prefix}] and its keys below it")
            return None
        before = len(self.problems)
        hints = get_type_hints(cls, include_extras=True)
        for key in table:
            if key not in hints:
                close = _nearest(key, list(hints))
                remedy = f"did you mean {close}?" if close else f"remove it; known are {', '.join(sorted(hints))}"
                self._report(_join(prefix, key), None, "unknown key", remedy)
        values: Table = {}
        for field in msgspec.structs.fields(cls):
            key = _join(prefix, field.name)
            if field.name in table:
                values[field.name] = self._value(hints[field.name], table[field.name], key, field)
            elif field.required:
                self._missing(key, hints[field.name])
        if len(self.problems) > before:
            return None
        return cls(**values)

    def _value(self, kind: Any, value: object, key: str, field: msgspec.structs.FieldInfo) -> Any:
        if isinstance(kind, type) and _is_struct(kind):
            return self.struct(kind, value, key)
        element = get_args(kind)[0] if get_origin(kind) is tuple else None
        if isinstance(element, type) and _is_struct(element):
            if not isinstance(value, list) or not value:
                self._report(key, value, "not a list of tables", f"write [[{key}]] once for each")
                return ()
            return tuple(self.struct(element, item, f"{key}[{_name(item, i)}]") for i, item in enumerate(value))
        try:
            converted = msgspec.convert(value, kind, strict=key not in self._from_environment)
        except msgspec.ValidationError as error:
            problem, remedy = _AT.sub(_item, str(error).rstrip(".")), _remedy(kind, field)
            if form := _form(kind):
                problem, remedy = ("not of this form", f"write {form}") if isinstance(value, str) else (problem, remedy)
            if element is not None and isinstance(value, str):
                problem, remedy = "not a list", f"write a list, {_listed(element, value)}"
            self._report(key, value, problem, remedy)
            return None
        if field.name in PATHS and "\0" in str(converted):
            self._report(key, value, "no path has a NUL in it", "correct it")
        elif field.name in PATHS and converted:
            return str(self.path.parent.absolute() / str(converted))
        return converted

    def _missing(self, key: str, kind: Any) -> None:
        if get_origin(kind) is tuple:
            self._report(key, None, "missing", f"write [[{key}]] once for each")
        elif isinstance(kind, type) and _is_struct(kind):
            required = [field.name for field in msgspec.structs.fields(kind) if field.required]
            self._report(key, None, "missing", f"write [{key}] with {', '.join(required)}")
        else:
            self._report(key, None, "missing", f"add {key.rpartition('.')[2]} = ...")

    def _report(self, key: str, value: object, problem: str, remedy: str) -> None:
        shown = "" if value is None else "***" if key.rpartition(".")[2] in SECRETS else repr(value)
        variable = self._from_environment.get(key)
        source = "environment" if variable else str(self.path)
        self.problems.append(Problem(source, variable or key, shown[:120], problem, remedy))


def _is_struct(kind: type) -> bool:
    return issubclass(kind, msgspec.Struct)


def _join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key


def _name(item: object, index: int) -> str:
    """How a table of a list is called in a message: its name where it has one."""
    name = item.get("name") if isinstance(item, dict) else None
    return name if isinstance(name, str) and name else str(index)


def _nearest(name: str, known: list[str]) -> str:
    """What was meant, probably; empty where nothing is near."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.7)), "")


def _choices(kind: Any) -> Iterator[str]:
    """All strings that the literals inside `kind` allow."""
    for argument in get_args(kind):
        if get_origin(kind) is Literal:
            if argument:
                yield str(argument)
        else:
            yield from _choices(argument)


def _remedy(kind: Any, field: msgspec.structs.FieldInfo) -> str:
    choices = list(dict.fromkeys(_choices(kind)))
    allowed = ["a number"] if _has_numbers(kind) and choices else []
    allowed += [f"one of {', '.join(choices)}" if len(choices) > 1 else repr(choices[0])] if choices else []
    use = f"use {' or '.join(allowed)}" if allowed else "correct it"
    return use if field.required or field.default in ("", ()) else f"{use}, or remove it (default {field.default!r})"


def _has_numbers(kind: Any) -> bool:
    return kind in (int, float) or any(map(_has_numbers, get_args(kind)))


def _form(kind: Any) -> str:
    """What texts with a pattern look like, in words; empty where there is no pattern."""
    return next((str(meta.description) for meta in getattr(kind, "__metadata__", ()) if meta.pattern), "")


def _item(found: re.Match[str]) -> str:
    return f" (item {int(found[1]) + 1} of the list)"


def _listed(element: Any, value: str) -> str:
    """A list of what stands in a string, in TOML; of numbers where the list is of numbers."""
    try:
        return json.dumps([msgspec.convert(value, element, strict=False)])
    except msgspec.ValidationError:
        return "[...]"


def _line(message: str) -> str:
    found = re.search(r"line \d+", message)
    return found.group() if found else "end of file"
