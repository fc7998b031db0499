# SPDX-License-Identifier: Apache-2.0
"""ORTModule's name for caesura.wrap, so that moving is an import line."""

import warnings

from caesura.module import wrap


def ORTModule(module, debug_options=None):
    """caesura.wrap(module). `debug_options` have no counterpart, and a warning says so."""
    if debug_options is not None:
        warnings.warn("debug_options are not taken: caesura.report() tells what runs where", stacklevel=2)
    return wrap(module)
