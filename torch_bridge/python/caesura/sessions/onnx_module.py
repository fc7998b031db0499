# SPDX-License-Identifier: Apache-2.0
"""OnnxModule: any ONNX file as a torch.nn.Module for inference, by the names of its inputs and outputs."""

import re
import warnings
from collections.abc import Sequence
from typing import Any, Optional

import torch

from caesura.capture.compat import tree_leaves, tree_map
from caesura.sessions.inference import InferenceSession
from caesura.sessions.options import SessionOptions
from caesura.sessions.providers import CUDA
from caesura.typing import Feeds, Model, Providers
from caesura.user_code import calling_line


class OnnxOutputs(dict[str, Any]):
    """The outputs of an OnnxModule: a dict by name, with attributes and positions as in transformers' ModelOutput.

    Example::

        outputs = module(input_ids=ids)
        outputs["logits"], outputs.logits, outputs[0]
    """

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, (int, slice)) else super().__getitem__(key)

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"the model has no output '{name}'; it has {', '.join(self)}")

    def to_tuple(self) -> tuple[Any, ...]:
        """Returns the values in order."""
        return tuple(self.values())


class OnnxModule(torch.nn.Module):
    """Runs an ONNX model on PyTorch tensors, which are read where they are; outputs are the caller's only. With inputs on
    a GPU, and CUDAExecutionProvider, outputs are there too; otherwise they are on the CPU.

    There is no gradient: inputs that require one are refused while gradients are recorded (use torch.no_grad(), or
    caesura.wrap and caesura.SplitModule to train). The weights are the model's, and not among parameters(): to(), cuda()
    and half() cannot move or convert them, and warn.

    Args:
        path_or_bytes: as for InferenceSession.
        sess_options: SessionOptions.
        providers: as for InferenceSession.
        provider_options: one dict for each provider.
        output_structure: a nested structure of output names; a call returns it with tensors in their place, and
            computes only these outputs. By default one tensor if the model has one output, otherwise OnnxOutputs.

    Raises:
        ValueError: the model is not valid, or output_structure names outputs that it does not have.
        NotImplementedError: nodes have no kernel; all of them are listed.

    Example::

        module = onnxruntime.OnnxModule("longformer.onnx")
        with torch.no_grad():
            outputs = module(input_ids=ids, attention_mask=mask)
        outputs.logits
    """

    def __init__(self, path_or_bytes: Model, sess_options: Optional[SessionOptions] = None, providers: Optional[Providers] = None,
                 provider_options: Optional[Sequence[dict[str, Any]]] = None, *, output_structure: Any = None) -> None:
        super().__init__()
        self.session = InferenceSession(path_or_bytes, sess_options, providers, provider_options)
        required, defaults = self.session.get_inputs(), self.session.get_overridable_initializers()
        self.input_names = [value.name for value in required + defaults]
        self.output_names = [value.name for value in self.session.get_outputs()]
        self._sequences = [value.type.startswith(("seq(", "optional(seq(")) for value in required + defaults]
        self._structure = output_structure
        self._wanted = self.output_names
        if output_structure is not None:
            self._wanted = list(dict.fromkeys(tree_leaves(output_structure)))
            unknown = [name for name in self._wanted if name not in self.output_names]
            if unknown:
                raise ValueError(f"the model has no output(s) {unknown}; it has {self.output_names}")

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        made = fn(torch.zeros(1))  # as a parameter of ours would become
        if made.dtype != torch.float32:
            self._warn_of(f"{made.dtype}: tensors have the types that the model gives them")
        elif made.device.type != "cpu" and (made.device.type != "cuda" or CUDA not in self.session.get_providers()):
            self._warn_of(f"{made.device}: the model runs on {', '.join(self.session.get_providers())}; providers=[...] of "
                          "OnnxModule says where it runs")
        return super()._apply(fn, recurse)

    @staticmethod
    def _warn_of(what: str) -> None:
        file, line, _ = calling_line()
        warnings.warn_explicit(f"an OnnxModule does not go to {what}", UserWarning, file, line)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Runs the model.

        Inputs come by keyword under the model's own names, by position, or both. An argument may be a nested structure
        (tuples, lists, dicts): its tensors are the inputs whose names begin with the argument's name (past_key_values:
        past_key_values.0.key, past_key_values.0.value, ...), in the model's order. A positional structure fills as
        many of the next inputs as it has leaves. None leaves out an input that is optional or has a default. Numbers
        and NumPy arrays are taken where tensors are.

        Returns:
            One tensor, OnnxOutputs, or `output_structure` with tensors.

        Raises:
            TypeError: an argument is none of the inputs, or there are too many, or one is given twice.
            ValueError: inputs are missing, or do not fit.
            RuntimeError: an input requires a gradient while gradients are recorded.
        """
        feeds = self._feeds(inputs, named)
        if torch.is_grad_enabled():
            for name, item in feeds.items():
                if isinstance(item, torch.Tensor) and item.requires_grad:
                    raise RuntimeError(f"input '{name}' requires a gradient, and OnnxModule gives none: detach it, use "
                                       "torch.no_grad(), or train through caesura.wrap")
        device = self._device_of(feeds)
        if device is not None:
            results = self._run_on(device, feeds)
        else:
            results = self.session._session.run(self._wanted, feeds, None, torch=True)
        outputs = OnnxOutputs(zip(self._wanted, results))
        if self._structure is not None:
            return tree_map(lambda name: outputs[name], self._structure)
        return results[0] if len(results) == 1 else outputs

    def _device_of(self, feeds: Feeds) -> Optional[torch.device]:
        """The GPU that a run's outputs stay on: that of its inputs, where the session's kernels are there. Else None."""
        devices = [item.device for item in feeds.values() if isinstance(item, torch.Tensor) and item.device.type == "cuda"]
        if not devices or CUDA not in self.session.get_providers() or any(isinstance(item, list) for item in feeds.values()):
            return None
        return devices[0]

    def _run_on(self, device: torch.device, feeds: Feeds) -> list[Any]:
        binding = self.session.io_binding()
        for name, item in feeds.items():
            binding.bind_cpu_input(name, item if hasattr(item, "__dlpack__") else torch.as_tensor(item))
        for name in self._wanted:
            binding.bind_output(name, "cuda", device.index or 0)
        return [value.to_torch() for value in self.session.run_with_iobinding(binding)]

    def _feeds(self, inputs: tuple[Any, ...], named: Feeds) -> dict[str, Any]:
        """The value of each input that is given; inputs that are left out are not in it."""
        feeds: dict[str, Any] = {}
        for item in inputs:
            at = len(feeds)
            leaves = [item] if at < len(self.input_names) and self._sequences[at] else _leaves(item)
            if at + len(leaves) > len(self.input_names):
                raise TypeError(f"more tensors by position than the inputs {self.input_names}")
            feeds.update(zip(self.input_names[at:], leaves))
        for argument, item in named.items():
            given = {argument: item} if argument in self.input_names else self._parts(argument, item)
            for name in given:
                if name in feeds:
                    raise TypeError(f"input '{name}' is given twice")
            feeds.update(given)
        return {name: leaf for name, leaf in feeds.items() if leaf is not None}

    def _parts(self, argument: str, item: Any) -> dict[str, Any]:
        """A structure's tensors by the inputs that are called after the argument."""
        names = [name for name in self.input_names if re.match(re.escape(argument) + "[^A-Za-z0-9]", name)]
        leaves = _leaves(item)
        if not names or (item is not None and len(leaves) == 1 and leaves[0] is item):
            raise TypeError(f"the model has no input '{argument}'; it has {self.input_names}")
        if item is None:
            return {}
        if len(leaves) != len(names):
            raise TypeError(f"'{argument}' has {len(leaves)} tensors for the {len(names)} inputs {names}")
        return dict(zip(names, leaves))

    def extra_repr(self) -> str:
        return f"inputs={self.input_names}, outputs={self.output_names}"


def _leaves(item: Any) -> list[Any]:
    """The tensors of a structure in order; None stays as what is left out."""
    leaves: list[Any] = tree_leaves(item, is_leaf=lambda leaf: leaf is None)
    return leaves
