# SPDX-License-Identifier: Apache-2.0
"""transformers: Trainers that train by compile_step, and a callback that has the model of any Trainer run in caesura."""

import math
from collections.abc import Mapping
from typing import Any, Optional

import torch
import transformers
from transformers.trainer_utils import has_length
from transformers.training_args import OptimizerNames

from caesura.frontends.compile_step import CompiledStep, compile_step
from caesura.frontends.fuse import fuse
from caesura.integrations.accelerate import ranks_of, why_not
from caesura.integrations.in_place import unwrapped, wrap_in_place
from caesura.integrations.whole_step import WholeStep

__all__ = ["CaesuraCallback", "CaesuraMixin", "CaesuraTrainer"]


class CaesuraCallback(transformers.TrainerCallback):
    """Has forward and backward of a Trainer's model run in caesura, in training, evaluation and prediction.

    It wraps the model as caesura.wrap() says, whoever has made it, and makes a step of the optimizer one call, as
    caesura.fuse() says: `Trainer(model=caesura.wrap(model), optimizers=(caesura.fuse(optimizer), schedule))` does the same for
    a model and an optimizer of yours. The names in checkpoints stay the same, so training resumes with or without the callback. The
    model stays wrapped after the run. Calls without a kernel warn; `with caesura.strict(): trainer.train()` forbids
    them.

    `Trainer(callbacks=[...])` wraps at once. `trainer.add_callback(...)` wraps when training begins.

    Raises:
        TypeError: from the Trainer: its model is no torch.nn.Module.

    Example::

        trainer = transformers.Trainer(model, arguments, train_dataset=data,
                                       callbacks=[caesura.integrations.transformers.CaesuraCallback()])
        trainer.train()
    """

    def on_init_end(self, args: transformers.TrainingArguments, state: transformers.TrainerState, control: transformers.TrainerControl,
                    model: Any = None, **kwargs: Any) -> None:
        """Wraps the model; Trainer calls it when it has one."""
        wrap_in_place(model)

    def on_train_begin(self, args: transformers.TrainingArguments, state: transformers.TrainerState, control: transformers.TrainerControl,
                       model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        """Wraps the model and fuses the optimizer, which Accelerate may hold in one of its own."""
        wrap_in_place(model)
        fuse(getattr(optimizer, "optimizer", optimizer))


class CaesuraMixin:
    """Makes a Trainer train by caesura.compile_step(): forward, loss, backward, clipping and update are one program.

    For Trainers of other libraries and of your own; transformers' is CaesuraTrainer. Losses, gradient norms, learning rates,
    callbacks, evaluation, best model and checkpoints are the Trainer's, and a checkpoint resumes with or without it. The
    update happens in training_step(): `on_pre_optimizer_step` comes after it, and parameters have no .grad.

    Where an argument or the model does not allow that, a FallbackWarning tells why, and the Trainer trains as with
    CaesuraCallback, by wrap() and fuse(). `refused` has the reason; None: there is none.

    Args:
        *args: the Trainer's.
        step_options: more arguments of compile_step(): masks, memory_budget, dynamic, threads, ranks.
        **kwargs: the Trainer's.

    Raises:
        TypeError: when training begins: `step_options` has a name that compile_step() does not take.
        StrictError: within strict(), where training would go by wrap() and fuse().

    Example::

        class PairTrainer(caesura.integrations.transformers.CaesuraMixin, SentenceTransformerTrainer):
            pass
    """

    # The Trainer's.
    model: Any
    optimizer: Any
    accelerator: Any
    args: Any
    callback_handler: Any
    current_gradient_accumulation_steps: int
    model_accepts_loss_kwargs: bool
    compute_loss: Any
    compute_loss_func: Any
    label_smoother: Any
    _prepare_inputs: Any

    def __init__(self, *args: Any, step_options: Optional[Mapping[str, Any]] = None, **kwargs: Any) -> None:
        self._step_options = dict(step_options or {})
        self._whole: Optional[WholeStep] = None
        super().__init__(*args, **kwargs)
        if getattr(self, "model", None) is not None:
            wrap_in_place(self.model)

    @property
    def refused(self) -> Optional[str]:
        """Why training goes by wrap() and fuse(); None where it goes by compile_step(), or has not begun."""
        return None if self._whole is None else self._whole.refused

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Makes the optimizer as the Trainer does; it calls this when training begins, with the model that it trains."""
        if self._whole is not None:
            self._whole.close()
            self._whole = None
            del self.accelerator.clip_grad_norm_
        wrap_in_place(self.model)
        return super().create_optimizer(*args, **kwargs)  # type: ignore[misc, no-any-return]

    def training_step(self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Trains with one batch, and updates if it is the last one before an update. Returns the loss as the Trainer does."""
        if self._whole is None:
            self._whole = self._make_whole(model)
        if self._whole.refused is not None:
            return super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc, no-any-return]
        model.train()
        self.optimizer.train()  # Accelerate's does nothing where PyTorch's has no such method
        count = self.current_gradient_accumulation_steps
        args, kwargs = self._arguments(self._prepare_inputs(inputs), num_items_in_batch, count)
        loss = self._whole.train(count, self.accelerator.sync_gradients, *args, **kwargs)
        if loss is None:
            return super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc, no-any-return]
        device: torch.device = self.args.device
        return (loss / count).to(device)

    def _arguments(self, inputs: Any, items: Any, count: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the compiled step. It takes the mean of `count` batches' and all ranks' gradients, the Trainer their sum
        where the loss is divided by the items of all of them."""
        if not self._calls_model:
            return (inputs, items), {}
        if not self.model_accepts_loss_kwargs or items is None:
            return (), dict(inputs)
        parts = count * (self.accelerator.num_processes if self.args.average_tokens_across_devices else 1)
        return (), {**inputs, "num_items_in_batch": items if parts == 1 else torch.as_tensor(items) / parts}

    def _make_whole(self, model: torch.nn.Module) -> WholeStep:
        computes = type(self).compute_loss is not transformers.Trainer.compute_loss
        self._calls_model = not computes and self.label_smoother is None and self.compute_loss_func is None
        plain = unwrapped(model)

        def make(count: int) -> CompiledStep:
            module = plain if self._calls_model else _ComputedLoss(self, plain, count)
            return compile_step(module, None, optimizer, clip_norm=self.args.max_grad_norm or math.inf, accumulation_steps=count,
                                **{"ranks": ranks_of(model), **self._step_options})

        def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
            return clip(*args, **kwargs) if whole.refused is not None else torch.tensor(whole.gradient_norm)

        optimizer, clip = getattr(self.optimizer, "optimizer", self.optimizer), self.accelerator.clip_grad_norm_
        whole = WholeStep(type(self).__name__, [optimizer], make, self._why_not())
        self.accelerator.clip_grad_norm_ = clip_grad_norm_  # which the Trainer asks for the norm that it logs
        return whole

    def _why_not(self) -> Optional[str]:
        """The argument that a compiled step does not allow; None if there is none."""
        args = self.args
        if args.n_gpu > 1:
            return f"DataParallel over {args.n_gpu} GPUs: start a process for each"
        if args.optim in (OptimizerNames.LOMO, OptimizerNames.ADALOMO):
            return f"optim={args.optim.value!r} updates in the backward"
        if args.torch_compile:
            return "torch_compile=True gives the model to torch.compile"
        if args.gradient_accumulation_steps > 1 and not has_length(self.callback_handler.train_dataloader):
            return f"gradient_accumulation_steps={args.gradient_accumulation_steps} with a data set of unknown length"
        return why_not(self.accelerator)


class _ComputedLoss(torch.nn.Module):
    """A Trainer's compute_loss() of its inputs, as a compiled step of `count` batches to one update takes the mean of it."""

    def __init__(self, trainer: Any, model: torch.nn.Module, count: int) -> None:
        super().__init__()
        self.trainer, self.model, self.count = trainer, model, count

    def forward(self, inputs: dict[str, Any], items: Any) -> torch.Tensor:
        loss: torch.Tensor = self.trainer.compute_loss(self.model, dict(inputs), num_items_in_batch=items)
        takes_mean = (not self.trainer.model_accepts_loss_kwargs or items is None) and self.trainer.compute_loss_func is None
        return loss if takes_mean else loss * self.count


class CaesuraTrainer(CaesuraMixin, transformers.Trainer):
    """transformers.Trainer, training by caesura.compile_step() as CaesuraMixin says.

    Args:
        *args: Trainer's.
        step_options: more arguments of compile_step(): masks, memory_budget, dynamic, threads, ranks.
        **kwargs: Trainer's.

    Raises:
        TypeError: when training begins: `step_options` has a name that compile_step() does not take.
        StrictError: within strict(), where training would go by wrap() and fuse().

    Example::

        trainer = caesura.integrations.transformers.CaesuraTrainer(model=model, args=arguments, train_dataset=data)
        trainer.train()
    """
