# SPDX-License-Identifier: Apache-2.0
"""Writes the models of the model-op example: a net for handwritten digits whose middle is another runtime's model.

middle.onnx, middle.pt      the middle, frozen: h -> sin(tanh(h A) B), from PyTorch as ONNX and as a TorchScript archive
middle_gradient.onnx        its gradient, (h, dz) -> dh
middle_openvino.onnx, middle_torch.onnx     each of them as a model of one node, by `caesura wrap-model`
around_openvino.onnx, around_torch.onnx     the net: a layer, that node, a layer
around_plain.onnx           the same net with the middle's own nodes in its place
digits.npz                  as in the digits example
"""

import argparse
import os
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "digits"))
import export_digits  # noqa: E402

WIDTH = 32


class Middle(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.b = nn.Linear(WIDTH, WIDTH)

    def forward(self, h):
        return torch.sin(self.b(torch.tanh(self.a(h))))


class MiddleGradient(nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.middle = middle

    def forward(self, h, dz):
        t = torch.tanh(self.middle.a(h))
        dt = (dz * torch.cos(self.middle.b(t))) @ self.middle.b.weight
        return (dt * (1 - t * t)) @ self.middle.a.weight


def export(module, arguments, path, inputs, outputs):
    batch = torch.export.Dim("N")
    program = torch.onnx.export(module, arguments, dynamo=True, verbose=False, input_names=inputs, output_names=outputs,
                                dynamic_shapes=tuple({0: batch} for _ in arguments))
    program.save(path)


def around(middle, path, rng):
    """images -> a layer -> the middle -> a layer -> scores. The weights are the same for every kind of middle."""
    graph = onnx.ModelProto.FromString(middle.SerializeToString()).graph
    weights = {
        "front.weight": rng.standard_normal((64, WIDTH)) / 8, "front.bias": np.zeros(WIDTH),
        "back.weight": rng.standard_normal((WIDTH, 10)) / 6, "back.bias": np.zeros(10),
        "flat": np.array([-1, 64]),
    }
    for name, value in weights.items():
        graph.initializer.append(numpy_helper.from_array(value.astype(np.int64 if name == "flat" else np.float32), name))
    h, z = graph.input[0].name, graph.output[0].name
    front = [helper.make_node("Reshape", ["images", "flat"], ["pixels"]),
             helper.make_node("Gemm", ["pixels", "front.weight", "front.bias"], ["front.sum"]),
             helper.make_node("Relu", ["front.sum"], [h])]
    back = [helper.make_node("Gemm", [z, "back.weight", "back.bias"], ["scores"])]
    nodes = front + list(graph.node) + back
    made = helper.make_graph(nodes, "around", [helper.make_tensor_value_info("images", 1, ["N", 1, 8, 8])],
                             [helper.make_tensor_value_info("scores", 1, ["N", 10])], list(graph.initializer))
    onnx.save(helper.make_model(made, opset_imports=middle.opset_import, ir_version=10), path)


def main(folder):
    torch.manual_seed(0)
    middle = Middle().eval()
    h = torch.zeros(4, WIDTH)
    at = lambda name: os.path.join(folder, name)
    os.makedirs(folder, exist_ok=True)
    export(middle, (h,), at("middle.onnx"), ["h"], ["z"])
    export(MiddleGradient(middle).eval(), (h, torch.ones_like(h)), at("middle_gradient.onnx"), ["h", "dz"], ["dh"])
    torch.jit.trace(middle, h).save(at("middle.pt"))

    def wrap(out, model, *more):
        command = ["caesura", "wrap-model", at(model), "--output", at(out), "--input-type", f"h=float32[N, {WIDTH}]", *more]
        print("$", " ".join(command))
        return subprocess.run(command, check=False).returncode == 0

    made = {"plain": "middle.onnx"}
    # The gradient's model runs on caesura: OpenVINO 2026.4.1 computes it wrongly on the CPU (off by as much as it is large).
    if wrap("middle_openvino.onnx", "middle.onnx", "--runtime", "openvino", "--gradient", at("middle_gradient.onnx"),
            "--gradient-runtime", "caesura", "--output-type", f"z=float32[N, {WIDTH}]"):
        made["openvino"] = "middle_openvino.onnx"
    if wrap("middle_torch.onnx", "middle.pt", "--runtime", "torch", "--output-type", f"output=float32[N, {WIDTH}]"):
        made["torch"] = "middle_torch.onnx"
    for kind, name in made.items():
        around(onnx.load(at(name)), at(f"around_{kind}.onnx"), np.random.default_rng(0))
    train_x, train_y, test_x, test_y = export_digits.load_data()
    np.savez(at("digits.npz"), train_images=train_x, train_labels=train_y, test_images=test_x, test_labels=test_y)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    main(parser.parse_args().folder)
