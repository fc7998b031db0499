# SPDX-License-Identifier: Apache-2.0
"""Compiled steps from disk: hits, changes that need another key, damaged files, and unchanged results."""

import contextlib
import copy
import errno
import functools
import importlib.util
import itertools
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import caesura  # noqa: E402
from caesura import reports  # noqa: E402
from caesura.cache import disk, known_code  # noqa: E402
from caesura.cache.fingerprint import Fingerprint, Unkeyed, traced  # noqa: E402
from compile_step_calls_test import both  # noqa: E402
from compile_step_test import Net, batches, eager, same  # noqa: E402
from fork_server import Program  # noqa: E402


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The cache's folder."""
    monkeypatch.setenv("CAESURA_PROGRAM_CACHE", str(tmp_path / "programs"))
    torch.manual_seed(0)
    torch._dynamo.reset()
    return tmp_path / "programs"


def programs(folder) -> list:
    """Returns the files that hold programs. Another file beside each lists the traced code."""
    return [file for file in folder.iterdir() if "traced" not in disk.load(file.name)[0]]


def adamw(parameters):
    return torch.optim.AdamW([p for p in parameters if p.requires_grad], lr=1e-2)


def hit(module, batch, make=adamw, loss_fn=F.cross_entropy) -> bool:
    """Returns True if a new step for the module finds its program on disk. Results must equal eager's."""
    torch._dynamo.reset()
    other = copy.deepcopy(module)
    step = caesura.compile_step(other, loss_fn, make(other.parameters()))
    plain = copy.deepcopy(module)
    expected = eager(plain, make(plain.parameters()), [batch] * 3, loss_fn)
    assert [step(*batch).item() for _ in range(3)] == pytest.approx(expected, rel=1e-4)
    same(other, plain)
    (program,) = step._programs
    return not program.is_captured


def test_the_second_step_finds_the_program(folder):
    batch = batches(1)[0]
    assert [hit(Net(), batch) for _ in range(3)] == [False, True, True]
    (file,) = programs(folder)
    assert file.stat().st_mode & 0o077 == 0 and folder.stat().st_mode & 0o077 == 0


def test_the_switch(monkeypatch, folder):
    monkeypatch.setenv("CAESURA_PROGRAM_CACHE", "off")
    assert not hit(Net(), batches(1)[0]) and not hit(Net(), batches(1)[0]) and not folder.exists()


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.5, 0.9), weight_decay=0.3),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: torch.optim.RMSprop(p, lr=1e-3),
], ids=["adamw", "momentum", "rmsprop"])
def test_a_program_is_for_any_optimizer(make):
    batch = batches(1)[0]
    assert not hit(Net(), batch)
    assert hit(Net(), batch, make)


@pytest.mark.parametrize("change", [
    lambda module, optimizer: setattr(module.first.weight, "data", module.first.weight.data * 0.5),
    lambda module, optimizer: module.load_state_dict({k: v * 0.9 for k, v in module.state_dict().items()}),
    lambda module, optimizer: optimizer.param_groups[0].update(lr=3e-3),
    lambda module, optimizer: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
    lambda module, optimizer: setattr(module.norm, "eps", 0.1),
    lambda module, optimizer: module.norm.weight.requires_grad_(False),
    lambda module, optimizer: module.norm.register_forward_hook(lambda module, inputs, output: output * 2),
    lambda module, optimizer: setattr(module, "last", torch.nn.Sequential(module.last, torch.nn.Tanh())),
], ids=["data", "load", "rate", "optimizer", "attribute", "frozen", "hook", "layer"])
def test_a_change_behind_a_hit_is_noticed(change):
    module, batch = Net(), batches(1)[0]
    assert not hit(module, batch)
    torch._dynamo.reset()
    other, make = copy.deepcopy(module), functools.partial(torch.optim.AdamW, lr=1e-2)
    optimizer = make(other.parameters())
    step = caesura.compile_step(other, F.cross_entropy, optimizer)

    def change_both(side, its_optimizer):
        assert [p.is_captured for p in step._programs] == [False] or side is module
        change(side, its_optimizer)

    both((module, make(module.parameters())), (other, optimizer, step), change_both)


