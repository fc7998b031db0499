# SPDX-License-Identifier: Apache-2.0
"""CUDAExecutionProvider from Python, on the stand-ins for CUDA: sessions, bindings, training, split modules."""

import numpy as np
import onnx.parser
import pytest

import caesura
from caesura import onnxruntime
from standin_cuda import standin  # noqa: F401

CUDA = 2  # kDLCUDA
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
LABELS = np.array([0, 2, 1])


def net():
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
        net (float[N, 4] x) => (float[N, 3] y) { h = MatMul (x, w) b = Add (h, v) g = Gelu (b) y = MatMul (g, u) }""")
    for name, shape in (("w", (4, 8)), ("v", (8,)), ("u", (8, 3))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    return model


class Lent:
    """A tensor of another library's, which notes the streams that consumers tell it."""

    def __init__(self, value):
        self.value, self.streams = value, []

    def __dlpack_device__(self):
        return self.value.__dlpack_device__()

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.streams.append(stream)
        return self.value.__dlpack__(stream=stream, max_version=max_version)


def test_a_session_runs_there(standin):  # noqa: F811
    session = onnxruntime.InferenceSession(net(), providers=[standin.provider(device_id=0, gpu_mem_limit=1 << 20)])
    assert session.get_providers() == ["CUDAExecutionProvider", "CPUExecutionProvider"]
    wanted, = onnxruntime.InferenceSession(net()).run(None, {"x": X})
    got, = session.run(None, {"x": X})
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert standin.operations("kernel ") > 0


def test_options_that_are_wrong_are_named(standin):  # noqa: F811
    with pytest.raises(ValueError, match="option 'device_id': expected a number, got 'first'"):
        onnxruntime.InferenceSession(net(), providers=[standin.provider(device_id="first")])
    with pytest.raises(ValueError, match="has no option 'limit'"):
        caesura.TrainingSession(net(), providers=[standin.provider(limit=3)])
    with pytest.raises(NotImplementedError, match="no device 7: there is 1"):
        caesura.SplitModule(net(), providers=[standin.provider(device_id=7)])
    for make in (onnxruntime.InferenceSession, caesura.TrainingSession, caesura.SplitModule):
        with pytest.raises(ValueError, match="provider 'CudaProvider' is not known"):
            make(net(), providers=["CudaProvider"])


def test_a_limit_of_memory_ends_on_the_cpu(standin, capfd):  # noqa: F811
    session = onnxruntime.InferenceSession(net(), providers=[standin.provider(gpu_mem_limit=64)])
    wanted, = onnxruntime.InferenceSession(net()).run(None, {"x": X})
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], wanted)
    assert "the provider's limit is 64" in session.fallback_record()["cause"]


def test_bound_outputs_stay_there(standin):  # noqa: F811
    session = onnxruntime.InferenceSession(net(), providers=[standin.provider()])
    wanted, = session.run(None, {"x": X})
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(X, "cuda", 0))
    binding.bind_output("y", "cuda")
    session.run_with_iobinding(binding)
    copies, waits = standin.calls("cuMemcpyDtoHAsync") + standin.calls("cuMemcpyHtoDAsync"), standin.host_waits()
    value, = session.run_with_iobinding(binding)
    assert standin.calls("cuMemcpyDtoHAsync") + standin.calls("cuMemcpyHtoDAsync") == copies
    assert standin.host_waits() == waits
    assert (value.device_name(), value.__dlpack_device__(), value.shape()) == ("cuda", (CUDA, 0), [3, 3])
    np.testing.assert_array_equal(value.numpy(), wanted)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], wanted)


def test_another_librarys_tensors_come_in_and_go_out_in_order(standin):  # noqa: F811
    session = onnxruntime.InferenceSession(net(), providers=[standin.provider()])
    wanted, = session.run(None, {"x": X})
    waits, events = standin.host_waits(), standin.calls("cuStreamWaitEvent")
    lent = Lent(onnxruntime.OrtValue.ortvalue_from_numpy(X, "cuda", 0))
    uploaded = standin.host_waits()
    value = onnxruntime.OrtValue.from_dlpack(lent)
    assert lent.streams == [1]  # the legacy default stream
    assert standin.calls("cuStreamWaitEvent") == events + 2  # the lender's stream waits for ours, then ours for it
    assert uploaded > waits and standin.host_waits() == uploaded
    del lent
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_output("y", "cuda")
    got, = session.run_with_iobinding(binding)
    events = standin.calls("cuStreamWaitEvent")
    got.__dlpack__(stream=-1)
    assert standin.calls("cuStreamWaitEvent") == events
    out = got.__dlpack__(stream=2, max_version=(1, 0))
    assert standin.calls("cuStreamWaitEvent") == events + 1
    del out  # ours waits until the taker is done with it
    assert standin.calls("cuStreamWaitEvent") == events + 2
    with pytest.raises(BufferError, match="stream 0 is ambiguous"):
        got.__dlpack__(stream=0)
    with pytest.raises(BufferError, match="is shared, and not copied"):
        got.__dlpack__(copy=True)
    np.testing.assert_array_equal(got.numpy(), wanted)


