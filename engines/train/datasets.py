"""Labelled rows of a sample as the tensors that its spec makes of them, split into training and held-out rows.

Rows go through the wire format and the worker's own decoder, so that a model is trained on what it will be given.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engines.errors import LoadError
from engines.train.streams import Labelled, ads, tips
from schemas.decoder import Decoder
from schemas.encoder import Encoder
from schemas.errors import InvalidEvent, remedy_of
from schemas.fit import fit
from schemas.rows import Tensors
from schemas.samples import SAMPLES, rows
from schemas.spec import ModelSpec, builtin

HELD_OUT: Final = 0.2
STREAMS: Final[dict[str, Callable[[int, int], Iterator[Labelled]]]] = {"tipping": tips, "ad": ads}
"""Samples that are made up, any number of rows, by seed."""

FILES: Final = {"criteo": "criteo_sample.txt", "avazu": "avazu_sample.txt", "alimama": "alimama_sample.csv"}
"""Samples that are read from a file, by default that of the source tree: see `_sample_file`."""

PAIRS: Final = {"alimama": {"hist_cate": "cate", "hist_brand": "brand"}, "ad": {"hist": "ad"}}
"""Sample -> sequence -> the feature that attention asks about."""

DEFAULT_ROWS: Final = 20_000
_DATA: Final = Path("tests", "data")
_SOURCE_TREE: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Dataset:
    """Tensors with labels [n] of 0 and 1."""

    tensors: Tensors
    labels: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: NDArray[np.int64]) -> "Dataset":
        return Dataset({name: tensor[index] for name, tensor in self.tensors.items()}, self.labels[index])


def load(sample: str, *, rows_wanted: int | None = None, seed: int = 0, data: Path | None = None) -> Dataset:
    """Rows of a sample: all rows of a file, or `DEFAULT_ROWS` of a stream, or as many as are wanted.

    Raises `LoadError` for an unknown sample, a file that cannot be read, and rows that the spec refuses.
    """
    if sample in STREAMS:
        if data is not None:
            raise LoadError(f"{data}: the sample {sample!r} is synthetic and reads no file; leave the file out")
        labelled = list(STREAMS[sample](rows_wanted or DEFAULT_ROWS, seed))
    elif sample in FILES:
        labelled = list(islice(_file_rows(sample, data or _sample_file(sample)), rows_wanted))
    else:
        raise LoadError(f"sample {sample!r} is unknown; choose one of {', '.join([*FILES, *STREAMS])}")
    return _decoded(builtin(sample), [row for row, _ in labelled], [label for _, label in labelled], sample)


def split(dataset: Dataset, seed: int) -> tuple[Dataset, Dataset]:
    """Training rows and held-out rows (a fifth), each with its share of positives.

    Raises `LoadError` when a class has fewer than two rows, so that one of the parts would be without it.
    """
    rng = np.random.default_rng(seed)
    held_out = np.zeros(len(dataset), bool)
    for label in (0, 1):
        members = np.flatnonzero(dataset.labels == label)
        if len(members) < 2:
            raise LoadError(f"{len(members)} of {len(dataset)} rows have label {label}; give more rows, at least two")
        held_out[rng.permutation(members)[: max(1, round(len(members) * HELD_OUT))]] = True
    return dataset.take(np.flatnonzero(~held_out)), dataset.take(np.flatnonzero(held_out))


def _sample_file(sample: str) -> Path:
    """Beside this code, or else, where the code was installed without the samples, in the working directory."""
    file = _DATA / FILES[sample]
    beside = _SOURCE_TREE / file
    return beside if beside.exists() else file


def _file_rows(sample: str, path: Path) -> Iterator[Labelled]:
    column = SAMPLES[sample].label
    try:
        if problem := fit(builtin(SAMPLES[sample].spec), path, others=[column]).problem:
            raise LoadError(f"{path}: {problem}")
        for number, row in enumerate(rows(path), 1):
            label = str(row.pop(column, "missing"))
            if label not in ("0", "1"):
                raise LoadError(f"{path}: row {number}: {column}: {label!r} is not 0 or 1; correct the row")
            yield row, int(label)
    except OSError as error:
        otherwise = f"give the file of the sample {sample!r} with --data FILE"
        raise LoadError(f"{path}: cannot be read: {error.strerror}; {remedy_of(error, otherwise)}") from error
    except ValueError as error:
        raise LoadError(str(error)) from error


def _decoded(spec: ModelSpec, features: list[dict[str, object]], labels: list[int], sample: str) -> Dataset:
    encoder = Encoder(spec, "msgpack")
    try:
        values = [encoder.encode(row) for row in features]
    except InvalidEvent as error:
        raise LoadError(f"{sample}: {error}; correct the row or the spec") from error
    found = Decoder(spec, "msgpack").decode(values)
    if found.invalid:
        index, refused = found.invalid[0]
        raise LoadError(f"{sample}: row {index + 1}: {refused}; correct the row or the spec")
    return Dataset(found.tensors, np.array(labels, np.float32))
