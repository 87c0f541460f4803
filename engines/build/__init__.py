"""ONNX -> TensorRT plan, offline: precision recipes, builder, inspector and the gates before a plan may serve.

Nothing here runs in a worker. It needs onnx; `builder` and `inspector` need TensorRT too.
"""
