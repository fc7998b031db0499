# SPDX-License-Identifier: Apache-2.0
"""The optimizers of a TrainingSession: PyTorch's names, arguments and defaults, without PyTorch.

    session = caesura.TrainingSession("net.onnx", optimizer=caesura.optim.AdamW(lr=3e-4, weight_decay=0.1))

An optimizer here is a value without state: the session keeps its state. Lamb and Lion, which PyTorch does not have, take the
arguments of their papers.
"""

from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Literal, Optional, Union

__all__ = ["ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Lamb", "Lion", "Muon", "NAdam", "Optimizer",
           "RAdam", "RMSprop", "Rprop", "SGD"]

# Arguments, and the coefficients of training/optimizer/optimizer.h; others have one name there and here.
_COEFFICIENTS = {"lr": ("learning_rate",), "betas": ("beta1", "beta2"), "etas": ("eta_minus", "eta_plus"),
                 "step_sizes": ("step_size_min", "step_size_max"), "ns_coefficients": ("ns_a", "ns_b", "ns_c")}


class Optimizer:
    """The base of all optimizers.

    Raises:
        ValueError: a pair such as `betas` has another number of values.
        TypeError: an argument is no number.
    """

    def __post_init__(self) -> None:
        self._coefficients()

    def _coefficients(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, value in self._values().items():
            names = _COEFFICIENTS.get(name, ("epsilon",) if name == "eps" else (name,))
            values = value if isinstance(value, (tuple, list)) else (value,)
            if len(values) != len(names):
                raise ValueError(f"{type(self).__name__}: {name} is {len(names)} number(s), got {value!r}")
            found |= zip(names, map(float, values))
        return found

    def _values(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]


@dataclass(frozen=True)
class SGD(Optimizer):
    """torch.optim.SGD.

    Example::

        optimizer = caesura.optim.SGD(lr=0.1, momentum=0.9)
    """

    lr: float = 1e-3
    momentum: float = 0
    dampening: float = 0
    weight_decay: float = 0
    nesterov: bool = False
    _: KW_ONLY
    maximize: bool = False


@dataclass(frozen=True)
class Adam(Optimizer):
    """torch.optim.Adam: weight decay as L2."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0
    amsgrad: bool = False
    _: KW_ONLY
    maximize: bool = False


@dataclass(frozen=True)
class AdamW(Optimizer):
    """torch.optim.AdamW: decoupled weight decay.

    Example::

        optimizer = caesura.optim.AdamW(lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2
    amsgrad: bool = False
    _: KW_ONLY
    maximize: bool = False


@dataclass(frozen=True)
class NAdam(Optimizer):
    """torch.optim.NAdam: Adam with Nesterov momentum."""

    lr: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0
    momentum_decay: float = 4e-3
    decoupled_weight_decay: bool = False
    _: KW_ONLY
    maximize: bool = False


@dataclass(frozen=True)
class RAdam(Optimizer):
    """torch.optim.RAdam: Adam with a rectified variance."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0
    decoupled_weight_decay: bool = False
    _: KW_ONLY
    maximize: bool = False


@dataclass(frozen=True)
class Adamax(Optimizer):
    """torch.optim.Adamax."""

    lr: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0
    _: KW_ONLY
    maximize: bool = False


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """torch.optim.Adagrad."""

    lr: float = 1e-2
    lr_decay: float = 0
    weight_decay: float = 0
    initial_accumulator_value: float = 0
    eps: float = 1e-10
    _: KW_ONLY
    maximize: bool = False


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """torch.optim.Adadelta."""

    lr: float = 1.0
    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0
    _: KW_ONLY
    maximize: bool = False


@dataclass(frozen=True)
class ASGD(Optimizer):
    """torch.optim.ASGD."""

    lr: float = 1e-2
    lambd: float = 1e-4
    alpha: float = 0.75
    t0: float = 1e6
    weight_decay: float = 0
    _: KW_ONLY
    maximize: bool = False


@dataclass(frozen=True)
class Rprop(Optimizer):
    """torch.optim.Rprop."""

    lr: float = 1e-2
    etas: tuple[float, float] = (0.5, 1.2)
    step_sizes: tuple[float, float] = (1e-6, 50)
    _: KW_ONLY
    maximize: bool = False


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """torch.optim.RMSprop."""

    lr: float = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0
    momentum: float = 0
    centered: bool = False
    _: KW_ONLY
    maximize: bool = False


@dataclass(frozen=True)
class Adafactor(Optimizer):
    """torch.optim.Adafactor. The first of `eps` may be None: the smallest step from 1 of a parameter's dtype."""

    lr: float = 1e-2
    beta2_decay: float = -0.8
    eps: tuple[Optional[float], float] = (None, 1e-3)
    d: float = 1.0
    weight_decay: float = 0.0
    _: KW_ONLY
    maximize: bool = False

    def _values(self) -> dict[str, Any]:
        first, second = self.eps
        values = super()._values()
        del values["eps"]
        return values | {"epsilon1": -1.0 if first is None else first, "epsilon2": second}


@dataclass(frozen=True)
class Muon(Optimizer):
    """torch.optim.Muon, of matrices. `adjust_lr_fn` names how the learning rate depends on the matrix; None is "original"."""

    lr: float = 1e-3
    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315)
    eps: float = 1e-7
    ns_steps: int = 5
    adjust_lr_fn: Union[Literal["original", "match_rms_adamw", "spectral_unclamped"], None] = None

    def _values(self) -> dict[str, Any]:
        values = super()._values()
        adjust = values.pop("adjust_lr_fn")
        if adjust not in (None, "original", "match_rms_adamw", "spectral_unclamped"):
            raise ValueError(f"Muon: adjust_lr_fn is 'original', 'match_rms_adamw' or 'spectral_unclamped', got {adjust!r}")
        return values | ({adjust: True} if adjust in ("match_rms_adamw", "spectral_unclamped") else {})


@dataclass(frozen=True)
class Lamb(Optimizer):
    """LAMB (You et al. 2020), with bias correction."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 1e-2


@dataclass(frozen=True)
class Lion(Optimizer):
    """Lion (Chen et al. 2023)."""

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0
