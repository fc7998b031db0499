# SPDX-License-Identifier: Apache-2.0
"""PyTorch stays as it is for code that does not use caesura: functions, classes, operators' kernels, settings."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

# Each script is a process of its own: it would not see what this one has imported. It is forked from a process that has
# taken the snapshot, reads scripts line by line, and answers with the script's exit status and errors.
SNAPSHOT = textwrap.dedent("""
    import sys, types, warnings
    import torch
    import torch._dynamo.config, torch._functorch.config
    from torch._dynamo.variables.builder import VariableBuilder

    KINDS = (types.FunctionType, types.BuiltinFunctionType, type, property, classmethod, staticmethod)
    KEYS = ("CPU", "Autograd", "AutogradCPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "Meta", "")
    held = []  # so that no id is another object's

    def snapshot():
        found = {}
        modules = {n: m for n, m in sys.modules.items() if n == "torch" or n.startswith("torch.")}
        for name, module in modules.items():
            for key, value in list(vars(module).items()):
                if isinstance(value, KINDS):
                    held.append(value)
                    found[name, key] = id(value)
                if isinstance(value, type) and getattr(value, "__module__", "").startswith("torch"):
                    for part, item in list(vars(value).items()):
                        if isinstance(item, KINDS):
                            held.append(item)
                            found[value.__module__, value.__qualname__, part] = id(item)
        for packet in vars(torch.ops.aten).values():
            for overload in getattr(packet, "_overload_names", ()):
                operator = getattr(packet, overload or "default")
                found["py_kernels", str(operator)] = {str(k): id(v) for k, v in operator.py_kernels.items()}
        for key in KEYS:
            names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
            found["dispatcher", key] = sorted(n for n in names if not n.startswith("caesura::"))
        found["builders"] = {key: id(value) for key, value in VariableBuilder._id_dispatch().items()}
        for config in (torch._dynamo.config, torch._functorch.config):
            found[config.__name__] = {key: repr(value) for key, value in config.get_config_copy().items()}
        return found

    def changes(before):
        after = snapshot()
        return {key: (value, after.get(key)) for key, value in before.items() if after.get(key) != value}

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4, momentum=None)
        def forward(self, x):
            return torch.nn.functional.dropout(self.norm(self.layer(x)), 0.5)

    targets = torch.tensor([[1, 0, -1, -1]] * 6)

    def loss(y, targets):
        return torch.nn.functional.multilabel_margin_loss(y, targets)

    x = torch.randn(6, 4)
    # PyTorch imports much at a first capture, and changes an optimizer's class when it makes one.
    # PyTorch for CUDA takes no gradients in forks of a process that has taken one.
    with torch.no_grad():
        torch.compile(Net(), backend="aot_eager")(x)
    torch.optim.SGD(Net().parameters(), lr=0.1)
    warnings.simplefilter("ignore")
    before = snapshot()
""")
FORKS = textwrap.dedent("""
    import json, os, tempfile, traceback
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as errors:
            child = os.fork()
            if child == 0:
                os.dup2(errors.fileno(), 2)
                try:
                    exec(json.loads(line))
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(1)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            errors.seek(0)
            print(json.dumps([status, errors.read()[-4000:]]), flush=True)
