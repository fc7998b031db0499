# SPDX-License-Identifier: Apache-2.0
"""The loops of Trainer, Accelerate and Lightning give the same losses through caesura.wrap as without it."""

import importlib.util
import pathlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import caesura  # noqa: E402

_PATH = pathlib.Path(__file__).parents[3] / "examples" / "finetune" / "finetune.py"
_spec = importlib.util.spec_from_file_location("finetune", _PATH)
finetune = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(finetune)


@pytest.mark.parametrize("loop", finetune.LOOPS)
def test_losses_follow_eager(loop):
    if loop in ("accelerate", "lightning"):
        pytest.importorskip(loop)
    torch._dynamo.reset()
    data = finetune.Text(64)
    expected = finetune.LOOPS[loop](finetune.make_model(), data, 4)
    caesura.reports.reset()
    actual = finetune.LOOPS[loop](caesura.wrap(finetune.make_model()), data, 4)
    assert actual == pytest.approx(expected, rel=1e-3 if loop == "trainer" else 1e-5)  # Trainer's log has three digits
    assert len(actual) == 4 and caesura.stats().kernel_share > 0.95
