# SPDX-License-Identifier: Apache-2.0
"""A lower bound for the time of a step: only its matrix products, and AdamW's memory traffic.

Each product is one MatMul in an InferenceSession, that is one oneDNN primitive; its time is the difference
between several of them in a model and one. AdamW reads a parameter, its gradient and two moments and writes three of
them: 28 bytes an element, which are copied here instead.
"""

import time

import ml_dtypes
import numpy as np
import torch
from onnx import TensorProto, helper

from caesura import onnxruntime

_MORE = 2  # products in the longer model, beside the first


def _model(product: dict, products: int, bfloat16: bool) -> bytes:
    """`products` MatMuls of one left side with different right sides; of each only a row leaves."""
    batch, m, k, n = (product[key] for key in ("batch", "m", "k", "n"))
    element = TensorProto.BFLOAT16 if bfloat16 else TensorProto.FLOAT
    rng = np.random.default_rng(0)
    tensors = [helper.make_tensor("row", TensorProto.INT64, [1], [0])]
    nodes = []
    for i in range(products):
        values = rng.standard_normal((batch, k, n), dtype=np.float32)
        values = values.astype(ml_dtypes.bfloat16) if bfloat16 else values
        tensors.append(helper.make_tensor(f"b{i}", element, [batch, k, n], values.tobytes(), raw=True))
        nodes += [helper.make_node("MatMul", ["a", f"b{i}"], [f"y{i}"]),
                  helper.make_node("Gather", [f"y{i}", "row"], [f"r{i}"], axis=1)]
    info = lambda name, shape: helper.make_tensor_value_info(name, element, shape)
    graph = helper.make_graph(nodes, "products", [info("a", [batch, m, k])],
                              [info(f"r{i}", [batch, 1, n]) for i in range(products)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()


class _Product:
    def __init__(self, product: dict, job: dict):
        self._count = product["count"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = job["threads"]
        self._sessions = [onnxruntime.InferenceSession(_model(product, n, job["bfloat16"]), options) for n in (1, 1 + _MORE)]
        a = np.ones([product[key] for key in ("batch", "m", "k")], np.float32)
        self._feeds = {"a": a.astype(ml_dtypes.bfloat16) if job["bfloat16"] else a}

    def seconds(self) -> float:
        """Seconds of all products of this shape in a step, from the best of several runs."""
        one, several = (_best(lambda: session.run(None, self._feeds)) for session in self._sessions)
        return max(several - one, 0.0) / _MORE * self._count


def _best(call, repeats: int = 5) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


class Runner:
    """Stands in for worker.py's: a round is one estimate."""

    def __init__(self, system, folder, job):
        torch.set_num_threads(job["threads"])
        self._products = [_Product(product, job) for product in job["products"]]
        self._source = torch.zeros(max(1, 7 * job["parameters"] // 2))  # read and written: 28 bytes a parameter
        self._target = torch.zeros_like(self._source)
        self.answer(0)
        self.ready = {}

    def answer(self, steps: int) -> dict:
        copy = _best(lambda: self._target.copy_(self._source))
        products = sum(product.seconds() for product in self._products)
        return {"seconds": products + copy, "steps": 1, "products": products, "copy": copy,
                "bytes_per_second": 8 * self._source.numel() / copy}
