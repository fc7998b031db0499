# SPDX-License-Identifier: Apache-2.0
"""transformers: a callback that has the model of a Trainer run in caesura."""

from typing import Any

import transformers

from caesura.frontends.fuse import fuse
from caesura.integrations.in_place import wrap_in_place

__all__ = ["CaesuraCallback"]


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
