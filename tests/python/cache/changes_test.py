# SPDX-License-Identifier: Apache-2.0
"""A call notices a change since the last call, if this process captured it, and if it came from disk."""

import json
import os
import warnings

import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402
from caesura.capture import frames  # noqa: E402
from caesura.frontends import wrap as wrapping  # noqa: E402
from changes import CALLS, CHANGES, Net, difference, outcome  # noqa: E402
from fork_server import Program  # noqa: E402


UNGUARDED = {"builtin shadowed"}  # changes that Dynamo's guards do not detect, in the process that has captured


def sweep(recalls: bool) -> dict:
    """Returns the differences from eager by change, in a process that finds its first calls on disk or not."""
    warnings.simplefilter("ignore")
    names = [*CHANGES, *CALLS][::1 if os.environ.get("CAESURA_LONG") else 6]
    count, original = [], wrapping.torch_backend
    wrapping.torch_backend = lambda *a, **k: count.append(1) or original(*a, **k)
    frames.watch(wrapping.torch_backend, runs_eager=True)
    x, found = torch.randn(4, 4, generator=torch.Generator().manual_seed(1)), {}
    for name in (name for name in names if recalls or name not in UNGUARDED):
        torch.manual_seed(0)
        module = Net()
        wrapped = caesura.wrap(module)
        before, expected = (outcome(module, call, (x,), {}) for call in (wrapped, module))
        problems = [difference(before, expected)]
        if recalls and count:
            problems.append("was not found on disk")
        args, kwargs = CALLS[name](x) if name in CALLS else ((x.double() if name == "dtype" else x,), {})
        with CHANGES[name](module) if name in CHANGES else warnings.catch_warnings():
            problems.append(difference(*(outcome(module, call, args, kwargs) for call in (wrapped, module))))
        problems.append(difference(outcome(module, wrapped, (x,), {}), outcome(module, module, (x,), {})))
        if any(problems):
            found[name] = [problem for problem in problems if problem]
        count.clear()
    return found


@pytest.mark.parametrize("recalls", [False, True])
def test_every_change_is_noticed(recalls, tmp_path, monkeypatch):
    monkeypatch.setenv("CAESURA_PROGRAM_CACHE", str(tmp_path / "programs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if recalls:  # uses calls that another process has kept
        keeping = Program("import torch, caesura, changes; m = caesura.wrap(changes.Net()); x = torch.randn(4, 4)\n"
                          "for _ in range(3): changes.outcome(m, m, (x,), {})").result()
        assert keeping.returncode == 0, keeping.stderr
        assert list((tmp_path / "programs").iterdir())
    else:
        monkeypatch.setenv("CAESURA_PROGRAM_CACHE", "off")
    done = Program(f"import json, changes_test; print(json.dumps(changes_test.sweep({recalls})))").result(timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {}
