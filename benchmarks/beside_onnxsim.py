# SPDX-License-Identifier: Apache-2.0
"""Compares training steps as ONNX files with those of onnxsim: which models, how many nodes, and how fast onnxruntime is.

    python benchmarks/beside_onnxsim.py [--only MLP]

It takes an environment with onnxsim, onnxscript and onnxruntime. The models and batches are those of exported_steps.py;
the optimizer is Adam. Both files run in onnxruntime on one thread, and their steps take turns; the times are medians of
CPU time. A model that one of the two does not export has its reason in the row.
"""

import argparse
import pathlib
import tempfile

import numpy as np
import onnx
import onnxruntime
import onnxsim
import torch

import caesura
from exported_steps import MODELS, OrtStep, Scored, count_nodes, free_inputs, seconds_of

STEPS = 20


class ByHand(torch.nn.Module):
    """Cross-entropy in operators that onnxsim has gradients of; labels are rows of zeros and a one."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, labels):
        scores = self.net(x)
        return ((torch.log(torch.exp(scores).sum(-1, keepdim=True)) - scores) * labels).sum(-1).mean()


def by_hand(module, batches):
    """The module and the batches as onnxsim can take them."""
    if not isinstance(module, Scored):
        return module, batches
    classes = module.net(batches[0][0]).shape[-1]
    return ByHand(module.net), [(x, torch.nn.functional.one_hot(labels.flatten(), classes).float()) for x, labels in batches]


class TheirStep:
    """onnxsim's step graph in onnxruntime, as OrtStep runs ours."""

    def __init__(self, loop, inputs):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        step = loop.step_graph
        self.run = onnxruntime.InferenceSession(step.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self.names = [value.name for value in self.run.get_outputs()]
        self.next, self.inputs, self.steps, self.state = step.state, inputs, 0, loop.initial_state

    def __call__(self, *batch):
        self.steps += 1
        scalars = {"lr": 1e-3, "m_correction": 1 / (1 - 0.9**self.steps), "v_correction": 1 / (1 - 0.999**self.steps)}
        types = {value.name: value.shape for value in self.run.get_inputs()}
        feeds = {name: np.full(types[name], value, np.float32) for name, value in scalars.items()}
        feeds |= {name: value.detach().numpy() for name, value in zip(self.inputs, batch)}
        found = dict(zip(self.names, self.run.run(None, feeds | self.state)))
        self.state = {name: found[after] for name, after in self.next.items()}


def without_constants(model):
    """Constant nodes, which have no gradient there, become initializers. (onnxsim.simplify would also rename parameters.)"""
    constants = [node for node in model.graph.node if node.op_type == "Constant"]
    for node in constants:
        value = onnx.helper.get_attribute_value(node.attribute[0])
        kinds = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
        kind = kinds.get(node.attribute[0].name)
        array = onnx.numpy_helper.to_array(value) if kind is None else np.array(value, kind)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, node.output[0]))
        model.graph.node.remove(node)
    return model


def theirs(module, batch):
    model = without_constants(onnxsim.export_torch_module_to_onnx(module, batch, output_names=("loss",), opset_version=18))
    loop = onnxsim.compile_training_loop(model, "loss", [name for name, _ in module.named_parameters()], optimizer="adam")
    names = [value.name for value in loop.model.graph.input]
    return TheirStep(loop, names), count_nodes(loop.step_graph.model.graph)


def ours(module, batch, folder):
    step = caesura.compile_step(module, None, torch.optim.Adam(module.parameters(), lr=1e-3), threads=1)
    path = folder / "step.onnx"
    step.export_training(path, *batch)
    model = onnx.load(path)
    return OrtStep(path, free_inputs(model)), count_nodes(model.graph)


def compared(name, folder):
    torch.manual_seed(0)
    trained = MODELS[name]()
    batches = [trained.batch() for _ in range(STEPS)]
    fit, fed = (trained.module, batches) if name == "If and Loop" else by_hand(trained.module, batches)
    made, told = [], []
    for make, first in ((lambda: theirs(fit, fed[0]), fed[0]), (lambda: ours(trained.module, batches[0], folder), batches[0])):
        try:
            made.append(make())
            made[-1][0](*first)
        except Exception as error:
            made = made[:len(told)]
            told.append(f"{type(error).__name__}: {' '.join(str(error).split())[:120]}")
        else:
            told.append(str(made[-1][1]))
    told = told[::-1]
    if len(made) < 2:
        return [name, *told]
    (their_step, their_nodes), (our_step, our_nodes) = made
    seconds = [*seconds_of([lambda i: our_step(*batches[i]), lambda i: their_step(*fed[i])], [(i,) for i in range(STEPS)])]
    return [name, *told, f"{our_nodes / their_nodes:.2f}", *(f"{1e3 * s:.2f}" for s in seconds), f"{seconds[0] / seconds[1]:.2f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[], help="models whose names contain one of these")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | nodes | nodes, onnxsim | ratio | ms | ms, onnxsim | ratio |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            if not arguments.only or any(part.lower() in name.lower() for part in arguments.only):
                print("| " + " | ".join(map(str, compared(name, pathlib.Path(folder)))) + " |", flush=True)


if __name__ == "__main__":
    main()
