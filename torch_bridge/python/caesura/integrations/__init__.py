# SPDX-License-Identifier: Apache-2.0
"""Integrations: caesura within other libraries' loops, and under their names.

`caesura.integrations.lightning` and the like are imported, with the library, at their first use.
"""

import importlib
from types import ModuleType

_ON_DEMAND = ("accelerate", "lightning", "ortmodule", "transformers")


def __getattr__(name: str) -> ModuleType:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module 'caesura.integrations' has no attribute '{name}'")
    return importlib.import_module(f"caesura.integrations.{name}")


def __dir__() -> list[str]:
    return sorted(globals().keys() | set(_ON_DEMAND))
