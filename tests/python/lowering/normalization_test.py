# SPDX-License-Identifier: Apache-2.0
"""Norms over channels equal eager's through wrap and compile_step, with running, fixed and no statistics."""

import copy
import os

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import caesura  # noqa: E402

X = (3, 6, 5, 4)


def fixed(norm):
    """Returns the batch norm in evaluation mode, after one batch."""
    norm(torch.randn(X) * 2 + 1)
    return norm.eval()


MAKERS = {
    "group": lambda: nn.GroupNorm(2, 6), "group, plain": lambda: nn.GroupNorm(3, 6, affine=False),
    "instance": lambda: nn.InstanceNorm2d(6, affine=True), "instance, plain": lambda: nn.InstanceNorm2d(6),
    "batch": lambda: nn.BatchNorm2d(6), "batch, no statistics": lambda: nn.BatchNorm2d(6, track_running_stats=False),
    "batch, fixed": lambda: fixed(nn.BatchNorm2d(6)), "batch, fixed, plain": lambda: fixed(nn.BatchNorm2d(6, affine=False)),
}


@pytest.fixture(params=MAKERS)
def norm(request):
    torch.manual_seed(0)
    torch._dynamo.reset()
    made = MAKERS[request.param]()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.uniform_(0.5, 2)
    return made


@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 1e-4), (torch.float64, 1e-11)])
def test_wrapped(norm, dtype, tolerance):
    plain = norm.to(dtype)
    wrapped = caesura.wrap(copy.deepcopy(plain))
    caesura.reports.reset()
    for shape in (X, X, (4, 6, 3, 3)):
        x = torch.randn(shape, dtype=dtype)
        results = []
        for module in (plain, wrapped):
            given = x.clone().requires_grad_()
            y = module(given)
            (y * torch.arange(y.numel(), dtype=dtype).reshape(y.shape).sin()).sum().backward()
            results.append([y, given.grad, *(p.grad for p in module.parameters())])
        for expected, actual in zip(*results):
            torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
        for expected, actual in zip(plain.buffers(), wrapped.buffers()):
            torch.testing.assert_close(actual, expected, rtol=min(tolerance, 1e-6), atol=min(tolerance, 1e-6))
    left = [line for line in str(caesura.stats()).splitlines() if "norm" in line]
    assert not left, left


def test_under_autocast(norm):
    plain, wrapped = norm, caesura.wrap(copy.deepcopy(norm))
    conv = nn.Conv2d(6, 6, 1)
    caesura.reports.reset()
    results = []
    for module in (plain, wrapped):
        x = torch.linspace(-2, 2, 3 * 6 * 20).sin().reshape(X).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = module(conv(x))
        (y * torch.arange(y.numel()).reshape(y.shape).sin()).sum().backward()
        results.append([y, x.grad, *(p.grad for p in module.parameters()), *module.buffers()])
    for expected, actual in zip(*results):
        assert actual.dtype == expected.dtype
        torch.testing.assert_close(actual, expected, rtol=5e-2, atol=5e-2 * expected.abs().max().item())  # bfloat16
    left = [line for line in str(caesura.stats()).splitlines() if "norm" in line]
    assert not left, left


def test_compiled_step(norm):
    def losses(step_of):
        module = nn.Sequential(nn.Conv2d(2, 6, 3), copy.deepcopy(norm), nn.ReLU(), nn.Flatten(), nn.Linear(54, 4))
        module.load_state_dict(start | {k: v for k, v in module.state_dict().items() if k.startswith("1.")})
        step = step_of(module, torch.optim.SGD(module.parameters(), 0.1))
        return [step(x, y).item() for _ in range(4)], [*module.parameters(), *module.buffers()]

    def eager(module, optimizer):
        def step(x, y):
            loss = nn.functional.cross_entropy(module(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss
        return step

    start = nn.Sequential(nn.Conv2d(2, 6, 3), nn.Identity(), nn.Identity(), nn.Identity(), nn.Linear(54, 4)).state_dict()
    x, y = torch.randn(4, 2, 5, 5), torch.tensor([0, 1, 2, 3])
    expected, plain = losses(eager)
    actual, trained = losses(lambda module, optimizer: caesura.compile_step(module, nn.functional.cross_entropy, optimizer))
    assert actual == pytest.approx(expected, rel=1e-4)
    for a, b in zip(trained, plain):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


DOUBLES = {
    "batch": lambda: nn.BatchNorm2d(6, 1e-3, 0.3),
    "batch, twice": lambda: (lambda n: nn.Sequential(n, n))(nn.BatchNorm2d(6, 1e-3, 0.3)),
    "batch, fixed": lambda: fixed(nn.BatchNorm2d(6, 1e-3)), "instance": lambda: nn.InstanceNorm2d(6, 1e-3, 0.3, True, True),
    "group": lambda: nn.GroupNorm(2, 6, 1e-3),
}


# Sizes that change begin with a program for one size. CAESURA_LONG: also three steps of that one.
@pytest.mark.parametrize("of_sizes", [[X, (4, 6, 3, 3), (2, 6, 5, 5)], [X] * 3][:2 if os.environ.get("CAESURA_LONG") else 1],
                         ids=lambda sizes: "one size" if sizes[1:] == sizes[:-1] else "sizes that change")
@pytest.mark.parametrize("make", DOUBLES.values(), ids=DOUBLES)
def test_options_are_doubles(make, of_sizes):
    """Epsilon and momentum keep float64's precision, although ONNX stores them as float32 attributes."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    plain = make().double()
    wrapped, trained = copy.deepcopy(plain), copy.deepcopy(plain)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (plain, wrapped, trained)]
    run, step = caesura.wrap(wrapped), caesura.compile_step(trained, lambda y, scale: (y ** 3).sum() * scale, optimizers[2])
    scale = torch.tensor(1e-3, dtype=torch.float64)
    for size in of_sizes:
        x = torch.randn(size, dtype=torch.float64)
        losses = []
        for module, optimizer in zip((plain, run), optimizers):
            losses.append((module(x) ** 3).sum() * scale)
            optimizer.zero_grad()
            losses[-1].backward()
            optimizer.step()
        assert [losses[1].item(), step(x, scale).item()] == pytest.approx([losses[0].item()] * 2, rel=1e-11)
    for module in (wrapped, trained):
        for a, b in zip(module.state_dict().values(), plain.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
