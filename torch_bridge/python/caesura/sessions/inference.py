# SPDX-License-Identifier: Apache-2.0
"""Running an ONNX model, with the conventions of onnxruntime.InferenceSession: moving is an import line."""

import importlib.util
import sys
import time
import weakref
from typing import NamedTuple, Optional, Sequence

from caesura import _core
from caesura.runtime import torch_kernels
from caesura.sessions.io_binding import IOBinding
from caesura.sessions.options import SessionOptions
from caesura.sessions.provider_fallback import FallsBack
from caesura.sessions.values import model_source

_CPU, _TORCH, _COUNTING = "CPUExecutionProvider", "TorchExecutionProvider", "CountingExecutionProvider"
_OPENVINO = "OpenVINOExecutionProvider"
_SHORT = {"cpu": (_CPU,), "torch": (_TORCH, _CPU), "torch-only": (_TORCH,)}


def get_available_providers() -> list:
    """What `providers` may name here, beside plug-ins of yours. TorchExecutionProvider (PyTorch's own operators, where one
    means the same as the node) needs PyTorch at hand, OpenVINOExecutionProvider (whole parts of the graph) OpenVINO."""
    openvino = _core.has_plugin("caesura_openvino") and importlib.util.find_spec("openvino") is not None
    return [_CPU] + [_TORCH] * torch_kernels.built() + [_OPENVINO] * openvino


def _is_plugin(name: str) -> bool:
    """A path, or the name of a provider whose plug-in libcaesura_<name>.so is where they are looked for."""
    return "/" in name or _core.has_plugin("caesura_" + name.removesuffix("ExecutionProvider").lower())


def get_device() -> str:
    return "CPU"


class NodeArg(NamedTuple):
    """One input or output: its name, its type ("tensor(float)"), and its dims (int, symbol or None; None: unknown rank)."""

    name: str
    type: str
    shape: Optional[list]


class ModelMetadata(NamedTuple):
    """What the file says beside the graph."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict


def _named(providers, provider_options) -> dict:
    """The providers' options by name, in order, the CPU's behind them; raises for names, options and forms that are not
    known."""
    known = get_available_providers() + [_COUNTING]
    named = {}
    if isinstance(providers, str):
        raise ValueError(f"providers is a list of names, got the string '{providers}'")
    if provider_options is not None and len(provider_options) != len(providers):
        raise ValueError(f"{len(provider_options)} provider_options for {len(providers)} providers")
    for i, item in enumerate(providers):
        name, options = item if isinstance(item, tuple) else (item, provider_options[i] if provider_options else {})
        if name not in known and not _is_plugin(name):
            raise ValueError(f"provider '{name}' is not known; there are {', '.join(known[:-1])}")
        for option in options:
            if name in (_CPU, _TORCH, _COUNTING) and (name, option) not in ((_COUNTING, "memory_bytes"), (_TORCH, "device")):
                raise ValueError(f"provider {name} has no option '{option}'")
        named.setdefault(name, {key: str(value) for key, value in options.items()})
    named.setdefault(_CPU, {})
    return named


def _native(named) -> list:
    """As _core.Session takes them: PyTorch's operators in front of our own kernels are one provider, in its memory."""
    if _TORCH in named:
        torch_kernels.load()
    if list(named)[:2] == [_TORCH, _CPU] and named[_TORCH].get("device", "cpu") == "cpu":
        return [("torch", {})]
    own = {_CPU: "cpu", _TORCH: "torch-only", _COUNTING: "counting"}
    return [(own.get(name, name), options) for name, options in named.items()]


