# SPDX-License-Identifier: Apache-2.0
"""Where torch.compile(backend="caesura") finds the backend."""

from caesura.frontends.dynamo_backend import backend

__all__ = ["backend"]
