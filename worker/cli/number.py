"""A number on the command line."""

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A finite number in a range. `FloatRange` lets "nan" pass: it is outside of none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number
