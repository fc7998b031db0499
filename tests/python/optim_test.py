# SPDX-License-Identifier: Apache-2.0
"""caesura.optim has the names, arguments and defaults of torch.optim, and a session's updates are PyTorch's."""

import dataclasses
import inspect

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402
from caesura import optim  # noqa: E402

NAMES = [name for name in optim.__all__ if name != "Optimizer"]
OURS = {"Lamb", "Lion"}  # which PyTorch does not have
# Arguments of PyTorch's optimizers that choose how PyTorch computes, or that are tensors: ours have none of them.
NOT_OURS = {"self", "params", "foreach", "fused", "capturable", "differentiable"}
# Other values than the defaults, so that an argument that goes astray shows.
OTHERS = {"lr": 0.02, "momentum": 0.8, "dampening": 0.1, "weight_decay": 0.05, "betas": (0.8, 0.95), "eps": 1e-3, "amsgrad": True,
          "maximize": True, "momentum_decay": 0.01, "decoupled_weight_decay": True, "lr_decay": 0.1, "initial_accumulator_value": 0.2,
          "rho": 0.7, "lambd": 0.01, "alpha": 0.6, "t0": 1.0, "etas": (0.4, 1.3), "step_sizes": (1e-4, 0.03), "centered": True,
          "beta2_decay": -0.6, "d": 1.2, "nesterov": False, "ns_coefficients": (3.0, -4.0, 2.0), "ns_steps": 3,
          "adjust_lr_fn": "match_rms_adamw"}
MODEL = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,3] x) => (float[N,2] y) <float[3,2] w = {0.5, -0.25, 0.125, 1, 0, -1}> { y = MatMul (x, w) }"""


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OURS])
def test_arguments_are_pytorchs(name):
    theirs = {p.name: p.default for p in inspect.signature(getattr(torch.optim, name).__init__).parameters.values()
              if p.name not in NOT_OURS}
    if name == "Adam":
        theirs.pop("decoupled_weight_decay", None)  # which is AdamW
    ours = inspect.signature(getattr(optim, name)).parameters.values()
    assert {p.name: p.default for p in ours} == theirs
    in_order = [p.name for p in ours if p.kind == p.POSITIONAL_OR_KEYWORD]
    assert in_order == [n for n in theirs if n in in_order]


def others(name):
    made = {f.name: OTHERS[f.name] for f in dataclasses.fields(getattr(optim, name))}
    return made | ({"eps": (1e-6, 1e-2)} if name == "Adafactor" else {})


@pytest.mark.parametrize(("name", "arguments"), [
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    *((name, arguments) for name in NAMES if name not in OURS for arguments in ({}, others(name))),
], ids=lambda value: value if isinstance(value, str) else "-".join(value) or "defaults")
def test_updates_are_pytorchs(name, arguments):
    kind = getattr(optim, name)
    session = caesura.TrainingSession(onnx.parser.parse_model(MODEL), loss="mse", optimizer=kind(**arguments), threads=1)
    weight = torch.tensor([[0.5, -0.25], [0.125, 1], [0, -1]], requires_grad=True)
    optimizer = getattr(torch.optim, name)([weight], **arguments)
    random = np.random.default_rng(0)
    for _ in range(3):
        x, target = (random.standard_normal(shape).astype(np.float32) for shape in ((4, 3), (4, 2)))
        session.step({"x": x, "target": target})
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(torch.from_numpy(x) @ weight, torch.from_numpy(target)).backward()
        optimizer.step()
    tolerance = 1e-2 if name == "Muon" else 1e-5  # PyTorch's Muon computes in bfloat16
    np.testing.assert_allclose(session.parameters()["w"], weight.detach().numpy(), rtol=tolerance, atol=tolerance * 1e-1)


@pytest.mark.parametrize("name", OURS)
def test_the_others_train(name):
    session = caesura.TrainingSession(onnx.parser.parse_model(MODEL), loss="mse", threads=1,
                                      optimizer=getattr(optim, name)(lr=0.01, betas=(0.8, 0.9), weight_decay=0.01))
    feeds = {"x": np.ones((4, 3), np.float32), "target": np.ones((4, 2), np.float32)}
    losses = [session.step(feeds) for _ in range(5)]
    assert losses[-1] < losses[0]


def test_wrong_arguments_are_refused_when_given():
    with pytest.raises(ValueError, match=r"AdamW: betas is 2 number\(s\), got \(0.9,\)"):
        optim.AdamW(betas=(0.9,))
    with pytest.raises(TypeError, match="unexpected keyword argument 'learning_rate'"):
        optim.AdamW(learning_rate=0.1)
    with pytest.raises(ValueError, match="could not convert"):
        optim.SGD(lr="fast")
    with pytest.raises(ValueError, match="adjust_lr_fn is 'original'"):
        optim.Muon(adjust_lr_fn="other")
    with pytest.raises(TypeError, match="optimizer is one of caesura.optim, .*, got 'adamw'"):
        caesura.TrainingSession(onnx.parser.parse_model(MODEL), optimizer="adamw")
