# SPDX-License-Identifier: Apache-2.0
"""Lightning: strategies that train by compile_step, and a callback that has the modules of a LightningModule run in caesura."""

import dis
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import torch

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.plugins.precision import MixedPrecision, Precision
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
except ImportError:  # the same under the older distribution's name
    from pytorch_lightning import Callback, LightningModule, Trainer  # type: ignore[assignment]
    from pytorch_lightning.plugins.precision import MixedPrecision, Precision  # type: ignore[assignment]
    from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy  # type: ignore[assignment]

from caesura.frontends.clip import clip_grad_norm_
from caesura.frontends.compile_step import CompiledStep, compile_step
from caesura.frontends.fuse import fuse
from caesura.integrations.in_place import unwrapped, wrap_in_place
from caesura.integrations.whole_step import WholeStep

__all__ = ["CaesuraCallback", "CaesuraDDPStrategy", "CaesuraStrategy"]


class CaesuraCallback(Callback):
    """Has forward and backward of a LightningModule run in caesura, in fit, validate, test and predict.

    The callback wraps each module that the LightningModule has as an attribute and that has parameters, as
    caesura.wrap() says; lists and dicts of modules are wrapped item by item. It also wraps the LightningModule's own
    `forward`, except where the strategy trains through another module (DDP). Steps of the optimizers become one call, as
    caesura.fuse() says, and so does clipping by norm, as caesura.clip_grad_norm_() says. Losses and metrics run in PyTorch.

    The names in checkpoints stay the same, so training resumes with or without the callback. The modules stay wrapped
    after the run. Calls without a kernel warn; `with caesura.strict(): trainer.fit(...)` forbids them.

    Args:
        modules: names of the modules to wrap, such as ["model", "gan.generator"]; None: as above.

    Raises:
        AttributeError: from fit, validate, test or predict: the LightningModule has no module of a given name.

    Example::

        trainer = lightning.Trainer(callbacks=[caesura.integrations.lightning.CaesuraCallback()])
        trainer.fit(task, loader)
    """

    def __init__(self, modules: Sequence[str] | None = None) -> None:
        self.modules = modules

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wraps the modules; Lightning calls it when all of them are made."""
        if self.modules is None:
            _wrap_called(trainer, pl_module)
        else:
            for module in [pl_module.get_submodule(name) for name in self.modules]:
                wrap_in_place(module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fuses the optimizers, and clipping; Lightning calls it when they have the state that a run goes on from."""
        for optimizer in trainer.optimizers:
            fuse(optimizer)
        precision: Any = trainer.precision_plugin

        def clip_grad_by_norm(optimizer: torch.optim.Optimizer, clip_val: float) -> None:
            clip_grad_norm_(precision.main_params(optimizer), clip_val)

        if type(precision).clip_grad_by_norm is Precision.clip_grad_by_norm:  # not of FSDP, whose gradients are parts
            precision.clip_grad_by_norm = clip_grad_by_norm

    on_validation_start = on_test_start = on_predict_start = on_fit_start


def _wrap_called(trainer: Trainer, task: LightningModule) -> None:
    """Wraps the modules that a LightningModule calls, and itself where it has a forward that the strategy calls directly."""
    for module in _called(task):
        wrap_in_place(module)
    if _overrides_forward(task, LightningModule) and trainer.strategy.model is task:
        wrap_in_place(task)


def _overrides_forward(module: torch.nn.Module, base: type[torch.nn.Module]) -> bool:
    return type(module).forward is not base.forward


