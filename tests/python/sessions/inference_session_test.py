# SPDX-License-Identifier: Apache-2.0
"""InferenceSession and its options follow onnxruntime, except for the places that are safer here."""

import json
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import caesura
from caesura import onnxruntime
from caesura.sessions import providers
from caesura.sessions import options as session_options


def info(name, dtype=TensorProto.FLOAT, shape=("n",)):
    return helper.make_tensor_value_info(name, dtype, shape)


def bytes_of(nodes, inputs, outputs, initializers=()):
    graph = helper.make_graph(nodes, "net", inputs, outputs, list(initializers), doc_string="one sum")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10, producer_name="tests",
                              producer_version="2", domain="org.tests", model_version=7, doc_string="adds")
    helper.set_model_props(model, {"task": "adding"})
    return model.SerializeToString()


@pytest.fixture(name="model")
def fixture_model():
    """s = x + w, where w has a default; n = -s."""
    nodes = [helper.make_node("Add", ["x", "w"], ["s"]), helper.make_node("Neg", ["s"], ["n"])]
    w = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    return bytes_of(nodes, [info("x", shape=("batch", 2)), info("w", shape=(2,))],
                    [info("s", shape=("batch", 2)), info("n", shape=("batch", 2))], [w])


X = np.array([[10, 20]], np.float32)


def test_what_a_model_says_of_itself(model):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert [(i.name, i.type, i.shape) for i in session.get_inputs()] == [("x", "tensor(float)", ["batch", 2])]
    assert [i.name for i in session.get_overridable_initializers()] == ["w"]
    assert [o.name for o in session.get_outputs()] == ["s", "n"]
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.graph_name, meta.custom_metadata_map) == ("tests", "net", {"task": "adding"})
    assert (meta.domain, meta.version, meta.description, meta.graph_description) == ("org.tests", 7, "adds", "one sum")


def test_types_are_spelt_as_onnxruntime_does():
    texts = helper.make_tensor_sequence_value_info("t", TensorProto.STRING, None)
    optional = helper.make_value_info("o", helper.make_optional_type_proto(
        helper.make_tensor_type_proto(TensorProto.DOUBLE, [2])))
    nodes = [helper.make_node("Identity", ["t"], ["u"]), helper.make_node("Identity", ["o"], ["p"]),
             helper.make_node("Identity", ["b"], ["c"])]
    session = onnxruntime.InferenceSession(bytes_of(
        nodes, [texts, optional, info("b", TensorProto.BFLOAT16)],
        [helper.make_tensor_sequence_value_info("u", TensorProto.STRING, None),
         helper.make_value_info("p", helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.DOUBLE, [2]))),
         info("c", TensorProto.BFLOAT16)]))
    assert [i.type for i in session.get_inputs()] == ["seq(tensor(string))", "optional(tensor(double))", "tensor(bfloat16)"]


