# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch and NumPy in and out by DLPack: shared bytes, views, dtypes, lifetimes."""

import gc
import pathlib
import re
import threading
import weakref

import numpy as np
import pytest
from onnx import TensorProto, helper

import caesura
from caesura import _core, onnxruntime
from caesura.dtypes import NUMBERS
from caesura.sessions.values import from_value, to_value

torch = pytest.importorskip("torch")
Value = _core.Value

# PyTorch computes nothing in its integers of fewer than 8 bits.
DTYPES = {name: getattr(torch, name) for name in NUMBERS if hasattr(torch, name) and not re.match("u?int[24]$", name)}
TOP = pathlib.Path(__file__).resolve().parents[3]


def test_the_tables_of_dtypes_agree():
    """The table of dtypes.py says the same as those of C++ (dtype.h, torch_tensor.cc)."""
    header, source = ((TOP / path).read_text() for path in ("core/tensor/dtype.h", "torch_bridge/torch_tensor.cc"))
    numbers = {name: int(number) for name, number in re.findall(r"^  k(\w+) = (\d+),", header, re.M)}
    named = {number: name.replace("_", "") for name, number in NUMBERS.items()} | {0: "undefined", 8: "string"}
    assert sorted(numbers.values()) == sorted(named)
    assert all(named[number].startswith(name.lower()) for name, number in numbers.items())
    rows = re.findall(r"{DType::k(\w+), c10::ScalarType::(\w+)}", source)
    types = {NUMBERS[name]: torch.empty(0, dtype=dtype).type() for name, dtype in DTYPES.items()}  # torch.FloatTensor
    assert {numbers[name]: f"torch.{type}Tensor" for name, type in rows} == types


class ByMethodAlone:
    """A producer without the C function table. `legacy`: one without DLPack versions."""

    def __init__(self, tensor, legacy=False):
        self.tensor, self.legacy = tensor, legacy

    def __dlpack__(self, **arguments):
        if self.legacy and arguments:
            raise TypeError("unexpected keyword argument")
        return self.tensor.__dlpack__(**arguments)


@pytest.mark.parametrize("name, dtype", DTYPES.items(), ids=str)
def test_every_dtype_shares_its_bytes_both_ways(name, dtype):
    source = torch.arange(6).reshape(2, 3).to(dtype)
    value = Value.from_dlpack(source)
    assert value.shape == [2, 3] and value.dtype == NUMBERS[name]
    back = value.to_torch()
    assert back.dtype == dtype and back.data_ptr() == source.data_ptr()
    assert torch.equal(back.view(torch.uint8), source.view(torch.uint8))
    assert torch.from_dlpack(value).data_ptr() == source.data_ptr()


def test_numpy_reads_what_torch_gave():
    source = torch.arange(4.0)
    array = np.from_dlpack(Value.from_dlpack(source))
    source[1] = 7
    assert array.tolist() == [0, 7, 2, 3]
    assert Value.from_dlpack(source).__dlpack_device__() == (1, 0)


@pytest.mark.parametrize("legacy", [False, True])
def test_producers_without_a_function_table(legacy):
    source = torch.arange(4.0)
    value = Value.from_dlpack(ByMethodAlone(source, legacy))
    assert value.to_torch().data_ptr() == source.data_ptr()
    array = np.arange(3)
    assert np.from_dlpack(Value.from_dlpack(array)).ctypes.data == array.ctypes.data


@pytest.mark.parametrize("view", [
    lambda t: t.t(), lambda t: t[:, 1:], lambda t: t[0].expand(3, 4), lambda t: torch.flip(t, [0]), lambda t: t[1, 2],
    lambda t: t[:0], lambda t: t.unsqueeze(0), lambda t: t[::2, ::3], lambda t: torch.empty(0)])
def test_views(view):
    source = view(torch.arange(12.0).reshape(3, 4))
    assert torch.equal(Value.from_dlpack(source).to_torch(), source)


