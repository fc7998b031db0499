# SPDX-License-Identifier: Apache-2.0
"""The torch provider runs models on a device other than the CPU; ops without an equivalent run on the host."""

import pytest
from conformance_test import REASONS

from caesura import conformance, onnxruntime, torch_kernels

pytest.importorskip("torch")
if not torch_kernels.load():
    pytest.skip("built without LibTorch (CAESURA_TORCH=OFF)", allow_module_level=True)

import standin_device  # noqa: E402

DEVICE = standin_device.load()
PROVIDERS = [("TorchExecutionProvider", {"device": str(DEVICE)}), "CPUExecutionProvider"]


def make_session(model):
    return onnxruntime.InferenceSession(model, providers=PROVIDERS)


# Cases that may fail: axes, pads and ends are inputs, so the kernel is created at run time on the device of the node,
# and PyTorch has no equivalent.
LATE = {"test_cumsum_1d_exclusive", "test_cumsum_1d_int32_exclusive", "test_cumsum_1d_reverse",
        "test_cumsum_1d_reverse_exclusive", "test_edge_pad", "test_reflect_pad", "test_wrap_pad", "test_reduce_max_empty_set",
        "test_reduce_min_empty_set", "test_reduce_sum_empty_axes_input_noop", "test_reduce_sum_empty_axes_input_noop_example",
        "test_slice_neg_steps"}


def test_the_node_tests_pass():
    results = conformance.run_all(conformance.collect(), "", make_session=make_session)
    assert len(results) >= 1884
    failures = {name: reason for name, reason in results.items()
                if reason and not any(known in name for known in REASONS)}
    assert {name: reason for name, reason in failures.items() if name not in LATE} == {}
    assert all("PyTorch has no equivalent" in reason or "non-zero size" in reason for reason in failures.values())


def test_unknown_devices_and_options_are_refused():
    model = conformance.collect("test_abs")[0].model.SerializeToString()
    for device in (f"{DEVICE.type}:7", "xpu", "nowhere"):
        with pytest.raises(Exception, match=device):
            onnxruntime.InferenceSession(model, providers=[("TorchExecutionProvider", {"device": device})])
    with pytest.raises(ValueError, match="no option 'stream'"):
        onnxruntime.InferenceSession(model, providers=[("TorchExecutionProvider", {"stream": "0"})])