def test_runs_by_name_from_bytes_and_paths(model, tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(model)
    for source in (model, bytearray(model), str(path), path):
        session = onnxruntime.InferenceSession(source)
        s, n = session.run(None, {"x": X})
        assert s.tolist() == [[11, 22]] and n.tolist() == [[-11, -22]]
        (n,) = session.run(["n"], {"x": X, "w": np.zeros(2, np.float32)})
        assert n.tolist() == [[-10, -20]]
        assert [v.numpy().tolist() for v in session.run_with_ort_values(
            ["s"], {"x": onnxruntime.OrtValue.ortvalue_from_numpy(X)})] == [[[11, 22]]]


def test_outputs_are_writable_and_the_callers_alone(model):
    session = onnxruntime.InferenceSession(model)
    (first,) = session.run(["s"], {"x": X})
    (second,) = session.run(["s"], {"x": X})
    second[:] = 0
    assert first.tolist() == [[11, 22]] and session.run(["s"], {"x": X})[0].tolist() == [[11, 22]]


@pytest.mark.parametrize(("devices", "opens", "available"), [(["nvidia0"], True, True), (["nvidia0"], False, False),
                                                             (["nvidiactl"], True, False), (["dxg"], True, True)])
def test_the_gpus_provider_is_listed_where_there_is_one(monkeypatch, tmp_path, devices, opens, available):
    def open_library(name):
        assert name == "libcuda.so.1"
        if not opens:
            raise OSError
        return object()

    for device in devices:
        (tmp_path / device).touch()
    monkeypatch.setattr(providers, "_DEVICES", tmp_path)
    monkeypatch.setattr(providers.ctypes, "CDLL", open_library)
    providers._has_gpu.cache_clear()
    try:
        assert ("CUDAExecutionProvider" == onnxruntime.get_available_providers()[0]) == available
        assert onnxruntime.get_device() == ("GPU" if available else "CPU")
    finally:
        providers._has_gpu.cache_clear()


def test_provider_names(model):
    assert "CPUExecutionProvider" in onnxruntime.get_available_providers()
    assert onnxruntime.InferenceSession(model, providers=onnxruntime.get_available_providers()).run(["s"], {"x": X})
    session = onnxruntime.InferenceSession(model, providers=[("CPUExecutionProvider", {})])
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.get_provider_options() == {"CPUExecutionProvider": {}}
    with pytest.raises(ValueError, match="'ROCMExecutionProvider' is not known; there are .*CPUExecutionProvider"):
        onnxruntime.InferenceSession(model, providers=["ROCMExecutionProvider", "CPUExecutionProvider"])
    with pytest.raises(TypeError, match="unexpected keyword argument 'provider'"):
        onnxruntime.InferenceSession(model, provider="cpu")
    with pytest.raises(NotImplementedError, match="the CUDA provider cannot open '/nowhere'"):
        onnxruntime.InferenceSession(model, providers=[("CUDAExecutionProvider", {"driver_library": "/nowhere"})])
    with pytest.raises(ValueError, match="CPUExecutionProvider has no option 'arena'"):
        onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"], provider_options=[{"arena": "1"}])
    with pytest.raises(ValueError, match="a list of names"):
        onnxruntime.InferenceSession(model, providers="CPUExecutionProvider")
    with pytest.raises(ValueError, match="2 provider_options for 1 providers"):
        onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"], provider_options=[{}, {}])


def test_providers_can_be_set_again(model):
    session = onnxruntime.InferenceSession(model)
    session.set_providers(["CountingExecutionProvider"])
    assert session.get_providers() == ["CountingExecutionProvider", "CPUExecutionProvider"]
    assert session.run(["s"], {"x": X})[0].tolist() == [[11, 22]]
    assert session._session.device_counts()["kernels"] > 0


def test_a_device_that_fails_is_left_for_the_cpu(model):
    small = [("CountingExecutionProvider", {"memory_bytes": 4096})]
    session = onnxruntime.InferenceSession(model, providers=small)
    assert session.get_provider_options()["CountingExecutionProvider"] == {"memory_bytes": "4096"}
    assert session.run(["s"], {"x": X})[0].tolist() == [[11, 22]] and session.fallback_record() is None
    large = np.ones((1000, 2), np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", large)
    binding.bind_output("n")
    session.disable_fallback()
    with pytest.raises(RuntimeError, match="bytes left"):
        session.run_with_iobinding(binding)
    session.enable_fallback()
    for _ in range(2):
        (n,) = session.run_with_iobinding(binding)
        assert n.numpy().tolist() == [[-2, -3]] * 1000
    record = session.fallback_record()
    assert (record["provider"], record["phase"]) == ("counting:0", "run") and "bytes left" in record["cause"]
    assert session.get_providers() == record["providers"] == ["CPUExecutionProvider"]
    assert session.run(["s"], {"x": large})[0].shape == (1000, 2)


def test_session_options(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_mem_reuse = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = onnxruntime.InferenceSession(model, options)
    assert session.get_session_options() is options
    assert session.plan({"x": X}).text.startswith("2 steps of 2 nodes")
    onnxruntime.SessionOptions().graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with pytest.raises(AttributeError, match="no option 'intra_op_threads'; there are intra_op_num_threads"):
        options.intra_op_threads = 2
    options.optimized_model_filepath = "there.onnx"
    with pytest.raises(NotImplementedError, match="SessionOptions.optimized_model_filepath"):
        onnxruntime.InferenceSession(model, options)


def test_a_file_that_is_not_there(tmp_path):
    for make in (onnxruntime.InferenceSession, caesura.TrainingSession, caesura.SplitModule, caesura.TrainingSession.open):
        with pytest.raises(FileNotFoundError, match="none.onnx"):
            make(tmp_path / "none.onnx")


def test_profile(model, tmp_path):
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "here")
    session = onnxruntime.InferenceSession(model, options)
    plain = onnxruntime.InferenceSession(model)
    for _ in range(3):
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], plain.run(None, {"x": X})[0])
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output(session.get_outputs()[0].name)
    session.run_with_iobinding(binding)
    options.profile_file_prefix = str(tmp_path / "nowhere" / "here")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        session.end_profiling()
    options.profile_file_prefix = str(tmp_path / "here")
    path = session.end_profiling()
    assert path.startswith(str(tmp_path / "here_")) and path.endswith(".json")
    with open(path) as file:
        trace = json.load(file)
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    assert sum(e.get("cat") == "run" for e in events) == 4
    assert sum(e["name"] == "FusedRows Neg.rows" for e in events) == 4
    session.run(None, {"x": X})
    assert session.end_profiling() == "" and plain.end_profiling() == ""
    assert [p.name for p in tmp_path.iterdir()] == [path.rsplit("/", 1)[1]]


