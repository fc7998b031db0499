# SPDX-License-Identifier: Apache-2.0
"""Forwards that switch autograd or autocast themselves give what eager gives, in every mode of the caller."""

import copy

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import caesura  # noqa: E402


class Switching(nn.Module):
    def __init__(self, run):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.run = nn.Linear(4, 4), run

    def forward(self, x):
        return self.run(self.layer, x)


def some(layer, x):
    first = layer(x)
    with torch.enable_grad():
        second = layer(first)
        with torch.no_grad():
            third = layer(second)
    return first, second, third, second.detach()


def views(layer, x):
    with torch.enable_grad():
        y = layer(x)
        return y, y.view(-1), layer.weight.t(), *y.chunk(2)


def broken(layer, x):
    with torch.enable_grad():
        y = layer(x)
        torch._dynamo.graph_break()
        return y, layer(y)


def views_in_both(layer, x):
    before = layer.weight.t()
    with torch.enable_grad():
        return before, layer(x)


def views_without(layer, x):
    """Views of a parameter and of a tensor that is a view itself, made without gradients where there are some."""
    given = x.view(-1).view(x.shape).requires_grad_()
    with torch.enable_grad():
        y = layer(given)
        with torch.no_grad():
            first, second = layer.weight.t(), y[1:]
            third, _ = layer.weight.split(2)
        return first, second, third[:1], y, y * 2


def set_on(layer, x):
    torch.set_grad_enabled(True)
    y = layer(x)
    torch.set_grad_enabled(False)
    return y, layer(x)


def seen(module, mode):
    found = []
    for _ in range(2):
        module.zero_grad()
        with mode():
            ys = module(torch.linspace(-1, 1, 12).view(3, 4))
        differentiable = [y for y in ys if y.grad_fn is not None]
        if differentiable:
            torch.autograd.backward(differentiable, [torch.ones_like(y) for y in differentiable])
        found += [[y.requires_grad for y in ys], [y.detach() for y in ys], [p.grad for p in module.parameters()]]
    return found


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
@pytest.mark.parametrize("compiler", [caesura.wrap, lambda module: torch.compile(module, backend="caesura")], ids=["wrap", "compile"])
@pytest.mark.parametrize("run", [some, views, broken, views_in_both, views_without, set_on])
def test_autograd_switched_on_by_the_forward(run, compiler):
    torch._dynamo.reset()
    module = Switching(run)
    ours = compiler(copy.deepcopy(module))
    modes = {some: (torch.no_grad, torch.inference_mode), views_without: (torch.no_grad, torch.enable_grad)}
    for mode in modes.get(run, (torch.no_grad,)):
        expected, found = seen(module, mode), seen(ours, mode)
        for a, b in zip(found, expected, strict=True):
            if isinstance(b[0], bool):
                assert a == b
            else:
                torch.testing.assert_close(a, b)
        assert any(expected[0]) == (mode is not torch.inference_mode)


@pytest.mark.parametrize("recorded", [False, True])
def test_writes_of_a_graph_without_gradients_are_recorded_as_in_eager(recorded):
    class Writes(torch.nn.Module):
        def forward(self, first, last):
            with torch.no_grad():
                first[0] = 0.5
            if recorded:
                last.zero_()
            return first, last

    def gradients(module):
        given = [torch.ones(2, 3, requires_grad=True) for _ in range(2)]
        sum(y.sum() for y in module(*(t * 2 for t in given))).backward()
        return [t.grad for t in given]

    torch.testing.assert_close(gradients(caesura.wrap(Writes())), gradients(Writes()))


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_global_hooks_are_called_once_by_a_graph_left_to_pytorch():
    module = Switching(some)
    wrapped, handle = caesura.wrap(module), nn.modules.module.register_module_forward_hook(
        lambda of, args, y: [z * 2 for z in y] if of is module else y)
    try:
        with torch.inference_mode():
            torch.testing.assert_close(list(wrapped(torch.ones(3, 4))), list(module(torch.ones(3, 4))))
    finally:
        handle.remove()


def test_global_hooks_are_not_called_by_a_second_derivative():
    """They were registered after the forward."""
    def run(module):
        y = module(torch.full((2, 3), 0.5)).sin().sum()
        handle = nn.modules.module.register_module_forward_pre_hook(lambda of, given: tuple(t * 2 for t in given))
        try:
            return torch.autograd.grad(y, module.weight, create_graph=True)[0]
        finally:
            handle.remove()

    module = nn.Linear(3, 4)
    with caesura.strict():
        torch.testing.assert_close(run(caesura.wrap(module)), run(module))


