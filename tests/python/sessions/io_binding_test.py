# SPDX-License-Identifier: Apache-2.0
"""Bound runs give no stale result, overwrite nothing and copy nothing; known failures of other runtimes have tests."""

import concurrent.futures
import gc
import pathlib

import numpy as np
import onnx.parser
import pytest
from onnx import TensorProto, helper

from caesura import onnxruntime
from caesura.onnxruntime import OrtValue


def info(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def session_of(nodes, inputs, outputs, **options):
    graph = helper.make_graph(nodes, "net", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), **options)


@pytest.fixture(name="doubling")
def fixture_doubling():
    return session_of([helper.make_node("Add", ["x", "x"], ["y"])], [info("x", ["n"])], [info("y", ["n"])])


def decoder(**options):
    """A layer's cache that grows by the fed tokens; y depends on the whole cache."""
    nodes = [helper.make_node("Concat", ["past", "x"], ["present"], axis=1),
             helper.make_node("ReduceSum", ["present", "axes"], ["sum"], keepdims=1),
             helper.make_node("Add", ["sum", "sum"], ["y"])]
    graph = helper.make_graph(nodes, "net", [info("past", [1, "p", 64]), info("x", [1, "n", 64])],
                              [info("present", [1, "t", 64]), info("y", [1, 1, 64])],
                              [helper.make_tensor("axes", TensorProto.INT64, [1], [1])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), **options)


def test_all_ways_to_bind(doubling):
    x, y = np.arange(3, dtype=np.float32), np.empty(3, np.float32)
    ways_in = [lambda b: b.bind_cpu_input("x", x), lambda b: b.bind_ortvalue_input("x", OrtValue.ortvalue_from_numpy(x)),
               lambda b: b.bind_input("x", "cpu", 0, np.float32, [3], x.ctypes.data),
               lambda b: b.bind_input("x", "cpu", 0, TensorProto.FLOAT, x.shape, x.ctypes.data)]
    into = OrtValue.ortvalue_from_shape_and_type([3], np.float32)
    ways_out = [lambda b: b.bind_output("y"), lambda b: b.bind_output("y", "cpu", 0),
                lambda b: b.bind_output("y", "cpu", 0, np.float32, [3], y.ctypes.data),
                lambda b: b.bind_ortvalue_output("y", into)]
    for bind_in in ways_in:
        for bind_out in ways_out:
            binding = doubling.io_binding()
            bind_in(binding)
            bind_out(binding)
            binding.synchronize_inputs()
            (result,) = doubling.run_with_iobinding(binding)
            binding.synchronize_outputs()
            assert result.numpy().tolist() == [0, 2, 4]
            assert binding.get_outputs()[0].data_ptr() == result.data_ptr()
            assert binding.copy_outputs_to_cpu()[0].tolist() == [0, 2, 4]
    assert y.tolist() == into.numpy().tolist() == [0, 2, 4]


def test_an_ortvalue_tells_what_it_is():
    array = np.arange(6, dtype=np.float64).reshape(2, 3)
    value = OrtValue.ortvalue_from_numpy(array)
    assert (value.shape(), value.data_type(), value.element_type(), value.device_name()) == (
        [2, 3], "tensor(double)", TensorProto.DOUBLE, "cpu")
    assert value.has_value() and value.is_tensor() and not value.is_tensor_sequence() and not value.is_sparse_tensor()
    assert value.data_ptr() == array.ctypes.data and value.tensor_size_in_bytes() == 48
    assert np.from_dlpack(value).ctypes.data == np.asarray(value).ctypes.data == array.ctypes.data
    assert np.array(value, np.float32).dtype == np.float32
    value.update_inplace(array * 2)
    assert array[1, 2] == 10
    with pytest.raises(ValueError, match="update_inplace takes float64.2, 3."):
        value.update_inplace(np.zeros(3))
    with pytest.raises(ValueError, match="not dense"):
        OrtValue.ortvalue_from_numpy(array.T)