def _called(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The modules with parameters among a module's children; the items of those that only hold others."""
    for child in module.children():
        if not _overrides_forward(child, torch.nn.Module):
            yield from _called(child)
        elif next(child.parameters(), None) is not None:
            yield child


class _TrainingStep(torch.nn.Module):
    """The training_step() of a LightningModule. What it logs, and what it returns beside the loss, is left in `logged` and `extra`."""

    def __init__(self, task: Any, precision: Precision) -> None:
        super().__init__()
        self.task, self.precision = task, precision
        self.reads_index = _reads_argument(task.training_step, 1)
        self.logged: list[Any] = []
        self.extra: dict[str, Any] = {}

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        with self.precision.forward_context():
            out = self.task.training_step(*args, **kwargs)
        if isinstance(out, torch.Tensor):
            return out
        if len(out) > 1:
            self.extra = {name: value for name, value in out.items() if name != "loss"}
        loss: torch.Tensor = out["loss"]
        return loss

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Stands for the LightningModule's within a step."""
        self.logged.append((name, value, args, kwargs))


def _reads_argument(method: Any, position: int) -> bool:
    """True if a method may read its argument at that position; self is none of them."""
    code = getattr(getattr(method, "__func__", None), "__code__", None)
    if code is None or code.co_argcount <= position + 1:
        return True
    name = code.co_varnames[position + 1]
    return any(name == i.argval or isinstance(i.argval, tuple) and name in i.argval for i in dis.get_instructions(code))


class _ByCompiledStep:
    """The part of a strategy that trains by a compiled step."""

    # The strategy's.
    lightning_module: Any
    precision_plugin: Any
    optimizers: list[torch.optim.Optimizer]
    world_size: int

    def __init__(self, *args: Any, step_options: Optional[Mapping[str, Any]] = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._step_options = dict(step_options or {})
        self._whole: Optional[WholeStep] = None
        self._wrapped: list[tuple[torch.nn.Module, type, type]] = []  # each module, its class, and that of the plain one
        self._updates = self._has_trained = False
        self._sums: Optional[dict[str, Any]] = None  # of a checkpoint, until training begins

    @property
    def refused(self) -> Optional[str]:
        """Why training goes by wrap() and fuse(); None where it goes by compile_step(), or has not begun."""
        return None if self._whole is None else self._whole.refused

    def setup(self, trainer: Trainer) -> None:
        """Sets up as the strategy does, and wraps the modules, for evaluation."""
        super().setup(trainer)  # type: ignore[misc]
        _wrap_called(trainer, self.lightning_module)
        modules = [(module, type(module), type(unwrapped(module))) for module in self.lightning_module.modules()]
        self._wrapped = [(module, kind, plain) for module, kind, plain in modules if plain is not kind]

    def on_train_start(self) -> None:
        """Lightning calls it when the optimizers have the state that a run goes on from."""
        super().on_train_start()  # type: ignore[misc]
        task = self.lightning_module
        self._part = _TrainingStep(unwrapped(task), self.precision_plugin)
        norm = task.trainer.gradient_clip_val or 0.0

        def make(count: int) -> CompiledStep:
            return compile_step(self._part, None, self.optimizers[0], clip_norm=norm, accumulation_steps=count, **self._step_options)

        self._whole = WholeStep(type(self).__name__, self.optimizers, make, self._why_not())
        if self._sums is not None:
            self._whole.take_sums(self._sums)
            self._sums = None

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Trains with one batch, and updates if it is the last one before an update."""
        self._has_trained = False
        loss = self._train(*args, **kwargs)
        if loss is None:
            return super().training_step(*args, **kwargs)  # type: ignore[misc]
        self._has_trained = True
        task, logged, extra = self.lightning_module, self._part.logged, self._part.extra
        for name, value, more, options in logged:
            task.log(name, value.detach() if isinstance(value, torch.Tensor) else value, *more, **options)
        return {"loss": loss, **extra} if extra else loss

    def _train(self, *args: Any, **kwargs: Any) -> Optional[torch.Tensor]:
        task, part = self.lightning_module, self._part
        part.logged, part.extra = [], {}
        if len(args) > 1 and not part.reads_index:
            args = (args[0], 0, *args[2:])  # calls that differ in nothing go the short way
        assert self._whole is not None  # since on_train_start()
        wrapped = self._wrapped if self._whole.refused is None else []
        for module, _, plain in wrapped:  # a step captured from wrapped modules would go the long way
            module.__class__ = plain
        vars(task)["log"] = part.log
        try:
            return self._whole.train(task.trainer.accumulate_grad_batches, self._updates, *args, **kwargs)
        finally:
            del vars(task)["log"]
            for module, kind, _ in wrapped:
                module.__class__ = kind

    def backward(self, closure_loss: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Leaves out the backward that training_step() has done; hooks around it are called."""
        if not self._has_trained:
            return super().backward(closure_loss, *args, **kwargs)  # type: ignore[misc, no-any-return]
        task = self.lightning_module
        closure_loss = self.precision_plugin.pre_backward(closure_loss, task)
        loss: torch.Tensor = self.precision_plugin.post_backward(closure_loss, task)
        return loss

    def optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        """Lightning calls it where a batch is the last one before an update; the closure trains with the batch."""
        self._updates = True
        try:
            return super().optimizer_step(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._updates = False

    def save_checkpoint(self, checkpoint: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Saves as Lightning does; in "caesura" the gradients of an update that is half accumulated, where there is one process."""
        if self._whole is not None and self.world_size == 1 and (sums := self._whole.sums()) is not None:
            checkpoint["caesura"] = sums
        super().save_checkpoint(checkpoint, *args, **kwargs)  # type: ignore[misc]

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Loads as Lightning does."""
        checkpoint: dict[str, Any] = super().load_checkpoint(*args, **kwargs)  # type: ignore[misc]
        self._sums = checkpoint.get("caesura")
        return checkpoint

    def _why_not(self) -> Optional[str]:
        """The option that a compiled step does not allow; None if there is none."""
        task, trainer = self.lightning_module, self.lightning_module.trainer
        if not task.automatic_optimization:
            return "automatic_optimization=False: the LightningModule calls backward() and step() itself"
        if len(self.optimizers) != 1:
            return f"{len(self.optimizers)} optimizers"
        if trainer.gradient_clip_val and trainer.gradient_clip_algorithm not in (None, "norm"):
            return f"gradient_clip_algorithm={trainer.gradient_clip_algorithm.value!r}"
        precision = self.precision_plugin
        if type(precision) not in (Precision, MixedPrecision) or getattr(precision, "scaler", None) is not None:
            return f"precision={precision.precision!r}"
        hooks = [name for name in ("configure_gradient_clipping", "optimizer_step", "optimizer_zero_grad", "backward")
                 if getattr(type(task), name) is not getattr(LightningModule, name)]
        return f"{type(task).__name__} overrides {hooks[0]}()" if hooks else None


class CaesuraStrategy(_ByCompiledStep, SingleDeviceStrategy):
    """Lightning's SingleDeviceStrategy, training by caesura.compile_step(): a LightningModule's training_step, backward, clipping
    and update are one program.

    Hooks, callbacks, logs and checkpoints are Lightning's, and a checkpoint resumes with or without it.

    Args:
        *args: SingleDeviceStrategy's.
        step_options: more arguments of compile_step(): masks, memory_budget, dynamic, threads, ranks.
        **kwargs: SingleDeviceStrategy's.

    Raises:
        TypeError: when training begins: `step_options` has a name that compile_step() does not take.
        StrictError: within strict(), where training would go by wrap() and fuse().

    Example::

        trainer = lightning.Trainer(strategy=caesura.integrations.lightning.CaesuraStrategy())
        trainer.fit(task, loader)
    """


class CaesuraDDPStrategy(_ByCompiledStep, DDPStrategy):
    """Lightning's DDPStrategy, training as CaesuraStrategy does: the program exchanges gradients as well.

    Args:
        *args: DDPStrategy's.
        step_options: more arguments of compile_step(): masks, memory_budget, dynamic, threads, ranks.
        **kwargs: DDPStrategy's.

    Raises:
        TypeError: when training begins: `step_options` has a name that compile_step() does not take.
        StrictError: within strict(), where training would go by wrap() and fuse().

    Example::

        trainer = lightning.Trainer(strategy=caesura.integrations.lightning.CaesuraDDPStrategy(), devices=2)
    """
