# SPDX-License-Identifier: Apache-2.0
"""The systems, a module for each family. Each module defines:

    load(system, folder, job) -> (step, make_batch)
        from what export.prepare wrote into folder, ready to train: make_batch(x, y) gives the arguments of step; step
        runs one whole training step and returns a loss that float() accepts. Imports belong at the top of the module,
        so that they do not count as part of the first step.
    capture(system, folder, job)
        optional: writes the files that load reads, in an earlier process.
    Runner
        in place of load, for a system that does not train: see worker.Runner.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class System:
    module: str           # in this package
    about: str
    home: str = ""        # "": our environment; else the folder of its environment beneath the peers
    captures: tuple = ()  # whose capture() comes before
    imports_caesura: bool = False


SYSTEMS = {
    "caesura": System("caesura_session", "ONNX export of the module in caesura.TrainingSession",
                      captures=("caesura",), imports_caesura=True),
    "caesura-early": System("caesura_session", 'the same with commit="eager-consume": each gradient used up at once',
                            captures=("caesura",), imports_caesura=True),
    "caesura-step": System("caesura_torch", "caesura.compile_step of the module, AdamW's updates in it", imports_caesura=True),
    "caesura-wrap": System("caesura_torch", "caesura.wrap of the module, PyTorch's AdamW(fused=True)", imports_caesura=True),
    "eager": System("pytorch", "PyTorch, plain AdamW"),
    "eager-fused": System("pytorch", "PyTorch, AdamW(fused=True)"),
    "eager-foreach": System("pytorch", "PyTorch, AdamW(foreach=True)"),
    "compile": System("pytorch", "torch.compile of model and loss, AdamW(fused=True)"),
    "compile-step": System("pytorch", "torch.compile of model and loss, and of the optimizer's step"),
    "ortmodule": System("onnxruntime_training", "ORTModule of onnxruntime-training 1.19.2, AdamW(fused=True)",
                        home="onnxruntime-training"),
    "ort-on-device": System("onnxruntime_training", "on-device training of onnxruntime-training 1.19.2",
                            home="onnxruntime-training", captures=("caesura", "ort-on-device")),
    "jax": System("jax_step", "jax.jit of a whole step, written by hand", home="jax"),
    "bound": System("bound", "the step's matrix products alone in oneDNN, and AdamW's traffic as one copy",
                    imports_caesura=True),
}