class InferenceSession(FallsBack):
    """A model made ready to run.

    path_or_bytes: a path, or the bytes of an ONNX file (external data needs a path).
    sess_options: SessionOptions. threads: short for its intra_op_num_threads.
    providers: names, or (name, options) pairs, in order of preference; the CPU's own kernels always come last. Names that
        are not known are a ValueError, where onnxruntime warns and goes on with another provider. A path names the first
        provider of that plug-in. TorchExecutionProvider runs PyTorch's operators where they lie: option device, as PyTorch
        names it ("cuda:1"; "cpu" if left out); what has no equivalent there goes to the CPU. For tests there is
        CountingExecutionProvider beside those of get_available_providers(): a stand-in for a device, in host memory of its
        own (option memory_bytes: so much of it), that counts copies and waits (device_counts()).
    provider: instead of providers "cpu", "torch" (the same as TorchExecutionProvider) or "torch-only", which leaves nothing
        to our own kernels.

    Any number of threads may run a session at the same time; runs let go of the interpreter's lock. A run sees the inputs'
    own bytes (those that are dense) and gives outputs that are the caller's alone.
    """

    def __init__(self, path_or_bytes, sess_options: Optional[SessionOptions] = None, providers: Optional[Sequence] = None,
                 provider_options: Optional[Sequence[dict]] = None, *, threads: int = 0, provider: Optional[str] = None):
        self._source = model_source(path_or_bytes)
        self._options = sess_options if sess_options is not None else SessionOptions()
        self._settings = self._options.settings()
        if threads:
            self._settings["threads"] = threads
        self._finish_runs = None
        if provider is None:
            self.set_providers(providers if providers is not None else [_CPU], provider_options)
        elif providers is not None:
            raise ValueError("give providers or provider, not both")
        elif provider not in _SHORT:
            raise ValueError(f"provider '{provider}' is none of {', '.join(_SHORT)}")
        else:
            self._open({name: {} for name in _SHORT[provider]}, [(provider, {})])

    def _open(self, named, native):
        try:
            session = _core.Session(self._source, native, **self._settings)
        except KeyError as error:
            if _OPENVINO in named and importlib.util.find_spec("openvino") is None:
                raise ImportError(f"{_OPENVINO} needs OpenVINO: pip install 'caesura-train[openvino]'") from error
            raise
        if self._finish_runs is not None:
            self._finish_runs()
        self._session, self._finish_runs = session, None
        self._profiling = self._settings["profile"]
        self._providers = named
        self._inputs = [NodeArg(*row) for row in self._session.inputs(with_default=False)]
        self._overridable = [NodeArg(*row) for row in self._session.inputs(with_default=True)]
        self._outputs = [NodeArg(*row) for row in self._session.outputs()]

    # --- what the model is ---

    def get_inputs(self) -> list:
        """Those that a run must be given, as NodeArg."""
        return list(self._inputs)

    def get_overridable_initializers(self) -> list:
        """Inputs with a default, which a run may be given."""
        return list(self._overridable)

    def get_outputs(self) -> list:
        return list(self._outputs)

    def get_modelmeta(self) -> ModelMetadata:
        return ModelMetadata(*self._session.metadata())

    def get_session_options(self) -> SessionOptions:
        return self._options

    # --- where it runs ---

    def get_providers(self) -> list:
        """The names in order of preference; behind a fallback, of what the session has gone over to."""
        return list(self._providers) if self.fallback_record() is None else self._session.providers()

    def get_provider_options(self) -> dict:
        """What each of them was given."""
        return {name: dict(self._providers.get(name, {})) for name in self.get_providers()}

    def set_providers(self, providers: Optional[Sequence] = None, provider_options: Optional[Sequence[dict]] = None):
        """Reads the model again and makes it ready for these. Bindings that were made before stay with the old ones."""
        named = _named(providers if providers is not None else [_CPU], provider_options)
        self._open(named, _native(named))

    # --- runs ---

    def run(self, output_names: Optional[Sequence[str]], input_feed: dict, run_options=None) -> list:
        """Outputs as NumPy arrays (lists for sequences, None for empty optionals).

        output_names: which, in which order; None for all. What only the others need is not computed. input_feed: input name
        to array or OrtValue; inputs that have a default may be left out. Arrays of any library with DLPack (PyTorch, JAX)
        are taken without a copy; where one is a torch.Tensor the outputs are so too.
        """
        return self._session.run(output_names or (), input_feed, run_options)

    def run_with_ort_values(self, output_names: Optional[Sequence[str]], input_dict_ort_values: dict, run_options=None) -> list:
        """The same with OrtValues, in and out."""
        return self._session.run_values(output_names or (), input_dict_ort_values, run_options)

    def run_async(self, output_names: Optional[Sequence[str]], input_feed: dict, callback, user_data=None, run_options=None):
        """Returns at once; later callback(results, user_data, error) is called in another thread: results as run() gives
        them and "", or [] and what went wrong.

        The arrays must stay as they are until then. What the callback itself raises goes to sys.excepthook. The session
        waits for its runs when it goes, and at the interpreter's exit.
        """
        if self._finish_runs is None:
            self._finish_runs = weakref.finalize(self, _core.Session.wait_for_async_runs, self._session)
        self._session.run_async(output_names or (), input_feed, run_options, _Reported(callback, user_data))

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options=None) -> list:
        """Runs on what is bound, and returns the outputs as OrtValues, in the order in which they were bound."""
        return iobinding.run(run_options)

    def output_shapes(self, input_feed: dict) -> dict:
        """What a run with inputs of these shapes will give, by name: for allocating before it. None where the shape depends
        on the inputs' elements."""
        return self._session.output_shapes(input_feed)

    # --- looking inside ---

    def plan(self, input_feed: dict) -> str:
        """The execution plan for inputs of these shapes, one line a step."""
        return self._session.plan(input_feed)

    def end_profiling(self) -> str:
        """With SessionOptions.enable_profiling: writes what the runs until now did, node by node, as a Chrome trace (Perfetto
        opens it; one event a node, with times, sizes and shapes), and watches no more. Returns the file's name, which is
        profile_file_prefix and the time; without enable_profiling "", as onnxruntime does."""
        if not self._profiling:
            return ""
        path = f"{self._options.profile_file_prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
        self._session.end_profiling(path)
        self._profiling = False
        return path

    def exchange_counts(self) -> dict:
        """Inputs that run() was given since the session was made, and how many of them had to be copied: what was not
        dense, and lists and numbers. Bound inputs are never copied."""
        given, copied = self._session.exchanged()
        return {"inputs": given, "inputs_copied": copied}

    def device_counts(self) -> dict:
        """Kernels, copies, their bytes and waits since the session was made, of CountingExecutionProvider's device."""
        return self._session.device_counts()


class _Reported:
    """A run's callback, with what it raises said aloud."""

    def __init__(self, callback, user_data):
        self._callback, self._user_data = callback, user_data

    def __call__(self, results: list, error: str):
        try:
            self._callback(results, self._user_data, error)
        except BaseException:
            sys.excepthook(*sys.exc_info())
