# SPDX-License-Identifier: Apache-2.0
"""The ONNX node tests pass on the torch provider: PyTorch's operators if they exist, else our kernels."""

import os

import pytest
from conformance_test import REASONS

from caesura import conformance, torch_kernels

pytest.importorskip("torch")
if not torch_kernels.load():
    pytest.skip("built without LibTorch (CAESURA_TORCH=OFF)", allow_module_level=True)


@pytest.mark.parametrize("part", [""] if os.environ.get("CAESURA_LONG") else ["reduce_l", "conv", "gather", "norm"])
def test_the_node_tests_pass(part):
    results = conformance.run_all(conformance.collect(part), part, provider="torch")
    assert len(results) >= 10
    assert {name: reason for name, reason in results.items()
            if reason and not any(known in name for known in REASONS)} == {}