def test_the_mode_is_noticed_behind_a_hit():
    module, batch = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 4)), batches(1)[0]
    seen = []
    for _ in range(2):
        torch._dynamo.reset()
        torch.manual_seed(1)
        step = caesura.compile_step(module.train(), F.cross_entropy, torch.optim.SGD(module.parameters(), lr=0.0))
        seen.append([step(*batch).item() for _ in range(3)])
        module.eval()
        assert step(*batch).item() == pytest.approx(F.cross_entropy(module(batch[0]), batch[1]).item(), rel=1e-5)
        assert step(*batch).item() == step(*batch).item()
    assert not any(p.is_captured for p in step._programs)
    assert seen[0] == seen[1] and len(set(seen[0])) == 3


def test_lengths_that_change_behind_a_hit_are_captured_once():
    module, optimizer = Net(), None
    hit(module, batches(1, 5)[0])
    torch._dynamo.reset()
    optimizer = adamw(module.parameters())
    plain, step = copy.deepcopy(module), caesura.compile_step(module, F.cross_entropy, optimizer)
    data = [batches(1, rows)[0] for rows in (5, 7, 9, 5, 11)]
    expected = eager(plain, adamw(plain.parameters()), data)
    assert [step(*batch).item() for batch in data] == pytest.approx(expected, rel=1e-4)
    assert [p.is_captured for p in step._programs] == [False, True]


# --- the key ---

SOURCE = """
import torch
import collections
class Table(collections.OrderedDict):
    def __getitem__(self, name):
        return super().__getitem__(name) * 1
SCALE = 2.0
TABLE = Table(by=1.0)
def scaled(x):
    return x * SCALE * TABLE["by"]
class Config:
    kinds = ("gelu",)
    def __init__(self):
        self.depth = {"layers": [1, 2]}
class Block(torch.nn.Module):
    factor = 1.0
    def __init__(self, config):
        super().__init__()
        self.config, self.first, self.last = config, torch.nn.Linear(6, 16), torch.nn.Linear(16, 4)
    def inner(self, x):
        return scaled(x) * self.factor
    def forward(self, x):
        return self.last(torch.nn.functional.gelu(self.inner(self.first(x))) * self.config.depth["layers"][1])
def make():
    return Block(Config())
"""
_numbers = itertools.count()


def load(tmp_path, source=SOURCE, name="made"):
    """Imports the source as a Python module."""
    path = tmp_path / f"made_{next(_numbers)}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


def batch_of(rows=5, dtype=torch.int64):
    return torch.randn(rows, 6), torch.randint(0, 4, (rows,)).to(dtype)


def test_the_same_source_from_another_file_is_the_same(tmp_path):
    assert [hit(load(tmp_path).make(), batch_of()) for _ in range(2)] == [False, True]


@pytest.mark.parametrize("before,after", [
    ("SCALE = 2.0", "SCALE = 3.0"), ("by=1.0", "by=2.0"), ("(name) * 1", "(name) * 3"),
    ("x * SCALE", "x + SCALE"), ("factor = 1.0", "factor = 1.5"),
    ('{"layers": [1, 2]}', '{"layers": [1, 3]}'), ("gelu(", "relu("), ("scaled(x) *", "scaled(scaled(x)) *"),
    ("kinds = (\"gelu\",)", "kinds = (\"relu\",)"),
])
def test_another_source_is_another_program(tmp_path, before, after):
    assert SOURCE.count(before) == 1
    assert not hit(load(tmp_path).make(), batch_of())
    assert not hit(load(tmp_path, SOURCE.replace(before, after)).make(), batch_of())
    assert hit(load(tmp_path).make(), batch_of())


def freeze(module):
    module.first.bias.requires_grad_(False)


def tie(module):
    module.other = module.last


