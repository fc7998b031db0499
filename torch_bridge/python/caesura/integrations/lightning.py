# SPDX-License-Identifier: Apache-2.0
"""Lightning: a callback that has the modules of a LightningModule run in caesura."""

from collections.abc import Iterator, Sequence

import torch

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:  # the same under the older distribution's name
    from pytorch_lightning import Callback, LightningModule, Trainer  # type: ignore[assignment]

from caesura.frontends.fuse import fuse
from caesura.integrations.in_place import wrap_in_place

__all__ = ["CaesuraCallback"]


class CaesuraCallback(Callback):
    """Has forward and backward of a LightningModule run in caesura, in fit, validate, test and predict.

    The callback wraps each module that the LightningModule has as an attribute and that has parameters, as
    caesura.wrap() says; lists and dicts of modules are wrapped item by item. It also wraps the LightningModule's own
    `forward`, except where the strategy trains through another module (DDP). Steps of the optimizers become one call, as
    caesura.fuse() says. Losses and metrics run in PyTorch.

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
        if self.modules is not None:
            chosen = [pl_module.get_submodule(name) for name in self.modules]
        else:
            chosen = list(_called(pl_module))
            has_forward = _overrides_forward(pl_module, LightningModule)
            if has_forward and trainer.strategy.model is pl_module:
                chosen.append(pl_module)
        for module in chosen:
            wrap_in_place(module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fuses the optimizers; Lightning calls it when they have the state that a run goes on from."""
        for optimizer in trainer.optimizers:
            fuse(optimizer)

    on_validation_start = on_test_start = on_predict_start = on_fit_start


def _overrides_forward(module: torch.nn.Module, base: type[torch.nn.Module]) -> bool:
    return type(module).forward is not base.forward


def _called(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The modules with parameters among a module's children; the items of those that only hold others."""
    for child in module.children():
        if not _overrides_forward(child, torch.nn.Module):
            yield from _called(child)
        elif next(child.parameters(), None) is not None:
            yield child
