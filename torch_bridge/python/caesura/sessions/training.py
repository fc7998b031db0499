# SPDX-License-Identifier: Apache-2.0
"""Training an ONNX model."""

import os
from typing import Optional, Sequence

from caesura import _core
from caesura.sessions.options import CustomOps
from caesura.sessions.provider_fallback import FallsBack
from caesura.sessions.values import from_value, holds_torch, model_source, to_value


class TrainingSession(FallsBack):
    """A model in, a trained model out: forward, loss, backward and optimizer as one planned step.

        session = caesura.TrainingSession("net.onnx", loss="cross_entropy", target="labels",
                                          optimizer="adamw", learning_rate=1e-3, weight_decay=0.1)
        loss = session.step({"images": images, "labels": labels})
        session.export("trained.onnx")

    model: a path, the bytes of an ONNX file, or an onnx.ModelProto.
    loss: "cross_entropy", "mse", "l1" or "bce_with_logits" between the output `prediction` ("": the first) and a new
        input named `target`; "output" when the model's own scalar output `prediction` is the loss.
    class_axis: for cross_entropy, the axis of the scores that holds the classes; -1 is the last.
    optimizer: "sgd", "adam", "adamw", "lamb", "lion" or "rmsprop"; `coefficients` are its own, by PyTorch's meaning
        (learning_rate, beta1, beta2, epsilon, weight_decay, momentum, ...), with PyTorch's defaults.
    trainable, frozen: names of initializers ('*' matches anything); if empty all floating weights that a gradient of the
        loss reaches but running statistics and what torch.onnx.export has marked as a buffer. Scales of quantization and
        of Resize are no weights. ValueError where a name is none of the model's.
    train_constants: floating Constant nodes that gradients reach are trained, too, by their outputs' names.
    clip_norm: global norm to clip gradients at; 0 does not clip.
    accumulation_steps: step() calls to one update, which goes by the mean of their gradients. 0: the caller decides;
        accumulate() adds a batch, step() adds the last one and updates.
    schedule: what the learning rate follows: "constant", "linear" or "cosine" (to 0 at update `total_steps`), "polynomial"
        (power 2) or "step" (a tenth after each third); `warmup_steps` of them rise from 0 at the beginning.
    commit: "late" (a step that fails has changed nothing) or "eager-consume" (least memory).
    precision: "fp32"; "bf16": products, convolutions and attention compute in bfloat16, parameters, optimizer, losses
        and norms in float32; "fp16": likewise, with a scaled loss: an update whose gradients overflow does not happen.
    memory_budget: bytes that the arena of a step may take (plan() tells what it takes); what does not fit is computed
        again in the backward. MemoryError when the least possible is above it. 0: no limit.
    keep_gradients: hold the last step's gradients for gradients().
    keep_outputs: names of the model's outputs that outputs() gives after each step.
    threads: per kernel; 0 takes CAESURA_NUM_THREADS or what OpenMP would take.
    custom_ops: CustomOps: ops from shared libraries (with their gradients), options of nodes and model ops.

    Feeds are arrays of NumPy or of any library with DLPack (PyTorch, JAX); where one is a torch.Tensor, what evaluate()
    and predict() give are so too.

    Not for use from several threads at the same time.
    """

    def __init__(self, model, *, loss: str = "cross_entropy", target: str = "target", prediction: str = "",
                 class_axis: int = 1, optimizer: str = "adamw", trainable: Sequence[str] = (),
                 frozen: Sequence[str] = (), train_constants: bool = False, clip_norm: float = 0.0, accumulation_steps: int = 1,
                 commit: str = "late", precision: str = "fp32", memory_budget: int = 0, keep_gradients: bool = False,
                 keep_outputs: Sequence[str] = (), schedule: str = "constant", total_steps: int = 0, warmup_steps: int = 0,
                 threads: int = 0, seed: int = 0, custom_ops: Optional[CustomOps] = None, **coefficients):
        self._keep_outputs = tuple(keep_outputs)
        self._session = _core.Training.open(model_source(model), {
            "loss": loss, "target": target, "prediction": prediction, "class_axis": class_axis,
            "optimizer": optimizer, "groups": [], "fed": [],
            "coefficients": {k: float(v) for k, v in coefficients.items()},
            "trainable": list(trainable), "frozen": list(frozen), "train_constants": train_constants,
            "clip_norm": float(clip_norm),
            "accumulation_steps": accumulation_steps, "commit": commit, "precision": precision,
            "memory_budget": memory_budget,
            "keep_gradients": keep_gradients, "keep_outputs": list(keep_outputs), "schedule": schedule,
            "total_steps": total_steps, "warmup_steps": warmup_steps, "threads": threads, "seed": seed,
            "custom_ops": custom_ops if custom_ops is not None else CustomOps(),
        })

    def step(self, feeds: dict) -> float:
        """One (micro-)step; the loss before the update."""
        return self._session.step(feeds)

    def accumulate(self, feeds: dict) -> float:
        """A micro-step that only adds its gradients; the loss. Needs accumulation_steps=0."""
        return self._session.accumulate(feeds)

    def profile_step(self, feeds: dict, trace="") -> str:
        """One step under the profiler: a table of time and bytes by op type, the slowest first.

        trace: also write the step's timeline here as Chrome-trace JSON (ui.perfetto.dev opens it).
        """
        return self._session.profile_step(feeds, os.fspath(trace))

    def evaluate(self, feeds: dict) -> tuple:
        """(loss, outputs) in evaluation mode; nothing changes."""
        loss, outputs = self._session.evaluate(feeds)
        torch = holds_torch(feeds.values())
        return loss, [from_value(value, torch) for value in outputs]

    def predict(self, feeds: dict) -> list:
        """The model's outputs in evaluation mode."""
        torch = holds_torch(feeds.values())
        return [from_value(value, torch) for value in self._session.predict(feeds)]

    def parameters(self, frozen: bool = False) -> dict:
        """Copies of trained parameters and running statistics, by the model's names. frozen: the model's other floating
        initializers, too."""
        names = self._session.parameter_names() + (self._session.frozen_names() if frozen else [])
        return {name: from_value(self._session.parameter(name)) for name in names}

    def set_parameter(self, name: str, value) -> None:
        """Also of frozen ones, after which the next run makes the step anew."""
        self._session.set_parameter(name, to_value(value))

    def gradients(self) -> dict:
        """Gradients of the last step, by the names of the trained parameters; needs keep_gradients=True."""
        return dict(zip(self._session.parameter_names(), map(from_value, self._session.gradients())))

    def outputs(self) -> dict:
        """The outputs of the last step that keep_outputs names."""
        return dict(zip(self._keep_outputs, map(from_value, self._session.kept_outputs())))

    @property
    def updates(self) -> int:
        return self._session.updates

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied with before the backward; 1 but for precision="fp16"."""
        return self._session.loss_scale

    @property
    def learning_rate(self) -> float:
        return self._session.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._session.learning_rate = rate

    @property
    def terminate(self) -> bool:
        """Set to True (from another thread, too) it ends the call that runs now and all later ones with RuntimeError.
        Nothing is changed, and an update that has begun is done first. False lets calls run again."""
        return self._session.terminate

    @terminate.setter
    def terminate(self, value: bool) -> None:
        self._session.terminate = value

    def save(self, path) -> None:
        """A checkpoint (safetensors): parameters, optimizer state, counters. A crash leaves the old one or the new."""
        self._session.save(os.fspath(path))

    def restore(self, path) -> None:
        self._session.restore(os.fspath(path))

    def export(self, path, outputs: Sequence[str] = ()) -> None:
        """Writes the trained model as ONNX, in evaluation mode; with `outputs` only these and what they need."""
        self._session.export(os.fspath(path), list(outputs))

    def plan(self, feeds: dict) -> tuple:
        """(the step's plan as text, its arena in bytes) for feeds of these shapes; nothing is run."""
        return self._session.plan(feeds)


def open_step(path, *, threads: int = 0, seed: int = 0) -> TrainingSession:
    """The session of a step that caesura.export_step has written, where it was when it was written or saved last.

    Loss, optimizer, groups, clipping and accumulation are the folder's own. Raises ValueError, naming the entries, where
    what the folder says of itself is not as it should be.
    """
    session = TrainingSession.__new__(TrainingSession)
    session._keep_outputs = ()
    session._session = _core.Training.open_step(os.fspath(path), threads, seed)
    return session