@pytest.mark.parametrize("change", [
    lambda module: module.config.depth["layers"].__setitem__(1, 4), lambda module: module.config.depth.update(more=1),
    lambda module: setattr(module, "factor", 2.0), lambda module: module.eval(), freeze, tie,
    lambda module: module.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,)),
    lambda module: module.register_buffer("more", torch.ones(1)),
    lambda module: setattr(module, "inner", torch.nn.functional.relu),
], ids=["list", "dict", "attribute", "mode", "frozen", "tied", "hook", "buffer", "method"])
def test_another_module_is_another_program(tmp_path, change):
    made = load(tmp_path)
    assert not hit(made.make(), batch_of())
    module = made.make()
    change(module)
    assert not hit(module, batch_of())
    assert hit(made.make(), batch_of())


def test_other_arguments_are_another_program():
    assert not hit(Net(), batch_of())
    assert not hit(Net(), batch_of(6))
    assert not hit(Net(), batch_of(), loss_fn=lambda x, y: 2 * F.cross_entropy(x, y))
    assert not hit(Net(), batch_of(), loss_fn=functools.partial(F.cross_entropy, reduction="sum"))
    assert hit(Net(), batch_of(6))


def patched(owner, name, value):
    def change(stack):
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(owner, name, value)
    return change


@pytest.mark.parametrize("change", [
    patched(torch, "__version__", "2.13.1"), patched(sys, "version", "3.11.8"),
    lambda stack: stack.enter_context(torch._dynamo.config.patch(specialize_int=True)),
    lambda stack: stack.enter_context(torch._functorch.config.patch(functionalize_rng_ops=True)),
    patched(F, "gelu", lambda x: torch.relu(x)), patched(F, "gelu", F.relu),
    patched(F, "gelu", functools.partial(F.gelu, approximate="tanh")),
    patched(torch.nn.LayerNorm, "forward", lambda self, x: x * self.weight),
    lambda stack: stack.enter_context(torch.backends.mkldnn.flags(False)),
    lambda stack: stack.enter_context(torch.autocast("cpu", torch.bfloat16)),
    lambda stack: stack.enter_context(torch.no_grad()),
], ids=["torch", "python", "dynamo", "functorch", "function", "alias", "partial", "layer", "flag", "autocast", "no_grad"])
def test_other_surroundings_are_another_program(change):
    before = fingerprint_of(Net())
    with contextlib.ExitStack() as stack:
        stack.callback(known_code.releases.cache_clear)
        known_code.releases.cache_clear()
        change(stack)
        assert fingerprint_of(Net()) != before
    assert fingerprint_of(Net()) == before


def fingerprint_of(value) -> str:
    made = Fingerprint()
    made.add(value)
    return made.key()


def test_decorators_are_told_apart():
    def made_with(decorator):
        class Decorated(torch.nn.Module):
            @decorator
            def forward(self, x):
                return x * 2
        return fingerprint_of(Decorated())

    without, other = made_with(torch.no_grad()), made_with(torch.enable_grad())
    assert without != other and without == made_with(torch.no_grad()) and other == made_with(torch.enable_grad())


@pytest.mark.parametrize("body", [
    "x * float(os.environ.get('FACTOR', '1'))", "x * time.time()", "x * random.random()", "x * open('factor').fileno()",
    "x * len(hidden)",
])
def test_what_reads_the_world_has_no_key(tmp_path, body):
    source = SOURCE.replace("import torch\n", "import array, os, random, time, torch\nhidden = array.array('i')\n", 1)
    made = load(tmp_path, source.replace("x * SCALE", body))
    code = [f.__code__ for f in (made.Block.forward, made.Block.inner, made.scaled)]
    key = Fingerprint()
    key.add(made.make())
    assert key.follow(traced(code[:2]))
    with pytest.raises(Unkeyed):
        key.follow(traced(code))


def test_code_that_was_not_met_has_no_key(tmp_path):
    made, key = load(tmp_path), Fingerprint()
    key.add(made.make())
    assert not key.follow(traced([made.Block.forward.__code__, made.make.__code__]))


def test_what_others_put_into_pytorch_is_let_be(monkeypatch):
    """Patches of PyTorch by other packages are ignored. Lightning wraps torch.compile; transformers adds a method."""
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *args, **kwargs: compile_(*args, **kwargs) or os.environ)
    monkeypatch.setattr(torch.nn.Module, "smart_apply", lambda self, f: os.environ.update(f(self)), raising=False)
    assert [hit(Net(), batches(1)[0]) for _ in range(2)] == [False, True]


