"""The optional parts of the installation and how one gets them, as every message about a missing library says it."""

from typing import Literal

Extra = Literal["demo", "gpu", "train"]


def install(extra: Extra) -> str:
    """The remedy. From the source tree, since no package index has this project."""
    return f"pip install '.[{extra}]' in scorelane's source tree"
