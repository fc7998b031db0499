# SPDX-License-Identifier: Apache-2.0
"""Split modules: a model that stops at its outputs, and goes on with the backward when their gradients are there."""

import os
from collections.abc import Sequence
from typing import Any, Optional, Union

from caesura import _core
from caesura.sessions.options import CustomOps
from caesura.sessions.provider_fallback import FallsBack
from caesura.sessions.providers import CPU, named_providers, native_providers
from caesura.sessions.values import from_value, holds_torch, model_source, to_value
from caesura.typing import Array, Feeds, Model, Path, Providers


class ForwardRun:
    """A forward run that waits for the gradients of its outputs. SplitModule.forward() makes it.

    A run that is dropped without a backward gives its memory back to the module's next run. Thread safety: one thread
    at a time; it may be another thread than that of the forward.

    Attributes:
        outputs: dict from output name to array, in the model's order. The arrays are the caller's, to be overwritten or
            dropped at any time. They are torch.Tensors if one of the feeds was, else OrtValues if the module was made
            with on_device=True, else NumPy arrays.

    Raises:
        ValueError: from backward(), if gradients do not fit.

    Example::

        run = module.forward({"x": x})
        gradients = run.backward({"y": run.outputs["y"]})
    """

    def __init__(self, run: _core.ForwardRun, output_names: Sequence[str], gradient_names: Sequence[str], as_torch: bool,
                 on_device: bool) -> None:
        self._run, self._torch, self._on_device = run, as_torch, on_device
        self._output_names, self._gradient_names = output_names, gradient_names
        self.outputs = self._named(output_names, run.take_outputs(on_device))

    def _named(self, names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
        as_values = self._on_device and not self._torch
        return {name: value.to_ort_value() if as_values else from_value(value, self._torch) for name, value in zip(names, values)}

    @property
    def pending(self) -> bool:
        """True if backward() can be called."""
        return self._run.pending

    def backward(self, gradients: Union[Feeds, Sequence[Array]], retain_graph: bool = False) -> dict[str, Any]:
        """Runs the backward.

        Args:
            gradients: of the outputs: a dict by name, or a sequence in the outputs' order. One that is left out or None
                stands for zeros. Outputs that have none (integers, or values that depend on nothing trained) must be
                left out. An array of one element stands for all elements.
            retain_graph: True leaves the run as it was, and another backward gives the same bits. Otherwise the run is over.

        Returns:
            dict: gradients by name, of the wanted inputs, then of the trained parameters.

        Raises:
            ValueError: gradients do not fit the outputs, and the run is as it was; or the run is over.
        """
        if isinstance(gradients, dict):
            unknown = [name for name in gradients if name not in self._output_names]
            if unknown:
                raise ValueError(f"the module has no outputs {unknown}; it has {list(self._output_names)}")
            gradients = [gradients.get(name) for name in self._output_names]
        return self._named(self._gradient_names, self._run.backward([to_value(item) for item in gradients], retain_graph))

    def save(self, path: Path) -> None:
        """Writes the run to a file (safetensors): what its backward reads, the parameters that it began with, and
        `outputs`. SplitModule.load_run() takes it up, in another process if need be. The run goes on waiting here too.

        Raises:
            ValueError: the run is over.
            OSError: the file cannot be written; one that was there stays.

        Example::

            module.forward({"x": x}).save("run.safetensors")
        """
        self._run.save(os.fspath(path), [to_value(value) for value in self.outputs.values()])


class SplitModule(FallsBack):
    """A model whose forward hands its outputs out, and whose backward takes their gradients in.

    Any number of forwards may wait for their backward, in any order. Thread safety: all methods from any number of
    threads; they release the interpreter lock.

    Args:
        model: a path, the bytes of an ONNX file, or an onnx.ModelProto.
        trainable: names of initializers to train; '*' matches anything. Empty: all floating weights except running
            statistics and what torch.onnx.export has marked as a buffer. Scales of quantization and of Resize are no
            weights.
        frozen: names of initializers that stay as they are; '*' matches anything.
        train_constants: True also trains floating Constant nodes that gradients reach, by the names of their outputs.
        inputs: names of graph inputs whose gradients are wanted.
        training: True computes batch statistics and dropout in forward(); False leaves the model as it is.
        threads: threads of a kernel; 0 takes CAESURA_NUM_THREADS, or as many as OpenMP would take.
        seed: seeds dropout and other random ops; each forward draws other numbers.
        custom_ops: ops from shared libraries with their gradients, options of nodes and model ops (CustomOps).
        providers: names, or (name, options) pairs, in order of preference, as for InferenceSession; the CPU's kernels
            always come last.
        provider_options: one dict for each provider.
        on_device: True leaves outputs and gradients in the memory of the device that makes them: no copy to the host,
            and no wait of the host. They are OrtValues, which other libraries take by DLPack, or torch.Tensors. Gradients
            given to backward() may be on the device, too.

    Raises:
        ValueError: an option, a name or the model is not as it should be.
        NotImplementedError: nodes have no kernel or no gradient; all of them are listed.
        FileNotFoundError: there is no file at `model`.

    Example::

        module = caesura.SplitModule("net.onnx", inputs=["x"])
        run = module.forward({"x": x})
        gradients = run.backward({"y": dy})   # {"x": dx, "weight": ..., ...}
    """

    def __init__(self, model: Model, *, trainable: Sequence[str] = (), frozen: Sequence[str] = (), train_constants: bool = False,
                 inputs: Sequence[str] = (), training: bool = True, threads: int = 0, seed: int = 0,
                 custom_ops: Optional[CustomOps] = None, providers: Providers = (CPU,),
                 provider_options: Optional[Sequence[dict[str, Any]]] = None, on_device: bool = False) -> None:
        self._on_device = on_device
        self._session = _core.Split.open(model_source(model), {
            "trainable": list(trainable), "frozen": list(frozen), "train_constants": train_constants, "inputs": list(inputs),
            "training": training, "threads": threads, "seed": seed, "custom_ops": custom_ops if custom_ops is not None else CustomOps(),
            "providers": native_providers(named_providers(providers, provider_options)), "on_device": on_device,
        })
        self._output_names, self._gradient_names = self._session.output_names(), self._session.gradient_names()

    def forward(self, feeds: Feeds) -> ForwardRun:
        """Runs up to the outputs; returns the ForwardRun.

        Feeds must stay unchanged until the run is over: its backward reads them again. Running statistics are written
        when this returns; a forward that fails has changed nothing.
        """
        return ForwardRun(self._session.forward(feeds), self._output_names, self._gradient_names, holds_torch(feeds.values()),
                          self._on_device)

    def load_run(self, path: Path, *, as_torch: bool = False) -> ForwardRun:
        """Takes up a run that ForwardRun.save() has written, perhaps in another process by a module of the same model and
        options. With the same threads its backward gives the same bits.

        Args:
            path: the file.
            as_torch: True gives outputs and gradients as torch.Tensors.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it holds no such run, is damaged, or is of another model; the first difference is named.

        Example::

            gradients = module.load_run("run.safetensors").backward({"y": dy})
        """
        return ForwardRun(self._session.load_run(os.fspath(path)), self._output_names, self._gradient_names, as_torch, self._on_device)

    def predict(self, feeds: Feeds) -> dict[str, Any]:
        """Runs the forward in evaluation mode; returns the outputs by name."""
        torch = holds_torch(feeds.values())
        return {name: from_value(value, torch) for name, value in zip(self._output_names, self._session.predict(feeds))}

    def parameters(self) -> dict[str, Any]:
        """Returns copies of the trained parameters and running statistics, by the model's names."""
        return {name: from_value(self._session.parameter(name)) for name in self._session.parameter_names()}

    def set_parameters(self, values: Feeds) -> None:
        """Copies arrays of the same dtypes and shapes into the parameters of these names, all or none.

        Runs that wait for their backward go on with the parameters that they began with.
        """
        self._session.set_parameters(values)

    @property
    def unreachable(self) -> list[str]:
        """Names of inputs and parameters that no output depends on: their gradients are zeros."""
        return list(self._session.unreachable())

    def __repr__(self) -> str:
        return f"SplitModule(outputs={list(self._output_names)}, gradients={list(self._gradient_names)})"