def test_a_second_run_with_the_same_binding_takes_another_shape(doubling):
    binding = doubling.io_binding()
    binding.bind_output("y")
    held = []
    for n in (2, 5, 2, 3):
        binding.bind_cpu_input("x", np.full(n, n, np.float32))
        for _ in range(2):
            doubling.run_with_iobinding(binding)
            held.append((n, binding.get_outputs()[0].numpy()))
    for n, y in held:  # later runs have not changed earlier results
        assert y.tolist() == [2.0 * n] * n
    assert len({y.ctypes.data for _, y in held}) == len(held)


def test_values_written_after_the_binding_are_seen(doubling):
    x = np.ones(2, np.float32)
    binding = doubling.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    assert doubling.run_with_iobinding(binding)[0].numpy().tolist() == [2, 2]
    x[:] = 5
    assert doubling.run_with_iobinding(binding)[0].numpy().tolist() == [10, 10]


def test_a_consumer_holds_the_output_while_the_next_run_goes(doubling):
    x = np.ones(3, np.float32)
    binding = doubling.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    doubling.run_with_iobinding(binding)
    consumer = np.from_dlpack(binding.get_outputs()[0])
    x[:] = 7
    doubling.run_with_iobinding(binding)
    assert consumer.tolist() == [2, 2, 2]
    del binding, doubling
    gc.collect()
    assert consumer.tolist() == [2, 2, 2]


def test_a_buffer_for_one_shape_is_refused_for_another(doubling):
    y = np.full(4, -1, np.float32)
    binding = doubling.io_binding()
    binding.bind_cpu_input("x", np.ones(4, np.float32))
    binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_numpy(y))
    doubling.run_with_iobinding(binding)
    for n in (3, 5):
        binding.bind_cpu_input("x", np.full(n, 9, np.float32))
        with pytest.raises(ValueError, match=rf"buffer for output 'y' is float32\[4\], the output is float32\[{n}\]"):
            doubling.run_with_iobinding(binding)
    assert y.tolist() == [2, 2, 2, 2]
    with pytest.raises(ValueError, match="'y' is float32.n., the buffer bound to it is int64.4."):
        binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_numpy(np.zeros(4, np.int64)))
    y.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_numpy(y))


def test_buffers_are_sized_before_the_run():
    nodes = [helper.make_node("NonZero", ["x"], ["at"]), helper.make_node("Concat", ["x", "x"], ["y"], axis=0)]
    session = session_of(nodes, [info("x", ["n"])], [info("at", [1, "k"], TensorProto.INT64), info("y", ["m"])])
    binding = session.io_binding()
    for n in (2, 3):
        binding.bind_cpu_input("x", np.arange(n, dtype=np.float32))
        shapes = binding.output_shapes()
        assert shapes == {"at": None, "y": [2 * n]}
        y = np.empty(shapes["y"], np.float32)
        binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_numpy(y))
        binding.bind_output("at")
        session.run_with_iobinding(binding)
        assert y.tolist() == list(range(n)) * 2
        assert dict(zip(["y", "at"], (v.shape() for v in binding.get_outputs()))) == {"y": [2 * n], "at": [1, n - 1]}


def test_overlapping_memory_is_refused_unless_declared(doubling):
    room = np.arange(6, dtype=np.float32)
    binding = doubling.io_binding()
    binding.bind_cpu_input("x", room[:4])
    with pytest.raises(ValueError, match="'y' overlaps input 'x'"):
        binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_numpy(room[2:]))
    with pytest.raises(ValueError, match="not the same bytes"):
        binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_numpy(room[2:]), replaces_input=True)
    binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_numpy(room[:4]), replaces_input=True)
    for _ in range(2):
        doubling.run_with_iobinding(binding)
    assert room.tolist() == [0, 4, 8, 12, 4, 5]