def test_levels_of_optimisation(model):
    plans = []
    for level in onnxruntime.GraphOptimizationLevel:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        session = onnxruntime.InferenceSession(model, options)
        assert session.run(["n"], {"x": X})[0].tolist() == [[-11, -22]]
        plans.append(len(session.plan({"x": X}).text.splitlines()))
    assert plans[0] == plans[1] > plans[2] == plans[4]  # fused from ORT_ENABLE_EXTENDED on


def test_what_has_no_effect_says_so_once(model):
    session_options.warn_once.cache_clear()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            onnxruntime.InferenceSession(model, options)
    assert [str(w.message).split(" has")[0] for w in seen] == [
        "caesura: SessionOptions.log_severity_level", "caesura: session config entry 'session.intra_op.allow_spinning'"]


def test_run_options(model):
    session = onnxruntime.InferenceSession(model)
    options = onnxruntime.RunOptions()
    options.logid = "run 1"
    assert session.run(["s"], {"x": X}, options)
    options.terminate = True
    with pytest.raises(RuntimeError, match="ended by its caller"):
        session.run(["s"], {"x": X}, options)
    options.terminate = False
    assert session.run(["s"], {"x": X}, run_options=options)
    with pytest.raises(AttributeError, match="no option 'terminated'"):
        options.terminated = True


