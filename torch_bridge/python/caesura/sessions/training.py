# SPDX-License-Identifier: Apache-2.0
"""Training sessions: ONNX models are trained without PyTorch."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Optional

from caesura import _core
from caesura.optim import AdamW, Optimizer
from caesura.ranks import Ranks, communicator
from caesura.sessions.lora import adapter_matrices, is_onnxruntimes, read_onnxruntimes, write_onnxruntimes
from caesura.sessions.options import CustomOps
from caesura.sessions.provider_fallback import FallsBack
from caesura.sessions.providers import CPU, named_providers, native_providers
from caesura.sessions.values import from_value, holds_torch, model_source, to_value
from caesura.typing import (Array, Commit, Feeds, Loss, Memory, Model, OnFailure, Path, Plan, Precision, Properties, Providers,
                            Schedule, TrainingPart)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class TrainingSession(FallsBack):
    """Trains an ONNX model: forward, loss, backward and optimizer are one planned step.

    Feeds are dicts from input name to array: of NumPy, or of any library with DLPack (PyTorch, JAX). Where one of
    them is a torch.Tensor, the results of evaluate() and predict() are tensors too.

    Thread safety: one thread at a time, except `terminate`.

    Args:
        model: a path, the bytes of an ONNX file, or an onnx.ModelProto.
        loss: "cross_entropy" (scores and class numbers), "mse", "l1" or "bce_with_logits"; "output": the model computes its
            loss itself. The first four are between the output `prediction` and a new input named `target`.
        target: The name of the input that the loss compares with.
        prediction: The output of the model that the loss is about; by default the first. With "output" it is the loss.
        also: Further terms of the loss, PREDICTION=TARGET or PREDICTION=TARGET*WEIGHT: the same loss between other
            outputs and new inputs, times a weight. Not with "output".
        class_axis: The axis of cross_entropy's scores that holds the classes; below 0 from the end.
        optimizer: one of caesura.optim, with PyTorch's names and defaults.
        trainable: Initializers to train ('*' matches anything); by default all that a gradient reaches. These are floating
            weights, except running statistics and what torch.onnx.export has marked as a buffer; scales of quantization
            and of Resize are no weights.
        frozen: Initializers that stay as they are ('*' matches anything).
        train_constants: Floating Constant nodes that gradients reach are trained, too, by the names of their outputs.
        clip_norm: Gradients are scaled down to this global norm; 0: they are not.
        accumulation_steps: Batches to one update, which takes the mean of their gradients. 0 leaves the number to the
            caller: accumulate() adds a batch, step() adds the last one and updates.
        commit: "late": a step writes to parameters after all gradients. "eager-consume": to each as soon as its gradient
            is there, with least memory. A late step that fails has changed nothing; an early one is lost, unless `undo` is
            True.
        undo: A step keeps what it overwrites until it has ended, so that any failed step has changed nothing, nor has one
            that is dropped. Costs memory for a copy of parameters and optimizer state, and the time to write it.
        on_failure: The answer to a step that fails. "stop" raises its error. "skip" leaves the batch out, and step()
            returns NaN. "retry" does the step again, with the same random numbers; "retry-on-defaults" likewise on the
            default providers; "retry-in-parts" likewise as `parts` equal parts of the batch, whose mean gradient makes
            the update (inputs with a symbolic first dimension are split). Feeds that do not fit, cancelled and
            suspended steps raise whatever it is.
        retries: Times that one step is done again at most.
        parts: Parts of a batch in which "retry-in-parts" does a step again.
        precision: The dtype in which products, convolutions and attention compute; parameters, optimizer, losses and
            norms stay float32. "fp16" scales the loss; an update whose gradients overflow does not happen.
        refuse_nonfinite: A step whose loss or gradients are not finite fails and has changed nothing. It raises ValueError.
        memory_budget: Bytes that a step's arena may take; 0: no limit. Activations that do not fit are computed again in
            the backward. plan() tells what it takes.
        keep_gradients: A step also hands out the gradient of each parameter. See gradients().
        keep_outputs: Outputs of the model that a step also hands out. See outputs().
        schedule: the course of the learning rate: "constant", "linear" or "cosine" (to 0 at update `total_steps`),
            "polynomial" (power 2) or "step" (a tenth after each third).
        total_steps: the number of updates that the schedule is made for.
        warmup_steps: the first updates, over which the rate rises from 0.
        ranks: the ranks that train together, by default those of torch.distributed's default group, where one is
            initialised; Ranks("alone") has none.
        threads: Threads to a kernel; 0: CAESURA_NUM_THREADS, or as many as OpenMP takes.
        seed: Seeds dropout and other random ops.
        custom_ops: ops from shared libraries with their gradients, options of nodes and model ops (CustomOps).
        providers: names, or (name, options) pairs, in order of preference, as for InferenceSession; the CPU's kernels
            always come last. With CUDAExecutionProvider, parameters and optimizer state are in the GPU's memory where
            their updates have kernels there.
        provider_options: one dict for each provider.

    Raises:
        ValueError: an option, a name or the model is not as it should be; all problems are listed.
        NotImplementedError: nodes have no kernel or no gradient; all of them are listed.
        FileNotFoundError: there is no file at `model`.
        MemoryError: the least memory of a step is above `memory_budget`.

    Example::

        session = caesura.TrainingSession("net.onnx", loss="cross_entropy", target="labels",
                                          optimizer=caesura.optim.AdamW(lr=1e-3, weight_decay=0.1))
        loss = session.step({"images": images, "labels": labels})
        session.export("trained.onnx")
    """

    _session: _core.Training

    def __init__(self, model: Model, *, loss: Loss = "cross_entropy", target: str = "target", prediction: str = "",
                 also: Sequence[str] = (), class_axis: int = 1, optimizer: Optimizer = AdamW(), trainable: Sequence[str] = (),
                 frozen: Sequence[str] = (), train_constants: bool = False, clip_norm: float = 0.0, accumulation_steps: int = 1,
                 commit: Commit = "late", undo: bool = False, on_failure: OnFailure = "stop", retries: int = 1, parts: int = 2,
                 precision: Precision = "fp32", refuse_nonfinite: bool = False, memory_budget: int = 0,
                 keep_gradients: bool = False, keep_outputs: Sequence[str] = (), schedule: Schedule = "constant",
                 total_steps: int = 0, warmup_steps: int = 0, ranks: Ranks = Ranks(), threads: int = 0, seed: int = 0,
                 custom_ops: Optional[CustomOps] = None, providers: Providers = (CPU,),
                 provider_options: Optional[Sequence[dict[str, Any]]] = None) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer is one of caesura.optim, such as caesura.optim.AdamW(lr=1e-3), got {optimizer!r}")
        self._keep_outputs = tuple(keep_outputs)
        self._session = _core.Training.open(model_source(model), {
            "loss": loss, "target": target, "prediction": prediction, "also": list(also), "class_axis": class_axis,
            "optimizer": type(optimizer).__name__.lower(), "groups": [], "fed": [], "coefficients": optimizer._coefficients(),
            "trainable": list(trainable), "frozen": list(frozen), "train_constants": train_constants,
            "clip_norm": float(clip_norm),
            "accumulation_steps": accumulation_steps, "commit": commit, "undo": undo, "on_failure": on_failure,
            "retries": retries, "parts": parts, "precision": precision,
            "refuse_nonfinite": refuse_nonfinite, "memory_budget": memory_budget,
            "keep_gradients": keep_gradients, "keep_outputs": list(keep_outputs), "schedule": schedule,
            "total_steps": total_steps, "warmup_steps": warmup_steps, "threads": threads, "seed": seed,
            "communicator": communicator(ranks.group), "shard": ranks.shard, "logical_shards": ranks.logical_shards,
            "mean_over": ranks.mean_over, "exchange_dtype": ranks.exchange_dtype, "bucket_bytes": ranks.bucket_bytes,
            "broadcast_buffers": ranks.broadcast_buffers,
            "custom_ops": custom_ops if custom_ops is not None else CustomOps(),
            "providers": native_providers(named_providers(providers, provider_options)),
        })

    def step(self, feeds: Feeds) -> float:
        """Runs one step, or one micro-step where gradients are accumulated; returns the loss before the update.

        Raises:
            Suspended: the step waits in its middle (see `suspend`).
        """
        return self._session.step(feeds)

    def accumulate(self, feeds: Feeds) -> float:
        """Runs a micro-step that only adds its gradients; returns the loss. Needs accumulation_steps=0."""
        return self._session.accumulate(feeds)

    def regroup(self, group: Optional["ProcessGroup"] = None) -> None:
        """Goes on with other ranks, after a RankFailure or with more of them; all call it.

        All take the parameters, optimizer state and position of the rank that has done the most updates. So a step in
        which a rank was lost is done on all survivors, or on none.

        Args:
            group: the ranks from here on, a process group of torch.distributed. None: the default group.

        Raises:
            ValueError: the ranks' steps differ, or no rank has whole parameters.
            RankFailure: a rank does not come to it.

        Example::

            try:
                loss = session.step(feeds)
            except caesura.RankFailure:
                session.regroup(torch.distributed.new_group(survivors, use_local_synchronization=True))
        """
        self._session.regroup(communicator(group))

    # --- steps that stop in their middle ---

    @property
    def suspend(self) -> bool:
        """Suspends the step that runs now and all later ones before their next node, once it is set to True (from any
        thread): step(), accumulate() and resume() raise Suspended, and the step waits. So do evaluate() and
        predict(), which leave nothing. False lets calls run again.
        """
        return self._session.suspend

    @suspend.setter
    def suspend(self, value: bool) -> None:
        self._session.suspend = value

    def suspend_on(self, *signals: int) -> AbstractContextManager[Any]:
        """Sets `suspend` when the process gets one of these signals, within a `with` block.

        A handler of Python's own runs only between steps; this one stops a step within one node.

        Args:
            *signals: of the module signal: SIGTERM, SIGUSR1, ...

        Returns:
            A context manager. One at a time in a process; the handlers from before are back at its end.

        Example::

            with session.suspend_on(signal.SIGTERM):
                try:
                    loss = session.step(feeds)
                except caesura.Suspended:
                    session.save("run.ckpt")
        """
        return _core.SuspendOn(self._session.suspend_flag, [int(s) for s in signals])

    def suspend_after(self, seconds: Optional[float]) -> None:
        """Suspends the step that runs so many seconds from now, and all later ones; None: no more."""
        self._session.suspend_after(seconds)

    def suspend_at(self, node: int, /) -> None:
        """Suspends the next step, or the rest of the one that waits, before this node of its plan, counted from 0 (see plan())."""
        self._session.suspend_at(node)

    @property
    def failures(self) -> dict[str, int | str]:
        """The failures so far: "failed" steps, "skipped" batches, steps "retried" and "saved" thereby, the "last"
        failure as text."""
        return self._session.failures

    @property
    def inconsistent(self) -> list[str]:
        """Names of what a lost step has written to (commit="eager-consume" without `undo`). Until restore() no step runs."""
        return self._session.inconsistent

    @property
    def suspended(self) -> bool:
        """True if a step waits. Until resume() or drop() no other one begins and no parameter is set.

        save() writes the step too, and restore() takes it up, in another process if need be.
        """
        return self._session.suspended

    @property
    def step_differences(self) -> list[str]:
        """The ways in which the step that waits may round otherwise than in the session that began it; empty where it may not."""
        return self._session.step_differences()

    def resume(self) -> float:
        """Goes on with the step that waits, to its end; returns what step() would have returned.

        Raises:
            Suspended: it was suspended again.
            ValueError: no step waits.
        """
        return self._session.resume_step()

    def drop(self) -> None:
        """Gives up the step that waits; nothing was changed by it, unless it waits among its updates without `undo`.

        Raises:
            RuntimeError: it has begun to write to parameters; the session then needs a restore().
            ValueError: no step waits.
        """
        self._session.drop_step()

    def profile_step(self, feeds: Feeds, trace: Path = "") -> str:
        """Runs one step under the profiler; returns a table of time and bytes by op type, the slowest first.

        Args:
            feeds: as for step().
            trace: a path where the step's timeline is written as Chrome-trace JSON, which ui.perfetto.dev opens.
        """
        return self._session.profile_step(feeds, os.fspath(trace))

    def report(self, path: Path, feeds: Feeds, title: str = "training step") -> float:
        """Runs one step, as any other, and writes a page about it: its time by op and by source line, its memory and graph,
        what to try first, and loss and learning rate of the updates so far.

        Args:
            path: the page, one HTML file that needs no other; it replaces a file that is there.
            feeds: as for step().
            title: the page's heading.

        Returns:
            The loss before the update.

        Raises:
            OSError: the file cannot be written; the step was done.

        Example::

            session.step(feeds)  # plans
            loss = session.report("report.html", feeds)
        """
        return self._session.report(feeds, os.fspath(path), title)

    def evaluate(self, feeds: Feeds) -> tuple[float, list[Any]]:
        """Runs forward and loss in evaluation mode; returns (loss, list of the model's outputs). Nothing changes."""
        loss, outputs = self._session.evaluate(feeds)
        torch = holds_torch(feeds.values())
        return loss, [from_value(value, torch) for value in outputs]

    def predict(self, feeds: Feeds) -> list[Any]:
        """Runs the forward in evaluation mode; returns the list of the model's outputs."""
        torch = holds_torch(feeds.values())
        return [from_value(value, torch) for value in self._session.predict(feeds)]

    def parameters(self, frozen: bool = False) -> dict[str, Any]:
        """Returns copies of the trained parameters and running statistics, by the model's names.

        Args:
            frozen: True also returns the model's other floating initializers.
        """
        names = self._session.parameter_names() + (self._session.frozen_names() if frozen else [])
        return {name: from_value(self._session.parameter(name)) for name in names}

    def set_parameter(self, name: str, value: Array) -> None:
        """Copies an array of the same dtype and shape into a parameter, a running statistic or a frozen initializer.

        Raises:
            KeyError: the model has no such parameter.
            ValueError: dtype or shape differ.
        """
        self._session.set_parameter(name, to_value(value))

    def gradients(self) -> dict[str, Any]:
        """Returns the gradients of the last step, by the names of the trained parameters. Needs keep_gradients=True."""
        return dict(zip(self._session.parameter_names(), map(from_value, self._session.gradients())))

    def outputs(self) -> dict[str, Any]:
        """Returns the outputs of the last step that `keep_outputs` names."""
        return dict(zip(self._keep_outputs, map(from_value, self._session.kept_outputs())))

    @property
    def updates(self) -> int:
        """The number of updates done."""
        return self._session.updates

    @property
    def gradient_norm(self) -> float:
        """The global norm of the last update's gradients, before clipping. NaN before the first one, and with clip_norm=0."""
        return self._session.gradient_norm

    @property
    def loss_scale(self) -> float:
        """The factor of the loss in the backward; 1 except with precision="fp16"."""
        return self._session.loss_scale

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update, schedule included. Setting it sets the rate that the schedule
        multiplies.
        """
        return self._session.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._session.learning_rate = rate

    @property
    def terminate(self) -> bool:
        """Ends the call that runs now and all later ones with RuntimeError, once it is set to True (from any thread).

        Nothing is changed by a call that was ended; an update that has begun is finished first. False lets calls run
        again.
        """
        return self._session.terminate

    @terminate.setter
    def terminate(self, value: bool) -> None:
        self._session.terminate = value

    def save(self, path: Path, properties: Optional[Properties] = None) -> None:
        """Writes a checkpoint (safetensors) with parameters, optimizer state, counters, and the step that waits. A crash
        leaves the old one or the new. With shard=1 all ranks call it, and rank 0 writes the file.

        Args:
            path: the file.
            properties: what else restore() shall return, by name: ints, floats and texts, such as a sampler's position.

        Example::

            session.save("run.ckpt", {"epoch": 3, "batch": 17})
        """
        self._session.save(os.fspath(path), dict(properties or {}))

    def restore(self, path: Path, /) -> dict[str, int | float | str]:
        """Goes on from a checkpoint; where a step waits in it, resume() ends that first.

        Returns:
            dict: the properties that save() was given.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the checkpoint does not fit; all differences are listed, and the session stays as it was.
        """
        return self._session.restore(os.fspath(path))

    def export(self, path: Path, outputs: Sequence[str] = ()) -> None:
        """Writes the trained model as ONNX, in evaluation mode.

        Args:
            path: the file.
            outputs: names of the outputs that it shall have, with what they need; empty for all.
        """
        self._session.export(os.fspath(path), list(outputs))

    def save_adapter(self, path: Path) -> None:
        """Writes the adapter that caesura.lora() gave the model, as it is trained now.

        Args:
            path: a folder, which gets adapter_config.json and adapter_model.safetensors, as PEFT has them: it loads into the
                module that the model was exported from. Or a file FILE.onnx_adapter, for onnxruntime.RunOptions and models
                of export(); this needs the package onnxruntime.

        Raises:
            ValueError: the model has no adapter.
            ImportError: onnxruntime is not installed.

        Example::

            session.save_adapter("adapter")
        """
        if is_onnxruntimes(path):
            write_onnxruntimes(path, adapter_matrices(self.parameters()))
        else:
            self._session.save_adapter(os.fspath(path))

    def load_adapter(self, path: Path) -> None:
        """Takes an adapter's values from what save_adapter() or PEFT has written; all of them, or none.

        Args:
            path: as for save_adapter().

        Raises:
            FileNotFoundError: there is no adapter at `path`.
            ValueError: the files are damaged, or rank, alpha, layers or shapes are others than the model's; all that does not fit
                is listed.
            NotImplementedError: the adapter has parts that are no LoRA of linear layers; they are named.
            ImportError: onnxruntime is not installed.

        Example::

            session.load_adapter("adapter")
        """
        if is_onnxruntimes(path):
            for name, value in read_onnxruntimes(path, adapter_matrices(self.parameters())).items():
                self.set_parameter(name, value)
        else:
            self._session.load_adapter(os.fspath(path))

    def export_training(self, path: Path, what: TrainingPart = "step", *, opset: int = 0) -> None:
        """Writes the training step as one ONNX file of ONNX's own operators, which any runtime of ONNX runs.

        Its inputs are those of the model and the target, the parameters and the optimizer state by their names, and
        "caesura.step" (int64, counts updates from 1); its outputs "caesura.loss", what `keep_outputs` names,
        "gradient.NAME" with `keep_gradients`, "caesura.gradient_norm" (float64, before clipping) with `clip_norm`,
        "caesura.gradient_scale" (float64, not finite: nothing was updated) where the loss is scaled, and "updated.NAME" for
        each input NAME that a step changes. Inputs with defaults may be left out: parameters, state,
        "caesura.learning_rate" (float64) and "caesura.seed" (int64) are as they are in the session now. A step that draws
        random numbers also has the input "caesura.draw" (int64, steps so far).

        Args:
            path: the file.
            what: "step"; "accumulate": the micro-steps that only add their gradients, where `accumulation_steps` is not 1
                (these and their "step" have the input "caesura.reset", a bool: the first of an update); "gradients": the
                loss and "gradient.NAME" of each parameter, without an update.
            opset: that of the file, from 13 on, for an older runtime; 0: the lowest from 17 on that has all operators as newest.

        Raises:
            NotImplementedError: the opset has no operators for nodes, all of which are listed; nothing is written.
            ValueError: `what` or `opset` is none of these.

        Example::

            session.export_training("step.onnx")
        """
        self._session.export_training(os.fspath(path), what, opset)

    def plan(self, feeds: Feeds) -> Plan:
        """Returns the Plan of a step for feeds of these shapes: its text, and the bytes of its arena. Nothing is run."""
        return Plan(*self._session.plan(feeds))

    def memory(self, feeds: Feeds) -> Memory:
        """Returns the Memory of a step for feeds of these shapes: parameters, gradients, optimizer state, arena and peak. Nothing
        is run."""
        return Memory(*self._session.step_memory(feeds))

    @classmethod
    def open(cls, folder: Path, *, threads: int = 0, seed: int = 0) -> "TrainingSession":
        """Opens a step that CompiledStep.export() has written, where it was when it was written or saved last.

        Loss, optimizer, groups, clipping and accumulation are the folder's own.

        Args:
            folder: the folder.
            threads: Threads to a kernel; 0: CAESURA_NUM_THREADS, or as many as OpenMP takes.
            seed: Seeds dropout and other random ops.

        Returns:
            TrainingSession: the session; its save() into the folder's state.safetensors is read back by caesura.load().

        Raises:
            FileNotFoundError: the folder holds no step.
            ValueError: entries of the folder are not as they should be; they are named.

        Example::

            session = caesura.TrainingSession.open("step")
            loss = session.step({"input": images, "target": labels})
            session.save("step/state.safetensors")
        """
        session = cls.__new__(cls)
        session._keep_outputs = ()
        session._session = _core.Training.open_step(os.fspath(folder), threads, seed)
        return session

    def __repr__(self) -> str:
        return f"TrainingSession({len(self._session.parameter_names())} trained parameters, {self.updates} updates)"
