# SPDX-License-Identifier: Apache-2.0
"""A model cut behind its outputs: forward now, backward when their gradients are there."""

from typing import Optional, Sequence

from caesura import _core
from caesura.sessions.options import CustomOps
from caesura.sessions.provider_fallback import FallsBack
from caesura.sessions.values import from_value, holds_torch, model_source, to_value


class ForwardRun:
    """A forward run that waits for the gradients of its outputs. Made by SplitModule.forward().

    outputs: output name to array, in the model's order; the caller's, to be overwritten or dropped at any time. They are
    torch.Tensors where one of the feeds was; so are the gradients that backward() gives.

    A run that is dropped without a backward gives its memory back to the module's next run. Not for use from several
    threads at the same time; another thread than that of the forward may call backward().
    """

    def __init__(self, run, output_names: Sequence[str], gradient_names: Sequence[str], torch: bool):
        self._run, self._torch = run, torch
        self._output_names, self._gradient_names = output_names, gradient_names
        self.outputs = {name: from_value(value, torch) for name, value in zip(output_names, run.take_outputs())}

    @property
    def pending(self) -> bool:
        """Whether backward() can be called."""
        return self._run.pending

    def backward(self, gradients, keep: bool = False) -> dict:
        """Gradients by name: of the wanted inputs, then of the trained parameters.

        gradients: of the outputs, by name, or a sequence in the outputs' order. One that is left out or None stands
        for zeros, and must be so for outputs that have none (integers, or what depends on nothing that is trained);
        an array of one element stands for all.
        keep: the run stays as it was, and another backward gives the same bits. Without it the run is over.

        Raises ValueError, with the run as it was, when gradients do not fit the outputs; and when the run is over.
        """
        if isinstance(gradients, dict):
            unknown = [name for name in gradients if name not in self._output_names]
            if unknown:
                raise ValueError(f"the module has no outputs {unknown}; it has {list(self._output_names)}")
            gradients = [gradients.get(name) for name in self._output_names]
        results = self._run.backward([to_value(item) for item in gradients], keep)
        return {name: from_value(value, self._torch) for name, value in zip(self._gradient_names, results)}


class SplitModule(FallsBack):
    """A model whose forward hands its outputs out and whose backward takes their gradients in.

        module = caesura.SplitModule("net.onnx", inputs=["x"])
        run = module.forward({"x": x})
        gradients = run.backward({"y": dy})  # {"x": dx, "weight": ..., ...}

    model: a path, or the bytes of an ONNX file.
    trainable, frozen: names of initializers ('*' matches anything); if empty all floating weights but running statistics
        and what torch.onnx.export has marked as a buffer. Scales of quantization and of Resize are no weights.
    train_constants: floating Constant nodes that gradients reach are trained, too, by their outputs' names.
    inputs: names of graph inputs whose gradients are wanted.
    training: batch statistics and dropout in forward(); False leaves the model as it is.
    threads: per kernel; 0 takes CAESURA_NUM_THREADS or what OpenMP would take.
    seed: of dropout and other random ops; each forward draws other numbers.
    custom_ops: CustomOps: ops from shared libraries (with their gradients), options of nodes and model ops.

    Any number of forwards may wait for their backward, in any order. All methods may be called from several threads at
    the same time; they release the interpreter lock.
    """

    def __init__(self, model, *, trainable: Sequence[str] = (), frozen: Sequence[str] = (), train_constants: bool = False,
                 inputs: Sequence[str] = (), training: bool = True, threads: int = 0, seed: int = 0,
                 custom_ops: Optional[CustomOps] = None):
        self._session = _core.Split.open(model_source(model), {
            "trainable": list(trainable), "frozen": list(frozen), "train_constants": train_constants, "inputs": list(inputs),
            "training": training, "threads": threads, "seed": seed, "custom_ops": custom_ops if custom_ops is not None else CustomOps(),
        })
        self._output_names, self._gradient_names = self._session.output_names(), self._session.gradient_names()

    def forward(self, feeds: dict) -> ForwardRun:
        """Runs up to the outputs. Feeds must stay unchanged until the run is over: its backward reads them again.

        Running statistics are written when this returns; a forward that fails has changed nothing.
        """
        return ForwardRun(self._session.forward(feeds), self._output_names, self._gradient_names, holds_torch(feeds.values()))

    def predict(self, feeds: dict) -> dict:
        """The outputs in evaluation mode, by name."""
        torch = holds_torch(feeds.values())
        return {name: from_value(value, torch) for name, value in zip(self._output_names, self._session.predict(feeds))}

    def parameters(self) -> dict:
        """Copies of trained parameters and running statistics, by the model's names."""
        return {name: from_value(self._session.parameter(name)) for name in self._session.parameter_names()}

    def set_parameters(self, values: dict) -> None:
        """Copies arrays (same dtypes and shapes) into the parameters of these names, all or none.

        Runs that wait for their backward go on with the parameters that they began with.
        """
        self._session.set_parameters(values)

    @property
    def unreachable(self) -> list:
        """Names of inputs and parameters that no output depends on: their gradients are zeros."""
        return self._session.unreachable()