def test_lazy_conjugates_and_negatives_come_resolved():
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert torch.equal(Value.from_dlpack(z.conj()).to_torch(), z.conj().resolve_conj())
    negative = z.conj().imag
    assert negative.is_neg()
    assert Value.from_dlpack(negative).to_torch().tolist() == [-2, 4]
    assert torch.equal(Value.from_dlpack(torch._neg_view(torch.arange(3.0))).to_torch(), -torch.arange(3.0))


def test_parameters_and_subclasses_cross():
    parameter = torch.nn.Parameter(torch.ones(2))
    assert Value.from_dlpack(parameter).to_torch().data_ptr() == parameter.data_ptr()


@pytest.mark.parametrize("bad", [torch.ones(2, 2).to_sparse(), torch.ones(2, device="meta")], ids=["sparse", "meta"])
def test_what_has_no_plain_bytes_is_refused(bad):
    with pytest.raises((BufferError, RuntimeError, NotImplementedError, ValueError)):
        Value.from_dlpack(bad)
    with pytest.raises(AttributeError):
        Value.from_dlpack(3)


def test_what_cannot_go_out():
    with pytest.raises(BufferError, match="only tensors"):
        Value().__dlpack__()
    with pytest.raises(NotImplementedError, match="string"):
        to_value(np.array(["a"])).__dlpack__()
    value = to_value(np.ones(2))
    with pytest.raises(BufferError, match="stream"):
        value.__dlpack__(stream=1)
    with pytest.raises(BufferError, match="another device"):
        value.__dlpack__(dl_device=(2, 0))
    import ml_dtypes

    with pytest.raises(NotImplementedError, match="int4"):
        to_value(np.ones(2, ml_dtypes.int4)).to_torch()


def test_copies_on_request_and_unused_capsules():
    array = np.ones(2)
    value = to_value(array)
    assert np.from_dlpack(value, copy=True).ctypes.data != array.ctypes.data
    for version in (None, (1, 0), (1, 3)):
        value.__dlpack__(max_version=version)  # dropped without a consumer
    capsule = value.__dlpack__(max_version=(1, 0))
    torch.utils.dlpack.from_dlpack(capsule)
    with pytest.raises(ValueError, match="fresh"):
        Value.from_dlpack(type("Once", (), {"__dlpack__": lambda self, **_: capsule})())


def test_either_side_may_go_first():
    source = torch.ones(1000)
    gone = weakref.ref(source.untyped_storage())
    value = Value.from_dlpack(source)
    pointer = source.data_ptr()
    del source
    back = value.to_torch()
    del value
    gc.collect()
    assert back.data_ptr() == pointer and back.sum() == 1000
    del back, gone

    live = []

    class Source:
        def __dlpack__(self, **arguments):
            live.append(torch.ones(3))
            return live[-1].__dlpack__(**arguments)

    value = Value.from_dlpack(Source())
    thread = threading.Thread(target=lambda held: held.clear(), args=([value],))
    del value
    thread.start()
    thread.join()
    assert live[0].sum() == 3


@pytest.fixture()
def model():
    graph = helper.make_graph([helper.make_node("Mul", ["x", "x"], ["y"])], "g",
                              [helper.make_tensor_value_info("x", TensorProto.BFLOAT16, ["n"])],
                              [helper.make_tensor_value_info("y", TensorProto.BFLOAT16, ["n"])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]).SerializeToString()


def test_sessions_give_what_they_are_given(model):
    session = onnxruntime.InferenceSession(model)
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16)
    (y,) = session.run(None, {"x": x})
    assert y.dtype == torch.bfloat16 and y.tolist() == [1, 4, 9]
    (y,) = session.run(None, {"x": from_value(to_value(x))})
    assert isinstance(y, np.ndarray) and y.astype(float).tolist() == [1, 4, 9]


def test_a_split_module_takes_and_gives_torch_tensors(model):
    run = caesura.SplitModule(model, inputs=["x"]).forward({"x": torch.tensor([1.0, 3.0], dtype=torch.bfloat16)})
    gradients = run.backward([torch.ones_like(run.outputs["y"])])
    assert gradients["x"].tolist() == [2, 6]
