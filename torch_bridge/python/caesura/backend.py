# SPDX-License-Identifier: Apache-2.0
"""The backend of torch.compile, as `torch.compile(model, backend="caesura")` finds it.

Importing the backend from here registers it with Dynamo for the rest of the process. Otherwise only caesura's own
frames are captured. Importing this module changes nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caesura.frontends.dynamo_backend import backend

__all__ = ["backend"]


def __getattr__(name: str) -> object:
    if name != "backend":
        raise AttributeError(f"module 'caesura.backend' has no attribute '{name}'")
    from caesura.capture import frames, polyfills
    from caesura.frontends import dynamo_backend

    frames.trace_from_now_on(polyfills.in_place)
    return dynamo_backend.backend