def test_what_is_traced_through_a_patch_is_not_kept(monkeypatch, folder):
    module = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    with monkeypatch.context() as patch:
        patch.setattr(F, "gelu", lambda x, approximate: torch.relu(x) * 2)
        assert [hit(module, batches(1)[0]) for _ in range(2)] == [False, False]
    assert not folder.exists()
    assert [hit(module, batches(1)[0]) for _ in range(2)] == [False, True]


def test_code_that_is_called_by_a_name_made_up_in_the_call(tmp_path):
    source = SOURCE.replace("self.inner(", 'getattr(self, "".join(("in", "ner")))(')
    assert [hit(load(tmp_path, source).make(), batch_of()) for _ in range(2)] == [False, True]
    assert not hit(load(tmp_path, source.replace("scaled(x) *", "scaled(x) +")).make(), batch_of())


COUNTING = """
import torch
CALLS, SEEN, LAST = 0, [], None
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 4)
    def forward(self, x):
        %s
        return self.first(x)
make = Block
"""


@pytest.mark.parametrize("line,kept", [
    ("global CALLS; CALLS = CALLS + 1", False), ("SEEN.append(1)", False), ("self.calls = getattr(self, 'calls', 0) + 1", False),
    ("global LAST; LAST = 'forward'", True), ("self.last = 'forward'", True),
])
def test_what_a_call_leaves_behind(tmp_path, line, kept):
    """A step is kept only if repeating its side effects changes nothing."""
    made = load(tmp_path, COUNTING % line, f"counting_{next(_numbers)}")  # Dynamo identifies modules by name
    module = made.make()
    step = caesura.compile_step(module, F.cross_entropy, adamw(module.parameters()))
    for _ in range(5):
        step(*batch_of())
    assert made.CALLS + len(made.SEEN) + getattr(module, "calls", 0) == (0 if kept else 5)
    assert (made.LAST or getattr(module, "last", None)) == ("forward" if kept else None)
    assert bool(step._calls) == kept


# --- the files ---

def flip(content):
    return content[:-100] + bytes([content[-100] ^ 1]) + content[-99:]


