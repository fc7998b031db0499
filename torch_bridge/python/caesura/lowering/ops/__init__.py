# SPDX-License-Identifier: Apache-2.0
"""A file an op family: each call of ATen's in ONNX ops."""