def test_what_is_missing_or_not_there_is_named(doubling):
    binding = doubling.io_binding()
    with pytest.raises(ValueError, match="no output is bound"):
        doubling.run_with_iobinding(binding)
    binding.bind_output("y")
    with pytest.raises(ValueError, match="no value given for input.s. 'x'"):
        doubling.run_with_iobinding(binding)
    with pytest.raises(ValueError, match="no input 'z' to bind"):
        binding.bind_cpu_input("z", np.ones(1, np.float32))
    with pytest.raises(ValueError, match="no output 'z' to bind"):
        binding.bind_output("z")
    with pytest.raises(ValueError, match="device 'tpu' is none of cpu, cuda, device"):
        binding.bind_output("y", "tpu")
    with pytest.raises(ValueError, match="needs element_type and shape"):
        binding.bind_output("y", "cpu", 0, buffer_ptr=64)
    with pytest.raises(ValueError, match="no address of float32 elements"):
        binding.bind_input("x", "cpu", 0, np.float32, [2], 3)
    binding.bind_cpu_input("x", np.ones(1, np.float32))
    doubling.run_with_iobinding(binding)
    binding.clear_binding_inputs()
    with pytest.raises(ValueError, match="'x'"):
        doubling.run_with_iobinding(binding)
    binding.clear_binding_outputs()
    assert binding.get_outputs() == []


def test_threads_share_a_session_and_a_binding(doubling):
    shared = doubling.io_binding()
    shared.bind_cpu_input("x", np.arange(3, dtype=np.float32))
    shared.bind_output("y")

    def work(thread):
        own = doubling.io_binding()
        own.bind_output("y")
        for round_ in range(100):
            n = 1 + (thread + round_) % 5
            own.bind_cpu_input("x", np.full(n, thread, np.float32))
            (mine,), (ours,) = doubling.run_with_iobinding(own), doubling.run_with_iobinding(shared)
            assert mine.numpy().tolist() == [2.0 * thread] * n and ours.numpy().tolist() == [0, 2, 4]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_prefill_then_decode_with_outputs_as_the_next_inputs():
    session = decoder()
    binding = session.io_binding()
    binding.bind_output("present")
    binding.bind_output("y")
    past, total = OrtValue.ortvalue_from_numpy(np.zeros((1, 0, 64), np.float32)), 0
    for n in (7, 1, 1, 3, 1):
        binding.bind_ortvalue_input("past", past)
        binding.bind_cpu_input("x", np.full((1, n, 64), n, np.float32))
        before = past.numpy().copy()
        present, y = session.run_with_iobinding(binding)
        assert np.array_equal(past.numpy(), before) and np.array_equal(present.numpy()[:, :past.shape()[1]], before)
        total += n * n
        assert present.shape()[1] == past.shape()[1] + n and y.numpy()[0, 0, 0] == 2 * total
        past = present


def resident_bytes():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_growing_cache_over_200_steps_is_never_copied_and_memory_is_flat():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = decoder(sess_options=options)
    binding = session.io_binding()
    binding.bind_output("present")
    binding.bind_output("y")
    x = np.ones((1, 1, 64), np.float32)
    binding.bind_cpu_input("x", x)

    def sentence():
        past = OrtValue.ortvalue_from_numpy(x)
        for step in range(200):
            binding.bind_ortvalue_input("past", past)
            present, y = session.run_with_iobinding(binding)
            assert present.shape() == [1, step + 2, 64] and y.numpy()[0, 0, 0] == 2 * (step + 2)
            past = present

    sentence()
    before = resident_bytes()
    for _ in range(5):
        sentence()
    assert resident_bytes() - before < 4 << 20  # keeping each step's cache would take 26 MB
    assert session._session.exchanged() == (0, 0)


