# SPDX-License-Identifier: Apache-2.0
"""wrap, torch.compile and compile_step on modules whose tensors are on a GPU: our CUDA kernels, PyTorch's memory."""

import copy
import os
import subprocess
import sys

import pytest
from standin_torch import DEVICE, cuda, fresh, stand_in, torch  # noqa: F401

import caesura
from caesura import onnxruntime

F = torch.nn.functional


class Gpt(torch.nn.Module):
    """A small GPT: learned positions, causal attention, a tied output."""

    def __init__(self, width=16, heads=2, vocabulary=20):
        super().__init__()
        self.heads = heads
        self.tokens, self.positions = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(8, width)
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attend, self.join = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.widen, self.narrow = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, ids, labels):
        rows, length = ids.shape
        x = self.tokens(ids) + self.positions(torch.arange(length, device=ids.device))
        q, k, v = (t.view(rows, length, self.heads, -1).transpose(1, 2) for t in self.attend(self.first(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(y.transpose(1, 2).reshape(rows, length, -1))
        x = x + self.narrow(F.gelu(self.widen(self.second(x)), approximate="tanh"))
        return F.cross_entropy((x @ self.tokens.weight.T).flatten(0, 1), labels.flatten())


def batch(rows=2, length=6):
    ids = torch.arange(rows * length).view(rows, length) * 7 % 20
    return ids.to(DEVICE), ids.roll(-1, 1).to(DEVICE)


def pair(module):
    """Two copies of a module on the GPU."""
    return copy.deepcopy(module).to(DEVICE), copy.deepcopy(module).to(DEVICE)


def assert_gradients_equal(given, expected):
    for (name, p), q in zip(expected.named_parameters(), given.parameters(), strict=True):
        assert (q.grad is None) == (p.grad is None), name
        if p.grad is not None:
            assert q.grad.device == DEVICE
            torch.testing.assert_close(q.grad.cpu(), p.grad.cpu(), rtol=1e-3, atol=1e-5, msg=lambda m: f"{name}: {m}")


@pytest.mark.parametrize("route", ["wrap", "compile"])
def test_a_gpt_trains_as_in_eager(cuda, route):  # noqa: F811
    eager, other = pair(Gpt())
    trained = caesura.wrap(other) if route == "wrap" else torch.compile(other, backend="caesura")
    first, second = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (eager, other))
    for _ in range(3):
        expected, given = eager(*batch()), trained(*batch())
        assert given.device == DEVICE
        torch.testing.assert_close(given.cpu(), expected.cpu(), rtol=1e-5, atol=1e-6)
        expected.backward()
        given.backward()
        assert_gradients_equal(other, eager)
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
    report = caesura.stats()
    assert report.kernel_calls > 0 and report.fallbacks == {}, report
    assert cuda.operations("kernel ") > 0


def test_another_stream_than_ours_is_kept_in_order(cuda):  # noqa: F811
    cuda.use_other_stream(True)
    eager, other = pair(Gpt())
    wrapped = caesura.wrap(other)
    parameters, seed = list(other.parameters()), torch.ones((), device=DEVICE)
    for _ in range(2):
        expected, given = eager(*batch()), wrapped(*batch())
        expected.backward()
        waits = cuda.host_waits()
        gradients = torch.autograd.grad(given, parameters, seed)
        assert cuda.host_waits() == waits  # the streams wait for each other, the host for none
        torch.testing.assert_close(given.detach().cpu(), expected.detach().cpu(), rtol=1e-5, atol=1e-6)
        for p, got in zip(eager.parameters(), gradients, strict=True):
            torch.testing.assert_close(got.cpu(), p.grad.cpu(), rtol=1e-3, atol=1e-5)
            p.grad = None


def test_calls_without_a_cuda_kernel_are_pytorchs(cuda):  # noqa: F811
    class Sums(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)

        def forward(self, x):
            return self.last(torch.relu(self.norm(self.first(x))).cumsum(1))

    eager, other = pair(Sums())
    wrapped, x = caesura.wrap(other), torch.randn(5, 6).to(DEVICE)
    with pytest.warns(caesura.FallbackWarning, match="cumsum.*has no kernel on cuda:0"):
        given = wrapped(x)
    expected = eager(x)
    torch.testing.assert_close(given.cpu(), expected.cpu())
    given.square().sum().backward()
    expected.square().sum().backward()
    assert_gradients_equal(other, eager)
    for p, q in zip(eager.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(q.cpu(), p.cpu())
    report = caesura.stats()
    assert report.kernel_calls > 0 and report.eager_calls > 0


@pytest.mark.parametrize("form", ["causal", "mask", "grouped"])
def test_attention_that_is_refused_is_pytorchs(cuda, monkeypatch, form):  # noqa: F811
    from caesura.rewrites import gpu_attention
    from caesura.runtime import graph_executor

    left = {target: rule for target, rule in graph_executor.TABLE.items() if target not in gpu_attention.IN_PARTS}
    monkeypatch.setattr(graph_executor, "TABLE", left)
    q, k, v = (torch.randn(2, heads, 5, 4).to(DEVICE).requires_grad_() for heads in ((4, 2, 2) if form == "grouped" else (4, 4, 4)))
    mask = torch.rand(5, 5).to(DEVICE) < 0.7 if form == "mask" else None

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q * 2, k, v, mask, is_causal=form == "causal", enable_gqa=form == "grouped").sin().sum()

    expected = torch.autograd.grad(attend(q, k, v), (q, k, v))
    with pytest.warns(caesura.FallbackWarning, match="attention"):
        given = torch.autograd.grad(torch.compile(attend, backend="caesura")(q, k, v), (q, k, v))
    for got, wanted in zip(given, expected, strict=True):
        torch.testing.assert_close(got.cpu(), wanted.cpu(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pool", [F.avg_pool1d, F.max_pool1d])
def test_pools_and_batch_norms_have_cuda_kernels(cuda, pool):  # noqa: F811
    class Pools(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(4, 2)

        def forward(self, x):
            return self.last(pool(torch.relu(self.norm(self.first(x))), 2))

    eager, other = pair(Pools())
    wrapped, x = caesura.wrap(other), torch.randn(5, 6).to(DEVICE)
    with caesura.strict():
        given = wrapped(x)
        expected = eager(x)
        torch.testing.assert_close(given.cpu(), expected.cpu())
        given.square().sum().backward()
    expected.square().sum().backward()
    assert_gradients_equal(other, eager)
    for p, q in zip(eager.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(q.cpu(), p.cpu())


def test_dropout_is_eagers_own(cuda):  # noqa: F811
    eager, other = pair(torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 2)))
    wrapped, x = caesura.wrap(other), torch.ones(2, 4, device=DEVICE)
    with caesura.strict():
        torch.manual_seed(3)
        given = wrapped(x)
    torch.manual_seed(3)
    torch.testing.assert_close(given.cpu(), eager(x).cpu())
    second = []
    for module in (wrapped, eager):  # the derivative of the derivative has the mask of the forward
        torch.manual_seed(3)
        (slope,) = torch.autograd.grad(module(x).square().sum(), module[0].weight, create_graph=True)
        second.append([slope, *torch.autograd.grad(slope.square().sum(), (module[0].weight, module[2].weight))])
    for given, expected in zip(*second, strict=True):
        torch.testing.assert_close(given.cpu(), expected.cpu())


def test_derivatives_of_derivatives(cuda):  # noqa: F811
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh()).to(DEVICE)

    def penalty(m):
        x = torch.linspace(-1, 1, 8).view(2, 4).to(DEVICE).requires_grad_()
        (slope,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), module[0].weight)[0].cpu()

    torch.testing.assert_close(penalty(caesura.wrap(module)), penalty(module))


def test_sizes_that_change(cuda):  # noqa: F811
    eager, other = pair(Gpt())
    wrapped = caesura.wrap(other)
    for rows, length in ((2, 6), (3, 5), (2, 4)):
        expected, given = eager(*batch(rows, length)), wrapped(*batch(rows, length))
        expected.backward()
        given.backward()
        torch.testing.assert_close(given.detach().cpu(), expected.detach().cpu(), rtol=1e-5, atol=1e-6)
        assert_gradients_equal(other, eager)
        eager.zero_grad()
        other.zero_grad()


def test_a_call_is_done_on_the_host_where_the_provider_fails(cuda):  # noqa: F811
    eager, other = pair(torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh()))
    wrapped, x = caesura.wrap(other), torch.linspace(-1, 1, 8).view(2, 4).to(DEVICE)
    expected = eager(x).cpu()
    torch.testing.assert_close(wrapped(x).cpu(), expected)
    cuda.fail("cuLaunchKernel", 1, 701)  # CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    for _ in range(2):
        given, kernels = wrapped(x), cuda.operations("kernel ")
        assert given.device == DEVICE
        torch.testing.assert_close(given.cpu(), expected)
    assert cuda.operations("kernel ") == kernels  # the graph stays on the CPU

def test_without_cuda_all_calls_are_pytorchs(cuda, monkeypatch):  # noqa: F811
    from caesura.runtime import gpu

    gpu._open_gpu.cache_clear()
    monkeypatch.setattr(gpu, "with_cuda_libraries", lambda options: {**options, "driver_library": "libnone.so"})
    module = torch.nn.Linear(4, 5).to(DEVICE)
    x = torch.ones(2, 4, device=DEVICE)
    with pytest.warns(caesura.FallbackWarning, match="all calls on cuda:0.*libnone.so"):
        given = caesura.wrap(module)(x)
    torch.testing.assert_close(given.cpu(), module(x).cpu())
    gpu._open_gpu.cache_clear()


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_a_compiled_step_trains_on_the_gpu(cuda, optimizer):  # noqa: F811
    eager, other = pair(Gpt())
    options = {"lr": 1e-2, "momentum": 0.9} if optimizer == "SGD" else {"lr": 1e-2}
    first, second = (getattr(torch.optim, optimizer)(m.parameters(), **options) for m in (eager, other))
    step = caesura.compile_step(other, None, second, clip_norm=1.0)
    for _ in range(5):
        expected = eager(*batch())
        expected.backward()
        torch.nn.utils.clip_grad_norm_(eager.parameters(), 1.0)
        first.step()
        first.zero_grad()
        torch.testing.assert_close(step(*batch()).cpu(), expected.detach().cpu(), rtol=1e-5, atol=1e-6)
    for (name, p), q in zip(eager.named_parameters(), other.parameters(), strict=True):
        assert q.device == DEVICE
        if name == "attend.bias":  # the gradient of the keys' part is zero but for rounding, which AdamW makes large
            p, q = p[32:], q[32:]
        torch.testing.assert_close(q.cpu(), p.cpu(), rtol=1e-3, atol=1e-5, msg=lambda m: f"{name}: {m}")
    for p in other.parameters():
        assert all(value.device == DEVICE for key, value in second.state[p].items() if key != "step")
    inputs = batch()
    uploaded = cuda.calls("cuMemcpyHtoDAsync")
    step(*inputs)
    assert cuda.calls("cuMemcpyHtoDAsync") - uploaded <= 3  # numbers that the update is fed, no tensor


def small_step(make=torch.optim.SGD, **options):
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to(DEVICE)
    optimizer = make(module.parameters(), lr=0.1)
    return module, optimizer, caesura.compile_step(module, F.cross_entropy, optimizer, **options)


def small_batch():
    return torch.linspace(-1, 1, 12).view(3, 4).to(DEVICE), torch.tensor([0, 1, 1]).to(DEVICE)


def test_a_compiled_step_is_in_order_with_another_stream(cuda):  # noqa: F811
    module, _, step = small_step()
    other = copy.deepcopy(module)
    x, y = small_batch()
    expected = [float(step(x, y)) for _ in range(4)]
    cuda.use_other_stream(True)
    other_step = caesura.compile_step(other, F.cross_entropy, torch.optim.SGD(other.parameters(), lr=0.1))
    x, y = small_batch()
    assert [float(other_step(x, y)) for _ in range(4)] == expected
    torch.testing.assert_close(other[0].weight.cpu(), module[0].weight.cpu(), rtol=0, atol=0)


def test_rates_accumulation_and_moved_parameters_reach_a_compiled_step(cuda):  # noqa: F811
    module, optimizer, step = small_step(accumulation_steps=2)
    eager = copy.deepcopy(module)
    other = torch.optim.SGD(eager.parameters(), lr=0.1)
    for i in range(6):
        x, y = small_batch()
        x = x * (i + 1)
        (F.cross_entropy(eager(x), y) / 2).backward()
        step(x, y)
        if i % 2:
            other.step()
            other.zero_grad()
            for of in (optimizer, other):
                of.param_groups[0]["lr"] *= 0.5
        if i == 3:
            for m in (module, eager):
                m[0].weight.data = m[0].weight.data * 0.5
    for p, q in zip(eager.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(q.cpu(), p.cpu(), rtol=1e-4, atol=1e-6)


def test_dropout_of_a_compiled_step_follows_the_seed(cuda):  # noqa: F811
    module = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 2)).to(DEVICE)
    step = caesura.compile_step(module, F.cross_entropy, torch.optim.SGD(module.parameters(), lr=0.0))
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(float(step(*small_batch())))
    assert losses[0] == losses[1] != losses[2]


