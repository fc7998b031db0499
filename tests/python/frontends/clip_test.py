# SPDX-License-Identifier: Apache-2.0
"""caesura.clip_grad_norm_ beside torch.nn.utils.clip_grad_norm_."""

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import caesura  # noqa: E402

eager = nn.utils.clip_grad_norm_


def parameters(dtype=torch.float32):
    """Parameters with gradients of several sizes and layouts; the last has none."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((), (0, 3), (5,), (3, 4), (70, 71), (2, 3, 4, 5))
    given = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in (*shapes, (2,))]
    for p, shape in zip(given, shapes):
        p.grad = torch.randn(shape, generator=generator, dtype=dtype)
    given[3].grad = torch.randn(4, 3, generator=generator, dtype=dtype).T
    given[5].grad = given[5].grad.contiguous(memory_format=torch.channels_last)
    return given


def copies(given):
    """The same parameters with gradients of their own; one that is given twice stays one."""
    made = {id(p): nn.Parameter(p.detach()) for p in given}
    for p in given:
        made[id(p)].grad = None if p.grad is None else p.grad.clone()
    return [made[id(p)] for p in given]


def clipped(function, given, *args, **kwargs):
    """The norm and the gradients after a call on a copy."""
    given = copies(given)
    norm = function((p for p in given), *args, **kwargs)
    return norm, [p.grad for p in given]


def same(given, *args, **kwargs):
    ours, theirs = (clipped(function, given, *args, **kwargs) for function in (caesura.clip_grad_norm_, eager))
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    return ours


@pytest.fixture
def called(monkeypatch):
    """The calls of PyTorch's own function."""
    calls = []
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *args: calls.append(args) or eager(*args))
    return calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("max_norm", [0.5, 1e4, 0.0, float("inf")])
def test_norms_and_gradients_are_eagers(dtype, max_norm, called):
    norm, gradients = same(parameters(dtype), max_norm)
    assert not called and norm.dtype == dtype and not norm.requires_grad
    assert gradients[5].is_contiguous(memory_format=torch.channels_last) and gradients[6] is None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_norms_that_are_not_finite(value):
    given = parameters()
    given[4].grad[3, 5] = value
    same(given, 1.0)
    before = copies(given)
    with pytest.raises(RuntimeError, match="total norm of order 2.0 .* is non-finite"):
        caesura.clip_grad_norm_(given, 1.0, error_if_nonfinite=True)
    torch.testing.assert_close([p.grad for p in given[:6]], [p.grad for p in before[:6]], rtol=0, atol=0, equal_nan=True)
    same(parameters(), 1.0, error_if_nonfinite=True)


def test_a_tensor_alone_and_one_that_is_given_twice():
    given = parameters()
    same([given[2], given[2]], 0.1)
    torch.testing.assert_close(caesura.clip_grad_norm_(given[4], 0.1), eager(parameters()[4], 0.1))


@pytest.mark.parametrize("what", ["order", "inf", "half", "mixed", "none"])
def test_pytorch_does_the_rest(what, called):
    given, more = parameters(torch.float16 if what == "half" else torch.float32), {}
    if what in ("order", "inf"):
        more["norm_type"], given = {"order": 1.5, "inf": "inf"}[what], given[2:]
    if what == "mixed":
        given += parameters(torch.float64)
    if what == "none":
        given = given[-1:]
    same(given, 0.5, **more)
    assert len(called) == 1


def test_a_gradient_whose_elements_share_memory_is_refused_by_pytorch():
    p = nn.Parameter(torch.zeros(3, 2))
    p.grad = torch.ones(1, 2).expand(3, 2)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        caesura.clip_grad_norm_(p, 1e-3)


def test_nothing_to_clip_warns_as_eager():
    with pytest.warns(UserWarning, match="empty generator"):
        assert caesura.clip_grad_norm_((p for p in ()), 1.0) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert caesura.clip_grad_norm_([], 1.0) == 0


def test_a_graph_notices_the_clipping():
    p = nn.Parameter(torch.ones(3))
    (p ** 2).sum().backward(create_graph=True)
    used = p.grad * p.grad
    caesura.clip_grad_norm_([p], 0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        used.sum().backward()


def test_the_bits_do_not_depend_on_threads(monkeypatch):
    given, results = parameters(), []
    given.append(nn.Parameter(torch.zeros(1 << 18)))
    given[-1].grad = torch.randn(1 << 18, generator=torch.Generator().manual_seed(1))
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("CAESURA_NUM_THREADS", threads)
        results.append(clipped(caesura.clip_grad_norm_, given, 1.0))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=0, atol=0)


def test_loops_train_as_eagers():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(5, 4)
    losses = []
    for clip, fuse in ((eager, lambda optimizer: optimizer), (caesura.clip_grad_norm_, caesura.fuse)):
        model = copy.deepcopy(net)
        optimizer = fuse(torch.optim.SGD(model.parameters(), lr=0.5))
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            clip(model.parameters(), 0.1)
            optimizer.step()
            losses.append(loss.item())
    assert losses[:4] == pytest.approx(losses[4:], rel=1e-5)
