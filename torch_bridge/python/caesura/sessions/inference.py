# SPDX-License-Identifier: Apache-2.0
"""Inference sessions: they run an ONNX model with the interface of onnxruntime.InferenceSession."""

import importlib.util
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, Union

from caesura import _core
from caesura.sessions.io_binding import IOBinding, OrtValue
from caesura.sessions.options import RunOptions, SessionOptions
from caesura.sessions.provider_fallback import FallsBack
from caesura.sessions.providers import CPU, CUDA, OPENVINO, get_available_providers, named_providers, native_providers
from caesura.sessions.values import model_source
from caesura.typing import Feeds, Model, Plan, Providers


def get_device() -> str:
    """Returns the kind of device that sessions can run on, as onnxruntime.get_device() does.

    Returns:
        str: "GPU" if CUDAExecutionProvider is available, otherwise "CPU".

    Example::

        print(onnxruntime.get_device())
    """
    return "GPU" if CUDA in get_available_providers() else "CPU"


class NodeArg(NamedTuple):
    """One input or output of a model.

    Attributes:
        name: its name.
        type: such as "tensor(float)".
        shape: list of dims: an int, a symbol, or None where the model does not say. None if the rank is unknown.

    Example::

        for argument in session.get_inputs():
            print(argument.name, argument.type, argument.shape)
    """

    name: str
    type: str
    shape: Optional[list[Union[int, str, None]]]