def test_a_compiled_step_that_fails_has_changed_nothing(cuda):  # noqa: F811
    module, _, step = small_step()
    x, y = small_batch()
    step(x, y)
    before = [p.cpu() for p in module.parameters()]
    count = cuda.calls("cuLaunchKernel")
    step(x, y)
    launches = cuda.calls("cuLaunchKernel") - count
    for p, value in zip(module.parameters(), before, strict=True):
        p.data.copy_(value)
    for n in range(1, launches + 1):
        cuda.fail("cuLaunchKernel", n, 701)  # CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
        with pytest.raises(RuntimeError, match="cuLaunchKernel failed on cuda:0"):
            step(x, y)
        for p, value in zip(module.parameters(), before, strict=True):
            torch.testing.assert_close(p.cpu(), value, rtol=0, atol=0)


OPTIMIZERS = [("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}), ("RAdam", {"weight_decay": 0.1}), ("Adamax", {}),
              ("Adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.1}), ("Adadelta", {"maximize": True}),
              ("ASGD", {"t0": 1.0}), ("Rprop", {"maximize": True}), ("Adafactor", {}), ("Muon", {}), ("Adam", {"amsgrad": True}),
              ("RMSprop", {"centered": True, "momentum": 0.9, "eps": 1e-3})]


@pytest.mark.parametrize(("name", "options"), [case for case in OPTIMIZERS if hasattr(torch.optim, case[0])])
def test_each_optimizer_updates_on_the_gpu(cuda, name, options):  # noqa: F811
    has_bias = name != "Muon"  # which updates matrices only
    layers = torch.nn.Linear(4, 6, bias=has_bias), torch.nn.Tanh(), torch.nn.Linear(6, 2, bias=has_bias)
    eager, other = pair(torch.nn.Sequential(*layers))
    first, second = (getattr(torch.optim, name)(m.parameters(), lr=0.01, **options) for m in (eager, other))
    step = caesura.compile_step(other, F.cross_entropy, second)
    x, y = small_batch()
    for _ in range(3):
        expected = F.cross_entropy(eager(x), y)
        expected.backward()
        first.step()
        first.zero_grad()
        torch.testing.assert_close(step(x, y).cpu(), expected.detach().cpu(), rtol=1e-5, atol=1e-6)
    for p, q in zip(eager.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q.cpu(), p.cpu(), rtol=1e-3, atol=1e-5)
        assert all(value.device == DEVICE for key, value in second.state[q].items() if key != "step")
    assert caesura.stats().fallbacks == {}
    uploaded = cuda.calls("cuMemcpyHtoDAsync")
    step(x, y)
    assert cuda.calls("cuMemcpyHtoDAsync") - uploaded <= 3  # numbers that the update is fed, no tensor


def test_what_has_no_updates_on_the_gpu_is_refused(cuda):  # noqa: F811
    class Sums(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.last = torch.nn.Linear(4, 2)
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            self.seen.copy_(self.seen.cumsum(0) + x.detach().sum(0))
            return self.last(x)

    module = Sums().to(DEVICE)
    step = caesura.compile_step(module, F.cross_entropy, torch.optim.SGD(module.parameters(), lr=0.1))
    with pytest.raises(caesura.StepRefused, match="is on cuda:0, and what updates it has kernels on cpu only"):
        step(*small_batch())


def test_arguments_that_are_not_dense(cuda):  # noqa: F811
    x, y = small_batch()
    losses = []
    for given in (x, x.T.contiguous().T):
        torch.manual_seed(0)
        _, _, step = small_step()
        losses.append([float(step(given, y)) for _ in range(3)])
    assert losses[0] == losses[1]


def test_halves(cuda):  # noqa: F811
    eager, other = (m.to(torch.bfloat16) for m in pair(Gpt()))
    expected, given = eager(*batch()), caesura.wrap(other)(*batch())
    torch.testing.assert_close(given.cpu(), expected.cpu(), rtol=1e-2, atol=1e-2)
    given.backward()
    expected.backward()
    for p, q in zip(eager.parameters(), other.parameters(), strict=True):
        assert q.grad.dtype == torch.bfloat16
        torch.testing.assert_close(q.grad.cpu(), p.grad.cpu(), rtol=0.1, atol=5e-3)
    assert caesura.stats().fallbacks == {}


@pytest.fixture
def autocast():
    """As torch.autocast("cuda", torch.bfloat16), which asks for a PyTorch with CUDA."""
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_enabled("cuda", True)
    yield
    torch.set_autocast_enabled("cuda", False)


def test_autocast(cuda, autocast):  # noqa: F811
    eager, other = pair(Gpt())
    expected, given = eager(*batch()), caesura.wrap(other)(*batch())
    assert given.dtype == expected.dtype
    torch.testing.assert_close(given.cpu(), expected.cpu(), rtol=1e-2, atol=1e-2)
    given.backward()
    expected.backward()
    for p, q in zip(eager.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q.grad.cpu(), p.grad.cpu(), rtol=0.1, atol=5e-3)
    assert caesura.stats().fallbacks == {}


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")  # transformers logs once in a while
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_transformers_run_wholly_there(cuda, name):  # noqa: F811
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20, "intermediate_size": 24}
    if name == "llama":
        module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=1))
    else:
        module = transformers.BertForMaskedLM(transformers.BertConfig(**sizes, max_position_embeddings=16)).eval()
    eager, other = pair(module)
    ids = batch()[0]
    expected, given = (m(input_ids=ids, labels=ids).loss for m in (eager, caesura.wrap(other)))
    torch.testing.assert_close(given.cpu(), expected.cpu(), rtol=1e-5, atol=1e-6)
    expected.backward()
    given.backward()
    assert_gradients_equal(other, eager)
    assert not [what for what, _ in caesura.stats().fallbacks if what != "a graph break"]
    step = caesura.compile_step(other, None, torch.optim.SGD(other.parameters(), lr=0.1))
    for _ in range(2):
        step(input_ids=ids, labels=ids)
    counts = [cuda.calls(f"cuMemcpy{way}Async") for way in ("DtoH", "HtoD")]
    step(input_ids=ids, labels=ids)
    # The loss, and whether a kernel met a wrong index; numbers that the update is fed.
    assert [cuda.calls(f"cuMemcpy{way}Async") - n for way, n in zip(("DtoH", "HtoD"), counts, strict=True)] == [2, 2]


