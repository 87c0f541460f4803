"""Boosted trees whose leaves are the features of a logistic regression (He et al., "Practical Lessons from Predicting
Clicks on Ads at Facebook", 2014), folded into one ONNX tree ensemble: each leaf's value is its regression weight."""

from engines.ort import OrtEngine
from engines.package import Package


class TreesEngine(OrtEngine):
    """`trees.onnx` of a package, run like any other ONNX file."""

    def __init__(self, package: Package, *, threads: int = 1, max_batch: int = 1024) -> None:
        super().__init__(package, file="trees.onnx", name="trees", threads=threads, max_batch=max_batch)
