"""The constant engine."""

from pathlib import Path

import numpy as np
import pytest

import engines
from engines.base import Engine, Scores, run
from engines.constant import ConstantEngine
from engines.errors import LoadError
from engines.package import Package, write_package
from schemas.rows import Tensors
from tests.engines.contract import EngineContract
from tests.models import random_batch, tiny_package


class TestContract(EngineContract):
    def load(self, package: Package, max_batch: int) -> Engine:
        return engines.load("constant", package, max_batch=max_batch, value=0.125)

    def reference(self, package: Package, batch: Tensors) -> Scores:
        return np.full(len(batch["dense"]), 0.125, np.float32)


def test_base_rate_of_the_training_is_the_default(tmp_path: Path) -> None:
    package = tiny_package(tmp_path)
    scores = run(ConstantEngine(package).open_session(), random_batch(package.spec, 3))
    np.testing.assert_array_equal(scores, np.full(3, 0.25, np.float32))


def test_no_base_rate_and_no_value_is_refused(tmp_path: Path) -> None:
    files = {"spec.toml": tiny_package(tmp_path).spec.dumps()}
    package = write_package(tmp_path, name="bare", version="1", kind="none", files=files)
    with pytest.raises(LoadError, match="value is None; give a finite number"):
        ConstantEngine(package)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_value_must_be_finite(tmp_path: Path, value: float) -> None:
    with pytest.raises(LoadError, match="finite"):
        ConstantEngine(tiny_package(tmp_path), value=value)
