# SPDX-License-Identifier: Apache-2.0
"""ONNX models: trained, split, run. Nothing here needs PyTorch but `onnx_module`."""
