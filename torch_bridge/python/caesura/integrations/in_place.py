# SPDX-License-Identifier: Apache-2.0
"""Wraps a module that others already hold."""

import torch

from caesura.frontends.wrap import original_of, wrap


def wrap_in_place(module: torch.nn.Module) -> None:
    """Makes `module` itself what caesura.wrap(module) returns; its state_dict and class name stay. A second call changes nothing."""
    plain = object.__new__(type(module))
    plain.__dict__ = module.__dict__
    module.__class__ = type(wrap(plain))


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The module that PyTorch runs, of one that is wrapped, in DistributedDataParallel, or both."""
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        module = module.module
    original: torch.nn.Module = original_of(module)
    return original