@pytest.mark.parametrize("damage", [flip, lambda c: c[:len(c) // 2], lambda c: b"", lambda c: c + b"x"],
                         ids=["bit", "half", "empty", "longer"])
def test_a_damaged_file_is_told_of_and_made_anew(folder, damage):
    batch = batches(1)[0]
    hit(Net(), batch)
    (file,) = programs(folder)
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    with pytest.warns(RuntimeWarning, match="damaged and not used"):
        assert not hit(Net(), batch)
    assert file.read_bytes() == whole and hit(Net(), batch)


@pytest.mark.parametrize("forge", [
    lambda facts, model: ({}, model),
    lambda facts, model: (facts | {"bound": facts["bound"][:-1]}, model),
    lambda facts, model: (facts | {"bound": ["first.bias" if n == "norm.bias" else n for n in facts["bound"]]}, model),
    lambda facts, model: (facts | {"bound": [3]}, model),
    lambda facts, model: (facts | {"feeds": [[name, ["args", 5]] for name, _ in facts["feeds"]]}, model),
    lambda facts, model: (facts | {"feeds": [[name, [[1]]] for name, _ in facts["feeds"]]}, model),
    lambda facts, model: (facts, model[:-20]),
    lambda facts, model: (facts, b""),
])
def test_facts_that_do_not_fit_are_told_of(folder, forge):
    batch = batches(1)[0]
    hit(Net(), batch)
    (file,) = programs(folder)
    disk.store(file.name, *forge(*disk.load(file.name)))
    with pytest.warns(RuntimeWarning, match="damaged and not used"):
        assert not hit(Net(), batch)
    assert hit(Net(), batch)


def test_a_file_under_another_name_is_not_used(folder):
    hit(Net(), batch_of(5))
    (five,) = programs(folder)
    hit(Net(), batch_of(6))
    (six,) = set(programs(folder)) - {five}
    six.write_bytes(five.read_bytes())
    with pytest.warns(RuntimeWarning, match="another program"):
        assert not hit(Net(), batch_of(6))


def test_the_folder_stays_small(folder, monkeypatch):
    monkeypatch.setenv("CAESURA_PROGRAM_CACHE_MEGABYTES", "1")
    for i, name in enumerate("abc"):
        disk.store(name * 64, {}, bytes(400 << 10))
        os.utime(folder / (name * 64), (i, i))
    assert disk.load("b" * 64) is not None  # used last
    disk.store("d" * 64, {}, bytes(400 << 10))
    assert sorted(f.name[0] for f in folder.iterdir()) == ["b", "d"]


def test_a_folder_that_cannot_be_written_to_is_told_of_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(reports.RECORD, "lost", {})
    monkeypatch.setenv("CAESURA_PROGRAM_CACHE", str(tmp_path / "file" / "programs"))
    with pytest.warns(caesura.FallbackWarning, match=r"program cache is not used: .*file/programs: Not a directory") as told:
        assert not hit(Net(), batches(1)[0])
        assert not hit(Net(), batches(1)[0])
    assert len(told) == 1 and told[0].filename == __file__
    assert "not used: the program cache: " in str(caesura.stats())
    with caesura.strict(), pytest.raises(caesura.StrictError, match="Not a directory"):
        hit(Net(), batches(1)[0])


def test_a_folder_without_space_is_told_of(folder, monkeypatch):
    monkeypatch.setattr(reports.RECORD, "lost", {})

    def full(**_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk.tempfile, "mkstemp", full)
    with pytest.warns(caesura.FallbackWarning, match="programs: No space left on device"):
        disk.store("a" * 64, {}, b"")


def test_a_program_larger_than_the_cache_is_told_of_and_removes_no_other(folder, monkeypatch):
    monkeypatch.setattr(reports.RECORD, "lost", {})
    monkeypatch.setenv("CAESURA_PROGRAM_CACHE_MEGABYTES", "1")
    disk.store("a" * 64, {"b": 1}, b"")
    with pytest.warns(caesura.FallbackWarning, match="a program of 2 MiB is larger than"):
        disk.store("c" * 64, {}, bytes(2 << 20))
    assert [file.name[0] for file in folder.iterdir()] == ["a"]


def test_a_folder_that_is_only_read_is_used(folder, monkeypatch):
    monkeypatch.setattr(reports.RECORD, "lost", {})
    disk.store("a" * 64, {"b": 1}, b"")

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(disk.os, "utime", refuse)
    assert disk.load("a" * 64) == ({"b": 1}, b"")
    assert not caesura.stats().lost


def test_a_cache_without_a_home_is_told_of(monkeypatch):
    monkeypatch.setattr(reports.RECORD, "lost", {})
    for name in ("CAESURA_PROGRAM_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.warns(caesura.FallbackWarning, match="neither HOME nor XDG_CACHE_HOME is set"):
        assert not disk.enabled()
    reports.RECORD.lost.clear()
    monkeypatch.setenv("CAESURA_PROGRAM_CACHE", "off")  # nothing is lost: the user does without
    with caesura.strict():
        assert not disk.enabled()
    assert not caesura.stats().lost


PROCESS = """
import torch, caesura
from compile_step_test import Net, batches
torch.manual_seed(0)
net = Net()
step = caesura.compile_step(net, torch.nn.functional.cross_entropy, torch.optim.AdamW(net.parameters(), lr=1e-2))
print([step(*batch).item() for batch in batches(4)], step._programs[0].is_captured)
"""


def run_anew(code) -> str:
    """Runs the code in a new interpreter that finds the tests' modules, with another hash seed; returns what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False,
                          env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"})
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def run_two(code) -> list:
    """Runs the code in two processes at once; returns what they print."""
    ended = [program.result(timeout=300) for program in (Program(code), Program(code))]
    assert all(done.returncode == 0 and not done.stderr for done in ended), ended
    return [done.stdout for done in ended]


def test_processes_share_the_folder(folder):
    answers = run_two(PROCESS)
    assert answers[0].split("]")[0] == answers[1].split("]")[0]
    assert len(list(folder.iterdir())) == 2
    assert run_anew(PROCESS) == answers[0].replace("True", "False")