class ModelMetadata(NamedTuple):
    """The metadata of a model file, with the fields of onnxruntime.ModelMetadata.

    Example::

        print(session.get_modelmeta().producer_name)
    """

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class InferenceSession(FallsBack):
    """A model made ready to run, with onnxruntime's methods and arguments.

    A run reads the inputs where they are, if they are dense, and gives outputs that are the caller's only. Thread
    safety: any number of threads may run a session at the same time; runs release the interpreter lock.

    Args:
        path_or_bytes: a path, the bytes of an ONNX file (external data needs a path), or an onnx.ModelProto.
        sess_options: SessionOptions.
        providers: names, or (name, options) pairs, in order of preference; the CPU's kernels always come last. A path
            names the first provider of that plug-in. TorchExecutionProvider runs PyTorch's operators; its option
            `device` is as PyTorch names it ("cuda:1"; "cpu" if left out), and nodes without an equivalent run on the
            CPU.
        provider_options: one dict for each provider, as onnxruntime takes them.

    Raises:
        ValueError: the model is not valid, or a provider is not known (onnxruntime warns and takes another one).
        NotImplementedError: nodes have no kernel; all of them are listed.
        FileNotFoundError: there is no file of this name.
        ImportError: a provider's package is not installed.

    Example::

        session = onnxruntime.InferenceSession("net.onnx")
        scores, = session.run(None, {"images": images})
    """

    _session: _core.Session

    def __init__(self, path_or_bytes: Model, sess_options: Optional[SessionOptions] = None, providers: Optional[Providers] = None,
                 provider_options: Optional[Sequence[dict[str, Any]]] = None) -> None:
        self._source = model_source(path_or_bytes)
        self._options = sess_options if sess_options is not None else SessionOptions()
        self._settings = self._options._settings()
        self._finish_runs: weakref.finalize[..., Any] | None = None
        self.set_providers(providers, provider_options)

    def __repr__(self) -> str:
        names = [[value.name for value in values] for values in (self._inputs, self._outputs)]
        return f"InferenceSession(inputs={names[0]}, outputs={names[1]}, providers={self.get_providers()})"

    def _open(self, named: dict[str, dict[str, str]], native: list[tuple[str, dict[str, str]]]) -> None:
        try:
            session = _core.Session(self._source, native, **self._settings)
        except KeyError as error:
            if OPENVINO in named and importlib.util.find_spec("openvino") is None:
                raise ImportError(f"{OPENVINO} needs OpenVINO: pip install 'caesura-train[openvino]'") from error
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

    def get_inputs(self) -> list[NodeArg]:
        """Returns the inputs that a run must be given, as NodeArg."""
        return list(self._inputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Returns the inputs that have a default, which a run may be given, as NodeArg."""
        return list(self._overridable)

    def get_outputs(self) -> list[NodeArg]:
        """Returns the outputs, as NodeArg."""
        return list(self._outputs)

    def get_modelmeta(self) -> ModelMetadata:
        """Returns the ModelMetadata."""
        return ModelMetadata(*self._session.metadata())

    def get_session_options(self) -> SessionOptions:
        """Returns the SessionOptions that the session was made with."""
        return self._options

    # --- where it runs ---

    def get_providers(self) -> list[str]:
        """Returns the providers' names in order of preference; after a fallback, those that run nodes now."""
        return list(self._providers) if self.fallback_record() is None else self._session.providers()

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Returns the options that each provider was given, by name."""
        return {name: dict(self._providers.get(name, {})) for name in self.get_providers()}

    def set_providers(self, providers: Optional[Providers] = None, provider_options: Optional[Sequence[dict[str, Any]]] = None) -> None:
        """Reads the model again and makes it ready for these providers. Bindings that were made before stay with the
        old ones.
        """
        named = named_providers(providers if providers is not None else [CPU], provider_options)
        self._open(named, native_providers(named))

    # --- runs ---

    def run(self, output_names: Optional[Sequence[str]], input_feed: Feeds, run_options: Optional[RunOptions] = None) -> list[Any]:
        """Runs the model.

        Args:
            output_names: the wanted outputs, in order; None for all. What only the others need is not computed.
            input_feed: Feeds from input name to array or OrtValue, or to a dict for a map. Inputs that have a default may
                be left out. Arrays of any library with DLPack (PyTorch, JAX) are taken without a copy.
            run_options: RunOptions.

        Returns:
            list: NumPy arrays (lists for sequences, dicts for maps, None for empty optionals); torch.Tensors if one of the
            inputs was.

        Raises:
            ValueError: inputs are missing, not known, or of another dtype or shape; all of them are listed.
            RuntimeError: the run was ended by run_options.terminate, or a provider failed.
        """
        return self._session.run(output_names or (), input_feed, run_options)

    def run_with_ort_values(self, output_names: Optional[Sequence[str]], input_dict_ort_values: dict[str, OrtValue],
                            run_options: Optional[RunOptions] = None) -> list[OrtValue]:
        """Runs the model on OrtValues and returns OrtValues; otherwise as run()."""
        return self._session.run_values(output_names or (), input_dict_ort_values, run_options)

    def run_async(self, output_names: Optional[Sequence[str]], input_feed: Feeds,
                  callback: Callable[[list[Any], Any, str], object], user_data: Any = None,
                  run_options: Optional[RunOptions] = None) -> None:
        """Begins a run and returns at once; a thread of the session calls callback(results, user_data, error) when it
        has ended.

        `results` are as run() gives them and `error` is "", or they are [] and the reason. The arrays must stay as
        they are until then. An exception of the callback goes to sys.excepthook. The session waits for its runs when
        it is deleted, and at the interpreter's exit.
        """
        if self._finish_runs is None:
            self._finish_runs = weakref.finalize(self, _core.Session.wait_for_async_runs, self._session)
        self._session.run_async(output_names or (), input_feed, run_options, _Reported(callback, user_data))

    def io_binding(self) -> IOBinding:
        """Returns a new IOBinding for this session."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Optional[RunOptions] = None) -> list[OrtValue]:
        """Runs on what is bound; returns the outputs as OrtValues, in the order in which they were bound."""
        return iobinding.run(run_options)

    def output_shapes(self, input_feed: Feeds) -> dict[str, Optional[list[int]]]:
        """Returns the shapes that a run on inputs of these shapes will give, by name: for allocating before the run.

        None stands for a shape that depends on the inputs' elements.
        """
        return self._session.output_shapes(input_feed)

    # --- looking inside ---

    def plan(self, input_feed: Feeds) -> Plan:
        """Returns the Plan of a run on inputs of these shapes: its text, and the bytes of its arena. Nothing is run."""
        text = self._session.plan(input_feed)
        return Plan(text, int(text.partition("arena ")[2].partition(" ")[0]))

    def end_profiling(self) -> str:
        """Writes the profile of all runs until now as a Chrome trace, which ui.perfetto.dev opens, and stops profiling.

        Needs SessionOptions.enable_profiling. Each node is one event, with times, sizes and shapes.

        Returns:
            str: the file's name, profile_file_prefix and the time; "" without enable_profiling, as in onnxruntime.
        """
        if not self._profiling:
            return ""
        path = f"{self._options.profile_file_prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
        self._session.end_profiling(path)
        self._profiling = False
        return path


class _Reported:
    """Calls a run's callback, and reports what it raises."""

    def __init__(self, callback: Callable[[list[Any], Any, str], object], user_data: Any) -> None:
        self._callback, self._user_data = callback, user_data

    def __call__(self, results: list[Any], error: str) -> None:
        try:
            self._callback(results, self._user_data, error)
        except BaseException:
            sys.excepthook(*sys.exc_info())
