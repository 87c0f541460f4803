"""A model on disk: `models/<name>/<version>/` with its files and a manifest of their digests.

    model.onnx     the primary model, ONNX
    light.npz      logistic regression over the same tensors
    trees.onnx     boosted trees with logistic-regression leaves (optional)
    spec.toml      or spec.json: the model's features and tensors
    manifest.json  name, version, kind, metrics, and the sha256 of every file above

Files that are not in the manifest (compiled plans and their reports, tables of static embeddings that are refreshed)
may lie beside and are not verified here.
"""

import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from engines.errors import LoadError
from engines.writable import check_writable
from schemas.errors import UNREADABLE, InvalidSpec, remedy_of, unreadable
from schemas.spec import ModelSpec
from schemas.tables import Table, open_tables

MANIFEST: Final = "manifest.json"
SPECS: Final = ("spec.toml", "spec.json")
MAX_MANIFEST_BYTES: Final = 1 << 20
_COPY: Final = "copy the package again, whole"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")

Metric = float | int | str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What `manifest.json` holds. Unknown keys are ignored, so that an older worker reads a newer package."""

    name: str
    version: str
    kind: str
    """What model.onnx is: lr, mlp, din, or any word of the user's."""
    created_ms: int
    files: dict[str, str]
    """File name, inside the package, to the sha256 of its bytes in hexadecimal."""
    metrics: dict[str, Metric] = {}
    note: str = ""


@dataclass(frozen=True, slots=True)
class Package:
    """A verified package. Immutable; reading its files afterwards is up to the engines."""

    path: Path
    manifest: Manifest
    spec: ModelSpec

    @classmethod
    def open(cls, path: Path | str) -> "Package":
        """Open a version directory, or a model directory, of which the newest version by natural sort is taken.

        Every file of the manifest is read once and its digest compared. Raises `LoadError`, which names the file, the
        problem and the remedy.
        """
        directory = _version_directory(Path(path))
        manifest = _read_manifest(directory / MANIFEST)
        for name, digest in manifest.files.items():
            _verify(directory, name, digest)
        return cls(directory, manifest, _read_spec(directory, manifest))

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def version(self) -> str:
        return self.manifest.version

    @property
    def digest(self) -> str:
        """sha256, hexadecimal, of what the manifest says: two packages with the same one are the same model."""
        return hashlib.sha256(msgspec.json.encode(self.manifest, order="sorted")).hexdigest()

    def has(self, name: str) -> bool:
        """True when the manifest lists the file."""
        return name in self.manifest.files

    def open_tables(self, now: Callable[[], float] = time.monotonic) -> dict[str, Table]:
        """The tables of static embeddings that the spec names, from here or from the model's directory above.

        `now` gives the seconds by which they are looked at for refreshes. Raises `LoadError`.
        """
        try:
            return open_tables(self.spec, (self.path, self.path.parent), now)
        except InvalidSpec as error:
            raise LoadError(str(error)) from error

    def file(self, name: str) -> Path:
        """Path of a file of the manifest. Raises `LoadError` when the package has no such file."""
        if not self.has(name):
            known = ", ".join(sorted(self.manifest.files))
            raise LoadError(
                f"{self.path / name}: not in the package, which has {known}; train the model again with this part, "
                "or choose an engine whose file is there"
            )
        return self.path / name


