# SPDX-License-Identifier: Apache-2.0
"""Places of the tensors that a captured graph reads: a path into a call's arguments, or a name in its module."""

import inspect

import torch

from caesura.capture.compat import maybe_mark_dynamic, tree_leaves_with_path


def leaves(args, kwargs) -> dict:
    """The tensors among a call's arguments, by their paths: ("args", 0), ("kwargs", "x", ...)."""
    found = {}
    for path, leaf in tree_leaves_with_path({"args": args, "kwargs": kwargs}):
        if isinstance(leaf, torch.Tensor):
            found[tuple(getattr(key, "key", getattr(key, "idx", None)) for key in path)] = leaf
    return found


def forward_has_target(module) -> bool:
    """True if `target` among a step's keywords is the forward's, not the loss's."""
    return "target" in inspect.signature(module.forward).parameters


def take_target(is_forwards: bool, args, kwargs) -> tuple:
    """A step's arguments apart: (the forward's, the forward's keywords, the loss's target). is_forwards: forward_has_target(). Raises
    TypeError if there is no target."""
    if "target" in kwargs and not is_forwards:
        kwargs = dict(kwargs)
        target = kwargs.pop("target")
        return args, kwargs, target
    if not args:
        raise TypeError("the step's loss function compares with a target, and the call has none: hand it over as the last argument, "
                        f"step(inputs, target){'' if is_forwards else ', or by keyword, step(..., target=...)'}; got "
                        f"{'the keywords ' + ', '.join(kwargs) if kwargs else 'no arguments'}. If the module returns its loss itself: "
                        "compile_step(module, None, optimizer)")
    return args[:-1], kwargs, args[-1]


def input_names(step, args, kwargs) -> dict:
    """id of each tensor among a step's inputs, or in attributes of objects among them, to a name: the forward's own parameter names,
    "target" for the loss's, and where the tensor is in that."""
    target = None
    if step.loss_fn is not None:
        args, kwargs, target = take_target(step._forward_has_target, args, kwargs)
    named = kwargs | ({} if target is None else {"target": target})
    named.update(zip(inspect.signature(step.module.forward).parameters, args))
    found = {}
    for path, leaf in tree_leaves_with_path(named):
        name = "_".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path)
        if isinstance(leaf, torch.Tensor):
            found[id(leaf)] = name
        elif not isinstance(leaf, torch.nn.Module):
            held = getattr(leaf, "__dict__", {}).items()
            found |= {id(value): f"{name}_{attribute}" for attribute, value in held if isinstance(value, torch.Tensor)}
    return found


def tensors_of(module) -> dict:
    """The module's parameters and buffers by name, those that are shared once."""
    return dict(module.named_buffers()) | dict(module.named_parameters())


def tensors_of_step(module, loss_fn, optimizer) -> dict:
    """The tensors of a step: the module's, then those that only the loss or the optimizer has."""
    found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    ids = set(map(id, found.values()))
    if isinstance(loss_fn, torch.nn.Module):
        of_loss = {**dict(loss_fn.named_parameters()), **dict(loss_fn.named_buffers())}
        found |= {f"loss_fn.{name}": tensor for name, tensor in of_loss.items() if id(tensor) not in ids}
        ids.update(map(id, of_loss.values()))
    others = (p for group in optimizer.param_groups for p in group["params"] if id(p) not in ids) if optimizer is not None else ()
    return found | {f"parameter_{i}": p for i, p in enumerate(others)}


def named(module) -> dict:
    """The names of the module's parameters and buffers, by id."""
    return {id(tensor): name for name, tensor in tensors_of(module).items()}


def placed(sources, module):
    """`sources` with the names of tensors of the module in place of the tensors; None where one is not the module's."""
    names = named(module)
    if any(not isinstance(source, tuple) and id(source) not in names for _, source in sources):
        return None
    return [(name, source if isinstance(source, tuple) else names[id(source)]) for name, source in sources]


def unplaced(places, module) -> list:
    """The inverse of placed(), with the tensors that the module has now."""
    own = tensors_of(module)
    return [(name, place if isinstance(place, tuple) else own[place]) for name, place in places]


def mark_changing(args, kwargs, before) -> None:
    """Tells dynamo that a size changes, which is another one than in a call that it has not seen: its tensors' shapes by path."""
    for path, leaf in leaves(args, kwargs).items():
        shape = before.get(path, ())
        for axis in range(leaf.dim() if leaf.dim() == len(shape) else 0):
            if leaf.shape[axis] != shape[axis]:
                maybe_mark_dynamic(leaf, axis)