def train(**options):
    session = caesura.TrainingSession(net(), loss="cross_entropy", target="labels", optimizer=caesura.optim.AdamW(lr=1e-2),
                                      keep_gradients=True, **options)
    losses = [session.step({"x": X, "labels": LABELS}) for _ in range(4)]
    return session, losses


def test_a_training_session_trains_there(standin, tmp_path):  # noqa: F811
    here, wanted = train()
    there, got = train(providers=[standin.provider()])
    assert there.get_providers() == ["CUDAExecutionProvider", "CPUExecutionProvider"]
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert got[-1] < got[0]
    for name, parameter in here.parameters().items():
        np.testing.assert_allclose(there.parameters()[name], parameter, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(there.gradients()[name], here.gradients()[name], rtol=1e-4, atol=1e-5)
    copies = standin.calls("cuMemcpyHtoDAsync")
    there.step({"x": X, "labels": LABELS})
    assert standin.calls("cuMemcpyHtoDAsync") - copies == 4  # x, labels, learning rate, step: no parameter
    there.save(tmp_path / "state")
    here.restore(tmp_path / "state")
    np.testing.assert_array_equal(here.parameters()["w"], there.parameters()["w"])


def test_options_may_stand_apart(standin):  # noqa: F811
    name, options = standin.provider()
    there, _ = train(providers=[name], provider_options=[options])
    assert there.get_providers()[0] == name
    with pytest.raises(ValueError, match="2 provider_options for 1 providers"):
        train(providers=[name], provider_options=[options, {}])


def test_a_split_module_hands_out_host_arrays(standin):  # noqa: F811
    here = caesura.SplitModule(net(), inputs=["x"])
    there = caesura.SplitModule(net(), inputs=["x"], providers=[standin.provider()])
    ours, theirs = here.forward({"x": X}), there.forward({"x": X})
    np.testing.assert_allclose(theirs.outputs["y"], ours.outputs["y"], rtol=1e-5, atol=1e-6)
    dy = np.ones((3, 3), np.float32)
    wanted = ours.backward({"y": dy})
    for name, gradient in theirs.backward({"y": dy}).items():
        np.testing.assert_allclose(gradient, wanted[name], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(there.predict({"x": X})["y"], ours.outputs["y"], rtol=1e-5, atol=1e-6)


def test_a_split_module_hands_out_device_tensors(standin, tmp_path):  # noqa: F811
    module = caesura.SplitModule(net(), inputs=["x"], providers=[standin.provider()], on_device=True)
    on_host = caesura.SplitModule(net(), inputs=["x"], providers=[standin.provider()])
    dy = np.ones((3, 3), np.float32)
    there = onnxruntime.OrtValue.ortvalue_from_numpy(dy, "cuda", 0)
    module.forward({"x": X})  # copies the parameters
    copies, waits = standin.calls("cuMemcpyDtoHAsync"), standin.host_waits()
    run = module.forward({"x": X})
    taken = onnxruntime.OrtValue.from_dlpack(Lent(run.outputs["y"]))  # as another library takes it
    gradients = run.backward({"y": Lent(there)}, retain_graph=True)
    again = run.backward([there])
    assert (standin.calls("cuMemcpyDtoHAsync"), standin.host_waits()) == (copies, waits)
    assert run.outputs["y"].__dlpack_device__() == gradients["w"].__dlpack_device__() == (CUDA, 0)
    reference = on_host.forward({"x": X})
    np.testing.assert_array_equal(taken.numpy(), reference.outputs["y"])
    for name, gradient in reference.backward({"y": dy}).items():
        np.testing.assert_array_equal(gradients[name].numpy(), gradient)
        np.testing.assert_array_equal(again[name].numpy(), gradient)
    waiting = module.forward({"x": X})
    waiting.save(tmp_path / "run")
    loaded = module.load_run(tmp_path / "run").backward({"y": dy})
    np.testing.assert_array_equal(loaded["w"].numpy(), gradients["w"].numpy())


def test_tensors_outlive_their_session(standin):  # noqa: F811
    module = caesura.SplitModule(net(), inputs=["x"], providers=[standin.provider()], on_device=True)
    value = module.forward({"x": X}).outputs["y"]
    capsule = value.__dlpack__(stream=1)
    del module, value, capsule
    other = onnxruntime.InferenceSession(net(), providers=[standin.provider()])
    kept = onnxruntime.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    del other
    with pytest.raises(ValueError, match="cuda:0"):
        kept.numpy()  # nobody serves the device any more


def test_without_a_session_there_no_array_goes_there(standin):  # noqa: F811
    with pytest.raises(NotImplementedError, match="no session has a provider on cuda:5"):
        onnxruntime.OrtValue.ortvalue_from_numpy(X, "cuda", 5)