def write_package(
    models: Path,
    *,
    name: str,
    version: str,
    kind: str,
    files: Mapping[str, bytes],
    metrics: Mapping[str, Metric] | None = None,
    note: str = "",
    created_ms: int | None = None,
) -> Package:
    """Write `models/<name>/<version>/` and open it. A reader sees the whole package or none.

    `files` holds at least spec.toml or spec.json. `created_ms` is milliseconds since the epoch, now by default. Raises
    `LoadError`, and leaves nothing, as `check_target` does, when the name of a file is unusable, the disk refuses, or
    the package would not open.
    """
    target = check_target(models, name, version)
    for file in files:
        _check_name(models, "file", file)
    manifest = Manifest(
        name=name,
        version=version,
        kind=kind,
        created_ms=time.time_ns() // 1_000_000 if created_ms is None else created_ms,
        files={file: hashlib.sha256(data).hexdigest() for file, data in sorted(files.items())},
        metrics=dict(metrics or {}),
        note=note,
    )
    # The dot keeps a half-written directory out of the search for the newest version.
    partial = target.parent / f".{version}.{secrets.token_hex(4)}"
    try:
        partial.mkdir(parents=True)
        for file, data in files.items():
            _write_through(partial / file, data)
        _write_through(partial / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        _sync_directory(partial)
        # Before it has its name, so that what cannot be opened is never the newest version.
        package = Package.open(partial)
        partial.rename(target)
        _sync_directory(target.parent)
    except OSError as error:
        raise LoadError(f"{target}: cannot be written: {error}; check the free space and permissions") from error
    except LoadError as error:
        raise LoadError(str(error).replace(str(partial), str(target))) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return replace(package, path=target)


def check_target(models: Path, name: str, version: str) -> Path:
    """The directory `models/<name>/<version>/`, to be called before the work that makes its files.

    Raises `LoadError` when the version exists, a name is unusable, or the place cannot be written.
    """
    _check_name(models, "name", name)
    _check_name(models, "version", version)
    target = models / name / version
    check_writable(target.parent)
    if target.exists():
        raise LoadError(f"{target}: this version exists; choose another version, or remove the directory first")
    return target


def _check_name(models: Path, word: str, value: str) -> None:
    if not _NAME.fullmatch(value) or value == MANIFEST:
        raise LoadError(f"{models}: {word} {value!r} cannot be used; take letters, digits, '.', '_', '+' and '-'")


def natural_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key by which 1.10 follows 1.9: digits compare as numbers, the rest as text, and digits before text."""
    parts = re.findall(r"\d+|\D+", version)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)


def _version_directory(path: Path) -> Path:
    try:
        if (path / MANIFEST).is_file():
            return path
        versions = [
            child for child in path.iterdir() if not child.name.startswith(".") and (child / MANIFEST).is_file()
        ]
    except OSError as error:
        otherwise = "give models/<name> or models/<name>/<version>"
        raise LoadError(
            f"{error.filename or path}: cannot be read: {error.strerror}; {remedy_of(error, otherwise)}"
        ) from error
    if not versions:
        raise LoadError(
            f"{path}: no {MANIFEST} here nor in a version below; give models/<name> or models/<name>/<version>"
        )
    return max(versions, key=lambda child: natural_key(child.name))


def _read_manifest(path: Path) -> Manifest:
    try:
        if (size := path.stat().st_size) > MAX_MANIFEST_BYTES:
            raise LoadError(f"{path}: {size} bytes, more than {MAX_MANIFEST_BYTES}; write the package again")
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror}; {remedy_of(error, _COPY)}") from error
    except UNREADABLE as error:
        raise LoadError(f"{path}: not a manifest: {unreadable(error)}; write the package again") from error


def _verify(directory: Path, name: str, digest: str) -> None:
    if not _NAME.fullmatch(name):
        raise LoadError(f"{directory / MANIFEST}: files: {name!r} is not a plain file name; write the package again")
    path = directory / name
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise LoadError(
            f"{path}: listed in {MANIFEST} but cannot be read: {error.strerror}; {remedy_of(error, _COPY)}"
        ) from error
    if found != digest:
        raise LoadError(
            f"{path}: sha256 is {found}, {MANIFEST} says {digest}; the file is damaged or was changed: "
            "copy the package again, or write it again as a new version"
        )


def _read_spec(directory: Path, manifest: Manifest) -> ModelSpec:
    for name in SPECS:
        if name in manifest.files:
            try:
                return ModelSpec.load(directory / name)
            except InvalidSpec as error:
                raise LoadError(str(error)) from error
    raise LoadError(f"{directory / MANIFEST}: files: neither {' nor '.join(SPECS)}; write the package again with one")


def _write_through(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