@pytest.mark.parametrize("other", [False, True])
def test_an_onnx_module_gives_its_outputs_there(cuda, other):  # noqa: F811
    from cuda_provider_test import X, net

    cuda.use_other_stream(other)
    module = onnxruntime.OnnxModule(net(), providers=[cuda.provider()])
    expected = onnxruntime.OnnxModule(net())(torch.from_numpy(X))
    with torch.no_grad():
        given = module(torch.from_numpy(X).to(DEVICE))
    assert given.device == DEVICE
    torch.testing.assert_close(given.cpu(), expected, rtol=1e-5, atol=1e-6)
    assert module(torch.from_numpy(X)).device.type == "cpu"


# It leaves without ending Python: PyTorch's thread of the device may let go of a backward after the main thread has ended,
# which ends the process with SIGABRT (docs/troubleshooting.md).
LATER = """
import caesura, os, pytest, torch
from caesura.frontends import wrap as wrapping
from standin_torch import DEVICE, start

cuda = start(pytest.MonkeyPatch())
traced, original = [], wrapping.torch_backend
wrapping.torch_backend = lambda *a, **k: traced.append(1) or original(*a, **k)
torch.manual_seed(0)
class Attends(torch.nn.Linear):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(*[super().forward(x)[None, None]] * 3)[0, 0]
module = Attends(4, 5).to(DEVICE)
x = torch.linspace(-1, 1, 8).view(2, 4).to(DEVICE)
step = caesura.compile_step(module, torch.nn.functional.cross_entropy, torch.optim.SGD(module.parameters(), lr=0.1))
losses = [float(step(x, torch.tensor([0, 1]).to(DEVICE))) for _ in range(4)]
wrapped = caesura.wrap(module)
for _ in range(3):
    y = wrapped(x)
    y.sum().backward()
print(len(traced), sum(p.is_captured for p in step._programs), float(y.sum().cpu()), losses[-1], cuda.reports(), flush=True)
os._exit(0)
"""


def test_a_later_process_captures_nothing(cuda, tmp_path):  # noqa: F811
    environment = {**os.environ, "CAESURA_PROGRAM_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    (tmp_path / "later.py").write_text(LATER)
    run = [subprocess.run([sys.executable, str(tmp_path / "later.py")], env=environment, stdout=subprocess.PIPE, text=True,
                          check=True).stdout.split() for _ in range(2)]
    assert int(run[0][0]) > 0 and int(run[0][1]) > 0 and run[1][:2] == ["0", "0"]
    assert run[0][2:] == run[1][2:] and run[0][-1] == "[]"
