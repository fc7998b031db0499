# SPDX-License-Identifier: Apache-2.0
"""Facts of a compiled step that all ranks must have in common, as (name, value) texts."""

import functools
import hashlib
import re
import types

import torch

from caesura.rewrites.dtensors import is_dtensor

_ADDRESS = re.compile(r"0x[0-9a-f]+")  # of an object, in a text that should be the same on all ranks


def facts_of(step, tensors: dict, options: dict) -> list:
    """The facts that stay the same until the step or its options are changed. tensors: those that ranks share, by name."""
    facts = []
    roots = [("", step.module)] + ([("loss_fn.", step.loss_fn)] if isinstance(step.loss_fn, torch.nn.Module) else [])
    parts = [(prefix + name, part) for prefix, root in roots for name, part in root.named_modules()]
    for name, part in parts:
        mode = "" if part.training else ", in evaluation"
        facts.append((f"module '{name}'", f"{type(part).__qualname__}({_ADDRESS.sub('', part.extra_repr())}){mode}"))
    forwards = {type(part).forward for _, part in parts} | {vars(part)["forward"] for _, part in parts if "forward" in vars(part)}
    facts += sorted((f"the code of {name_of(forward)}", code_of(forward)) for forward in forwards)
    if not isinstance(step.loss_fn, torch.nn.Module):
        facts += [("the loss", name_of(step.loss_fn)), ("the code of the loss", code_of(step.loss_fn))]
    for name, tensor in tensors.items():
        placed = f", {tensor.placements}" if is_dtensor(tensor) else ""
        facts.append((f"'{name}'", f"{tensor.dtype} {list(tensor.shape)}{placed}, requires_grad={tensor.requires_grad}"))
    facts += [(name, str(value)) for name, value in options.items()]
    facts.append(("the optimizer", type(step.optimizer).__qualname__))
    facts += _options_of(step, fed=False)
    for number, group in enumerate(step.optimizer.param_groups):
        members = [step._names.get(id(parameter), "?") for parameter in group["params"]]
        facts.append((f"group {number} of the optimizer", ", ".join(members)))
    return facts


def values_of(tensors: dict, names) -> list:
    """Hashes of these tensors' elements."""
    bytes_of = {name: tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() for name in names}
    return [(f"the hash of the values of '{name}'", hashlib.blake2b(values, digest_size=8).hexdigest())
            for name, values in bytes_of.items()]


def rates_of(step) -> list:
    """The options of the optimizer that may change in each update."""
    return _options_of(step, fed=True)


def _options_of(step, fed: bool) -> list:
    groups, facts = step.optimizer.param_groups, []
    places = {place if isinstance(place, str) else place[0] for place in step._recipe.fed.values()}
    for number, group in enumerate(groups):
        of = f" of group {number}" if len(groups) > 1 else ""
        for key in sorted(group.keys() & step.optimizer.defaults.keys() - {"params"}):
            value = group[key]
            if (key in places) == fed:
                facts.append((key + of, str(value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value)))
    return facts


def name_of(function) -> str:
    function = function.func if isinstance(function, functools.partial) else function
    return getattr(function, "__qualname__", type(function).__qualname__)


def code_of(function) -> str:
    """A hash of a Python function's code, with that of the functions within it; of others their name."""
    function = function.func if isinstance(function, functools.partial) else function
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return name_of(function) if code is None else f"{hash_of(_parts_of(code)):016x}"


def _parts_of(code) -> tuple:
    constants = tuple(_parts_of(c) if isinstance(c, types.CodeType) else repr(sorted(map(repr, c))) if isinstance(c, frozenset)
                      else repr(c) for c in code.co_consts)
    return code.co_code.hex(), code.co_names, code.co_varnames, constants


def hash_of(facts) -> int:
    """63 bits, the same in all processes."""
    return int.from_bytes(hashlib.blake2b(repr(facts).encode(), digest_size=8).digest(), "little") >> 1
