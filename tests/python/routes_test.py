# SPDX-License-Identifier: Apache-2.0
"""A module as exported ONNX and as a captured step: the same ops and fusions in the plan."""

import collections
import re

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import caesura  # noqa: E402
from caesura.bench import models  # noqa: E402

TIME, VOCABULARY = 16, 40
GPT = models.GptSizes(layers=2, width=32, heads=4, time=TIME, vocabulary=VOCABULARY)
LLAMA = models.LlamaSizes(layers=2, width=32, hidden=64, heads=4, kv_heads=2, time=TIME, vocabulary=VOCABULARY)
# What the exporter's graph has more, in each of the two layers: repeated keys that nothing but shape computations reads any
# more. (The mask of causal attention, which the captured op has as an attribute, is folded.)
EXPORTED_ALONE = {"gpt": {}, "llama": {"Expand": 2}}


def ops(plan: str) -> collections.Counter:
    """How many steps of each op a plan has."""
    return collections.Counter(re.findall(r"^\d+ compute \[(?:[\w.]+::)?(\w+) ", plan, re.M))


@pytest.mark.parametrize("name, build", [("gpt", lambda: models.Gpt(GPT)), ("llama", lambda: models.Llama(LLAMA))])
def test_both_routes_end_in_the_same_plan(name, build, tmp_path):
    torch.manual_seed(0)
    torch._dynamo.reset()
    module = build().train()
    tokens, target = torch.randint(0, VOCABULARY, (4, TIME)), torch.randint(0, VOCABULARY, (4 * TIME,))
    with caesura.strict():
        step = caesura.compile_step(module, torch.nn.functional.cross_entropy, torch.optim.AdamW(module.parameters()))
        program = step.capture(tokens, target)
    feeds = {"tokens": tokens, "target": target} | dict(program.constants)
    captured, captured_bytes = program.session.plan(feeds)

    torch.onnx.export(module, (tokens,), tmp_path / "module.onnx", dynamo=True, optimize=False, verbose=False,
                      input_names=["tokens"], output_names=["scores"])
    session = caesura.TrainingSession(tmp_path / "module.onnx", optimizer="adamw")
    assert session.parameters().keys() == dict(module.named_parameters()).keys()  # no rotary tables, which are buffers
    exported, exported_bytes = session.plan({"tokens": tokens, "target": target})

    assert ops(captured)["FusedRows"] > 5 and ops(captured)["FusedMatMul"] > 5 and ops(captured)["AttentionGrad"] == 2
    assert ops(captured) - ops(exported) == collections.Counter()
    assert ops(exported) - ops(captured) == collections.Counter(EXPORTED_ALONE[name])
    assert captured_bytes <= exported_bytes
