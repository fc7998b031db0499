# SPDX-License-Identifier: Apache-2.0
"""ORTModule's names work: subclasses, isinstance, `.module`, DebugOptions."""

import copy
import logging
import pickle

import pytest
import torch

import caesura
from caesura.ortmodule import DebugOptions, LogLevel, ORTModule


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x).tanh()


class Doubled(ORTModule):
    def __init__(self, scale=2):
        super().__init__(Net())
        self.scale = scale

    def forward(self, x):
        return super().forward(self.scale * x)


def test_is_a_class():
    net = Net()
    model = ORTModule(net)
    assert isinstance(model, ORTModule) and isinstance(model, Net)
    assert model.module is net
    assert list(model.state_dict()) == list(net.state_dict())
    x = torch.randn(3, 4)
    caesura.reports.reset()
    with caesura.strict():
        model(x).sum().backward()
    expected = torch.autograd.grad(net(x).sum(), net.linear.weight)[0]
    torch.testing.assert_close(net.linear.weight.grad, expected)
    with pytest.raises(TypeError, match="torch.nn.Module"):
        ORTModule(3)


def test_subclasses_call_the_captured_forward():
    model = Doubled()
    x = torch.randn(3, 4)
    with caesura.strict():
        torch.testing.assert_close(model(x), model.module(2 * x))
    model.scale = 3
    torch.testing.assert_close(model(x), model.module(3 * x))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_modules_of_their_own(duplicate):
    model = ORTModule(Net())
    other = duplicate(model)
    x = torch.randn(3, 4)
    torch.testing.assert_close(other(x), model(x))
    with torch.no_grad():
        other.linear.weight.zero_()
    assert model.linear.weight.abs().sum() > 0
    assert type(other).__mro__[1] is ORTModule


def test_debug_options():
    before = logging.getLogger("caesura").level
    try:
        ORTModule(Net(), DebugOptions(log_level=LogLevel.ERROR))
        assert logging.getLogger("caesura").level == logging.ERROR
    finally:
        logging.getLogger("caesura").setLevel(before)
    with pytest.warns(UserWarning, match="save_onnx"):
        DebugOptions(save_onnx=True, onnx_prefix="net")
