from pathlib import Path

import numpy as np
import pytest

from engines.errors import LoadError
from engines.inputs import Inputs
from engines.ort import OrtEngine
from schemas.spec import ModelSpec, builtin
from tests.models import tiny_package

SPEC = """
event = "custom"
[[features]]
name = "price"
tensor = "x"
[[features]]
name = "shop"
tensor = "ids"
ids = {shops}
[[features]]
name = "colour"
tensor = "ids"
vocabulary = ["red", "blue"]
"""


def spec(shops: int = 1000) -> ModelSpec:
    return ModelSpec.parse(SPEC.format(shops=shops).encode(), "test")


def test_a_sample_is_valid_and_reaches_over_the_whole_range_of_each_column() -> None:
    inputs = Inputs(spec(), 4000)
    sample = inputs.sample(4000)
    assert inputs.check(sample) == 4000
    assert sample["x"].dtype == np.float32 and 0 <= sample["x"].min() and sample["x"].max() < 1
    shops, colours = sample["ids"].T
    assert (shops.min(), shops.max()) == (0, 999)
    assert sorted(set(colours.tolist())) == [0, 1, 2]
    np.testing.assert_array_equal(inputs.sample(4000)["ids"], sample["ids"])


@pytest.mark.parametrize("name", ["tipping", "ad", "criteo", "avazu", "alimama"])
def test_every_built_in_spec_has_one(name: str) -> None:
    inputs = Inputs(builtin(name), 7)
    assert inputs.check(inputs.sample(7)) == 7


def test_a_table_smaller_than_the_spec_says_is_found_at_the_start(tmp_path: Path) -> None:
    package = tiny_package(tmp_path, spec(shops=50))
    # The model's own table has 50 rows; a spec that was changed by hand says more.
    object.__setattr__(package, "spec", spec(shops=5000))
    with pytest.raises(LoadError, match="warm-up failed"):
        OrtEngine(package, max_batch=256)