def test_a_growing_cache_on_a_device_stays_there():
    session = decoder(providers=["CountingExecutionProvider"])
    binding = session.io_binding()
    x = np.ones((1, 1, 64), np.float32)
    binding.bind_cpu_input("x", x)
    binding.bind_output("present", "device")
    binding.bind_output("y", "cpu")
    binding.bind_cpu_input("past", x)
    (past, _) = session.run_with_iobinding(binding)
    began = session._session.device_counts()
    for step in range(200):
        binding.bind_ortvalue_input("past", past)
        past, y = session.run_with_iobinding(binding)
        assert y.numpy()[0, 0, 0] == 2 * (step + 3)
    counts = {name: count - began[name] for name, count in session._session.device_counts().items()}
    assert (counts["copies_to_host"], counts["bytes_to_host"]) == (200, 200 * 256)  # only y
    assert (counts["copies_to_device"], counts["bytes_to_device"]) == (200, 200 * 256)  # only x
    assert past.device_name() == "device" and past.shape() == [1, 202, 64]
    assert past.numpy().shape == (1, 202, 64) and past.numpy()[0, -1, 0] == 1  # a copy on the host
    assert binding.copy_outputs_to_cpu()[0].shape == (1, 202, 64)


def test_torch_tensors_are_bound_where_they_are(doubling):
    torch = pytest.importorskip("torch")
    x, y = torch.arange(4.0), torch.empty(4)
    binding = doubling.io_binding()
    binding.bind_ortvalue_input("x", OrtValue.from_dlpack(x))
    binding.bind_ortvalue_output("y", OrtValue.from_dlpack(y))
    doubling.run_with_iobinding(binding)
    assert y.tolist() == [0, 2, 4, 6]
    x.mul_(10)
    doubling.run_with_iobinding(binding)
    assert y.tolist() == [0, 20, 40, 60]
    binding.bind_input("x", "cpu", 0, np.float32, tuple(x.shape), x.data_ptr())
    binding.bind_output("y")
    (value,) = doubling.run_with_iobinding(binding)
    back = torch.from_dlpack(value)
    assert back.data_ptr() == value.data_ptr() and back.tolist() == [0, 20, 40, 60]
    assert value.to_torch().data_ptr() == value.data_ptr()
    with pytest.raises(ValueError, match="not dense"):
        binding.bind_cpu_input("x", torch.arange(8.0)[::2])


def test_jax_takes_an_output_without_a_copy(doubling):
    jnp = pytest.importorskip("jax.numpy")
    binding = doubling.io_binding()
    binding.bind_cpu_input("x", np.arange(16, dtype=np.float32))
    binding.bind_output("y")
    (value,) = doubling.run_with_iobinding(binding)
    array = jnp.from_dlpack(value)
    assert array.tolist() == [2.0 * i for i in range(16)] and array.unsafe_buffer_pointer() == value.data_ptr()


STRINGS = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,?] x, string[N] s) => (float[N,?] y, string[N] t) {
  y = Relu (x)
  t = Identity (s)
}"""


def test_strings_are_bound():
    session = onnxruntime.InferenceSession(onnx.parser.parse_model(STRINGS))
    for texts in (np.array(["a", "bcd"]), np.array(["a", "bcd"], dtype=object)):
        for bind in ("array", "value"):
            binding = session.io_binding()
            binding.bind_cpu_input("x", np.ones((2, 3), np.float32))
            if bind == "array":
                binding.bind_cpu_input("s", texts)
            else:
                binding.bind_ortvalue_input("s", onnxruntime.OrtValue.ortvalue_from_numpy(texts))
            binding.bind_output("t")
            session.run_with_iobinding(binding)
            assert binding.copy_outputs_to_cpu()[0].tolist() == ["a", "bcd"]


def test_memory_that_the_session_does_not_have():
    binding = onnxruntime.InferenceSession(onnx.parser.parse_model(STRINGS)).io_binding()
    with pytest.raises(ValueError, match="output 'y' cannot be bound to cuda:0: the session's memory is on cpu"):
        binding.bind_output("y", "cuda")


def test_open_dims_have_no_name():
    session = onnxruntime.InferenceSession(onnx.parser.parse_model(STRINGS))
    assert [i.shape for i in session.get_inputs()] == [["N", None], ["N"]]
    assert [o.shape for o in session.get_outputs()] == [["N", None], ["N"]]
