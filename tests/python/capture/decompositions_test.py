# SPDX-License-Identifier: Apache-2.0
"""Tests which calls are decomposed, while libraries of operators come and go."""

import math

import pytest
import torch

import caesura
from caesura.capture import foreach
from caesura.capture.compat import core_aten_decompositions
from caesura.capture.decompositions import _WRONG, _table, decompositions

KEPT = {torch.ops.aten.native_layer_norm.default}


def scaled(by):
    """A library with an operator that multiplies by `by`, in calls that autograd sees."""
    library = torch.library.Library("decompositions_test", "DEF")
    library.define("scaled(Tensor x) -> Tensor")
    library.impl("scaled", lambda x: x * by, "CompositeImplicitAutograd")
    return library


def test_the_table_is_pytorchs_without_what_is_kept():
    added = {torch.ops.aten._weight_norm_interface_backward.default, *foreach.decompositions()}
    for _ in range(2):
        table = decompositions(KEPT)
        pytorchs = {target for target in dict(core_aten_decompositions().items()) if target.namespace != "caesura"}
        assert table.keys() == (pytorchs | added) - KEPT - {_WRONG}
    table.clear()  # the caller's own
    assert decompositions(KEPT)


def test_operators_of_libraries_come_and_go():
    before = decompositions(KEPT).keys()
    for by in (2.0, 3.0):
        library = scaled(by)
        target = torch.ops.decompositions_test.scaled.default
        new = decompositions(KEPT)
        assert new.keys() == before | {target}
        assert torch.equal(new[target](torch.ones(2)), torch.full((2,), by))
        library._destroy()
    assert decompositions(KEPT).keys() == before


def test_captures_share_the_table():
    def train(width):
        caesura.wrap(torch.nn.Linear(width, 2))(torch.ones(3, width)).sum().backward()

    train(5)
    made = _table.cache_info().misses
    train(6)
    train(7)
    assert _table.cache_info().misses == made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape, axis", [((2,), 0), ((2, 3), 0), ((2, 3), 1), ((2, 3, 2), 1)])
def test_weight_norm_is_its_kernel_s(shape, axis, dtype):
    """Of a vector, too, where PyTorch's decomposition gives [1.8, 3.2] for [3, 4]."""
    v = (torch.arange(3.0, 3.0 + math.prod(shape)).view(shape)).to(dtype)
    g = torch.full([n if i == axis else 1 for i, n in enumerate(shape)], 2.0, dtype=dtype)
    target = torch.ops.aten._weight_norm_interface.default
    if axis in (0, len(shape) - 1):  # the kernel takes no other
        torch.testing.assert_close(decompositions(KEPT)[target](v, g, axis)[0], target(v, g, axis)[0])
        backward, dw = torch.ops.aten._weight_norm_interface_backward.default, torch.linspace(-1, 2, v.numel(), dtype=dtype).view(shape)
        given = dw, v, g, target(v, g, axis)[1], axis
        tolerance = {} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.02}  # the kernel sums in float32
        torch.testing.assert_close(decompositions(KEPT)[backward](*given), backward(*given), **tolerance)
    torch.testing.assert_close(decompositions(KEPT)[target](v, g, axis)[0], torch._weight_norm(v, g, axis), rtol=1e-2, atol=1e-2)