class Branches(nn.Module):
    """A branch or a loop in a graph; code like it in eager."""

    def __init__(self, loops):
        super().__init__()
        self.loops, self.w = loops, nn.Parameter(torch.tensor([0.5, 2.0]))

    def forward(self, x):
        if torch.compiler.is_dynamo_compiling() and self.loops:
            loop = torch._higher_order_ops.while_loop
            return loop(lambda i, t: i < 2, lambda i, t: (i + 1, t * 0.5 + 0.1), (torch.tensor(0), x))[1] * self.w
        if torch.compiler.is_dynamo_compiling():
            return torch.cond(x.sum() > 0, lambda t, w: t * w, lambda t, w: t + w, (x, self.w))
        return ((x * 0.5 + 0.1) * 0.5 + 0.1) * self.w if self.loops else x * self.w


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
@pytest.mark.parametrize("loops", [False, True])
def test_global_hooks_are_not_called_for_branches_and_loops(loops):
    module, x = Branches(loops), torch.ones(2)
    wrapped = caesura.wrap(module)
    wrapped(x)
    handle = nn.modules.module.register_module_forward_hook(
        lambda of, args, y: y * 2 if isinstance(y, torch.Tensor) else [z * 2 for z in y])
    try:
        torch.testing.assert_close(wrapped(x), module(x))
    finally:
        handle.remove()


class Remembers(nn.Module):
    """Writes to a buffer with a gradient, which the result does not depend on. In eager each call has a graph of its own for that."""

    def __init__(self, name):
        super().__init__()
        self.name, self.w = name, nn.Parameter(torch.ones(3))
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        total = self.total if self.name else vars(self)["_buffers"]["total"]
        total.add_(x * self.w)
        return x.sin() * self.w, torch._foreach_mul([x, self.w], 2.0)[0]


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
@pytest.mark.parametrize("name", [False, True])
def test_calls_that_follow_one_another_by_a_buffer(name):
    module, x = Remembers(name), torch.ones(3)
    wrapped = caesura.wrap(copy.deepcopy(module))
    for _ in range(3):
        for net in (module, wrapped):
            net(x)[0].sum().backward()
    torch.testing.assert_close((wrapped.w.grad, wrapped.total), (module.w.grad, module.total))


def test_results_of_a_list_require_gradients_together():
    class Lists(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return (*torch._foreach_mul([x, self.w], 2.0), *torch._foreach_add([x, x], [x, x], alpha=2),
                    *torch._foreach_maximum([x, self.w], 0.5))

    found, expected = caesura.wrap(Lists())(torch.ones(3)), Lists()(torch.ones(3))
    assert [y.requires_grad for y in found] == [y.requires_grad for y in expected] == [True, True, False, False, True, True]
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_views_and_writes_in_inference_mode():
    class Infers(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x):
            y, z = x * self.w, x + 1
            with torch.inference_mode():
                z.mul_(2)
                return y, z, x.view(3, 1), x * self.w

    for y in zip(caesura.wrap(Infers())(torch.ones(3)), Infers()(torch.ones(3)), strict=True):
        assert len({t.is_inference() for t in y}) == len({t.requires_grad for t in y}) == 1
        torch.testing.assert_close(*y)


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_a_buffer_that_inference_mode_has_replaced():
    class Averages(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            self.mean = self.mean * 0.5 + x
            return x * self.w, self.mean

    module = Averages()
    wrapped, x = caesura.wrap(module), torch.ones(3)
    for mode in (torch.enable_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            y, mean = wrapped(x)
    y.sum().backward()
    torch.testing.assert_close((mean, module.w.grad), (torch.full((3,), 1.75), x))


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
@pytest.mark.parametrize("compiler", [caesura.wrap, lambda module: module.compile(backend="caesura") or module], ids=["wrap", "compile"])
def test_hooks_of_all_modules_that_come_after_a_graph_break(compiler):
    class Breaks(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            y = self.layer(x)
            torch._dynamo.graph_break()
            return self.layer(x) + y

    module, x = Breaks(), torch.ones(3)
    called = compiler(copy.deepcopy(module))
    called(x)
    for scale in (2, 3):
        handle = nn.modules.module.register_module_forward_pre_hook(lambda of, args, scale=scale: tuple(y * scale for y in args))
        try:
            torch.testing.assert_close(called(x), module(x))
        finally:
            handle.remove()


def test_a_region_without_autocast_has_a_precise_backward():
    """The backward of a region within autocast that casts nothing is that of float32."""
    class Precise(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            with torch.autocast("cpu", enabled=False):
                return self.layer(x)

    module, dy = Precise(), torch.linspace(-1, 1, 12).view(3, 4) / 3
    ours = copy.deepcopy(module)
    for net in (module, caesura.wrap(ours)):
        with torch.autocast("cpu", torch.bfloat16):
            y = net(torch.linspace(-3, 2, 12).view(3, 4))
        y.backward(dy)
    torch.testing.assert_close([p.grad for p in ours.parameters()], [p.grad for p in module.parameters()])


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_what_is_made_to_require_a_gradient_does_in_any_mode():
    class Makes(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x):
            with torch.no_grad():
                y = (x * self.scale).sin()
                first, last = y.split(1, 1)
            y.requires_grad_()
            return first * 1, last

    module = Makes()
    for mode in (torch.enable_grad, torch.no_grad):
        with mode():
            expected, found = module(torch.ones(2, 2)), caesura.wrap(copy.deepcopy(module))(torch.ones(2, 2))
        assert [t.requires_grad for t in found] == [t.requires_grad for t in expected]
