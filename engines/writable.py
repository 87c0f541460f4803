"""Whether a result can be kept, asked before the work that makes it."""

import os
from pathlib import Path

from engines.errors import LoadError


def check_writable(directory: Path) -> None:
    """Raise `LoadError` where this user cannot write into `directory`, or cannot make it if it is not there."""
    try:
        nearest = next(path for path in (directory, *directory.parents) if path.exists())
    except OSError as error:
        raise LoadError(f"{error.filename}: {error.strerror}; check the path and the permissions") from error
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        problem = "this user cannot write there" if nearest.is_dir() else "not a directory"
        raise LoadError(f"{nearest}: {problem}; choose another place, or check the permissions")