""")


@pytest.fixture(scope="module", name="run")
def _run():
    """Returns a function that runs a script, and fails where the script does."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # a fork has no other threads
    with subprocess.Popen([sys.executable, "-c", SNAPSHOT + FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=environment) as process:

        def run(code: str) -> None:
            process.stdin.write(json.dumps(textwrap.dedent(code)) + "\n")
            process.stdin.flush()
            status, errors = json.loads(process.stdout.readline())
            assert status == 0, errors

        yield run
        process.stdin.close()


@pytest.mark.parametrize("what", ["caesura", "caesura.backend", "caesura.frontends.wrap", "caesura.frontends.compile_step",
                                  "caesura.frontends.dynamo_backend"])
def test_an_import_changes_nothing(run, what):
    run(f"""
        import {what}
        assert not changes(before), changes(before)
    """)


def test_a_wrapped_modules_calls_leave_nothing_changed(run):
    run("""
        import caesura
        net = caesura.wrap(Net())
        for _ in range(2):
            loss(net(x), targets).backward()
        assert caesura.stats().kernel_calls
        assert not changes(before), changes(before)
    """)


def test_a_compiled_step_leaves_nothing_changed(run):
    run("""
        import caesura
        net = Net()
        step = caesura.compile_step(net, loss, torch.optim.SGD(net.parameters(), lr=0.1))
        for _ in range(2):
            step(x, targets)
        assert caesura.stats().kernel_calls
        assert not changes(before), changes(before)
    """)


def test_a_capture_that_fails_leaves_nothing_changed(run):
    run("""
        import caesura
        class Fails(torch.nn.Module):
            def forward(self, x):
                return self.nothing(x)
        for _ in range(2):
            try:
                caesura.wrap(Fails())(x)
            except AttributeError:
                pass
        assert not changes(before), changes(before)
    """)


def test_captures_in_several_threads_leave_nothing_changed(run):
    run("""
        import threading
        import caesura
        failed = []
        def train():
            try:
                net = caesura.wrap(Net())
                for _ in range(3):
                    loss(net(x), targets).backward()
            except Exception as error:
                failed.append(error)
        threads = [threading.Thread(target=train) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
        assert not changes(before), changes(before)
    """)


@pytest.mark.parametrize("compiled", ["caesura.wrap(Breaks())", "torch.compile(Breaks(), backend='caesura')"])
def test_other_backends_capture_as_ever_while_a_call_of_ours_is_under_way(run, compiled):
    """Within our module's forward, after a graph break, another backend gets PyTorch's own graphs and errors."""
    run("""
        import caesura
        graphs, errors = [], []
        def record(module, inputs):
            graphs.append([str(node.target) for node in module.graph.nodes])
            return module.forward
        def other():
            torch._dynamo.reset()
            torch.compile(Net(), backend=record)(x)
            torch.compile(loss, backend=record)(x, targets)
            try:
                torch.compile(lambda x: x @ torch.ones(3, 3), backend=record)(x)
            except Exception as error:
                errors.append(type(error))
        class Breaks(torch.nn.Module):
            def forward(self, x):
                y = x + 1
                torch._dynamo.graph_break()
                plainly()
                return y * 2
        plainly = torch.compiler.disable(lambda: inside())
        inside = other
        other()
        expected, failed = list(graphs), list(errors)
        graphs.clear(), errors.clear()
        ours = COMPILED
        ours(x)
        assert expected and graphs == expected, (graphs, expected)
        assert failed and errors == failed, (errors, failed)
        graphs.clear(), errors.clear()
        other()
        assert graphs == expected and errors == failed, (graphs, errors)
    """.replace("COMPILED", compiled))


def test_the_wrong_decomposition_is_pytorchs_again(run):
    """PyTorch's margin loss of several rows is wrong under its own decomposition, and right in ours."""
    run("""
        import caesura
        y, targets = torch.randn(3, 4), torch.tensor([[1, -1, -1, -1], [0, 2, -1, -1], [3, 0, 1, -1]])
        class Loss(torch.nn.Module):
            def forward(self, y):
                return loss(y, targets)
        torch.testing.assert_close(caesura.wrap(Loss())(y), loss(y, targets))
    """)


def test_a_shared_change_lasts_until_the_last_has_left():
    from caesura.capture.patches import Shared

    log = []

    class Change:
        def __enter__(self):
            log.append("made")

        def __exit__(self, *error):
            log.append("undone")

    shared = Shared(Change)
    with shared:
        with shared:  # as another thread would be
            assert log == ["made"]
        assert log == ["made"]
    assert log == ["made", "undone"]
    with pytest.raises(KeyError), shared:
        raise KeyError
    assert log == ["made", "undone"] * 2
