# SPDX-License-Identifier: Apache-2.0
"""What FX says about the results of a call."""

from caesura.lowering.importer import plain


def result(node, index=None):
    """(dtype, shape) of a call's result, or of one of its results."""
    meta = node.meta["val"] if index is None else node.meta["val"][index]
    return meta.dtype, tuple(plain(d) for d in meta.shape)


def is_read(node, index: int) -> bool:
    """Whether anybody takes result `index` out of the call's tuple."""
    return any(user.args[1] == index and user.users for user in node.users)