def test_a_run_ends_when_another_thread_says_so():
    count = 2000
    nodes = [helper.make_node("Softmax", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    session = onnxruntime.InferenceSession(bytes_of(nodes, [info("v0")], [info(f"v{count}")]))
    options, feed = onnxruntime.RunOptions(), {"v0": np.ones(200_000, np.float32)}
    timer = threading.Timer(0.1, lambda: setattr(options, "terminate", True))
    timer.start()
    with pytest.raises(RuntimeError, match="ended by its caller"):
        session.run(None, feed, options)
    timer.join()


def test_asynchronous_runs(model):
    session = onnxruntime.InferenceSession(model)
    done, seen = threading.Semaphore(0), []

    def callback(results, user_data, error):
        seen.append((user_data, results and results[0].tolist(), error, threading.current_thread() is threading.main_thread()))
        done.release()

    feed = {"x": X}
    session.run_async(["s"], feed, callback, "a")
    feed["x"] = X * 2  # the caller may change the feed again
    session.run_async(["s"], feed, callback, "b")
    session.run_async(["missing"], feed, callback, "c")
    for _ in range(3):
        assert done.acquire(timeout=60)
    assert sorted(row[:2] + row[3:] for row in seen) == [
        ("a", [[11, 22]], False), ("b", [[21, 42]], False), ("c", [], False)]
    assert [bool(row[2]) for row in sorted(seen, key=lambda row: row[0])] == [False, False, True]


def test_what_a_callback_raises_is_said(model, monkeypatch):
    raised = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: raised.append((kind, str(error))))
    session = onnxruntime.InferenceSession(model)
    session.run_async(None, {"x": X}, lambda *_: 1 / 0)
    del session  # waits
    assert raised == [(ZeroDivisionError, "division by zero")]


def test_a_callback_may_hold_the_last_reference_to_its_session(model):
    done = threading.Event()

    class Last:
        def __init__(self):
            self.session = onnxruntime.InferenceSession(model)

        def __call__(self, results, user_data, error):
            del self.session  # on the session's thread, within the run
            done.set()

    for _ in range(20):
        last = Last()
        session = last.session
        done.clear()
        session.run_async(None, {"x": X}, last)
        del session, last
        assert done.wait(60)


def test_the_interpreter_waits_for_asynchronous_runs(tmp_path, model):
    (tmp_path / "model.onnx").write_bytes(model)
    script = ("import caesura, sys, numpy as np\n"
              f"session = caesura.onnxruntime.InferenceSession({str(tmp_path / 'model.onnx')!r})\n"
              "def done(r, u, e):\n"
              "    sys.stdout.write(f'ended {u} {e}\\n')\n"  # in one write: print() writes its parts one by one
              "for i in range(50):\n"
              "    session.run_async(None, {'x': np.ones((1, 2), np.float32)}, done, i)\n")
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(result.stdout.split("\n")) == sorted([""] + [f"ended {i} " for i in range(50)])


def test_only_what_is_asked_for_is_computed():
    """An index out of range fails only the run that needs it."""
    nodes = [helper.make_node("Gather", ["x", "i"], ["g"]), helper.make_node("Neg", ["x"], ["n"])]
    session = onnxruntime.InferenceSession(bytes_of(nodes, [info("x"), info("i", TensorProto.INT64, (1,))], [info("g"), info("n")]))
    feed = {"x": np.ones(3, np.float32), "i": np.array([5])}
    options = onnxruntime.RunOptions()
    assert options.only_execute_path_to_fetches
    options.only_execute_path_to_fetches = True
    np.testing.assert_equal(session.run(["n"], feed, options)[0], -feed["x"])
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("n")
    np.testing.assert_equal(session.run_with_iobinding(binding)[0].numpy(), -feed["x"])
    with pytest.raises(ValueError, match="Gather"):
        session.run(None, feed)


def test_what_is_wrong_with_a_feed_is_named(model):
    session = onnxruntime.InferenceSession(model)
    for feed, text in (({}, "no value given for input.s. 'x'"), ({"x": X, "y": X}, "no input.s. 'y'"),
                       ({"x": X.astype(np.float64)}, "'x' is float32.batch, 2., got float64.1, 2."),
                       ({"x": X[0]}, "got float32.2.")):
        with pytest.raises(ValueError, match=text):
            session.run(None, feed)
    with pytest.raises(ValueError, match="no output 'z'"):
        session.run(["z"], {"x": X})


def test_sizes_before_the_run():
    nodes = [helper.make_node("NonZero", ["x"], ["at"]), helper.make_node("Concat", ["x", "x"], ["y"], axis=0)]
    outputs = [info("at", TensorProto.INT64, (1, "k")), info("y", shape=("m",))]
    session = onnxruntime.InferenceSession(bytes_of(nodes, [info("x")], outputs))
    assert session.output_shapes({"x": np.ones(5, np.float32)}) == {"at": None, "y": [10]}
