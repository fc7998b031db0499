# SPDX-License-Identifier: Apache-2.0
"""Windows, diagonals, scatters and orders of elements through wrap and compile_step: nothing is left to PyTorch."""

import copy

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import caesura  # noqa: E402

INDEX = torch.tensor([[0, 2, 2, 5, 0], [1, 1, 1, 1, 1], [3, 0, 3, 0, 3], [5, 5, 0, 0, 2]])


def scatter(kind, include_self):
    return lambda x: x[0, 0].scatter_reduce(0, INDEX, x[1, 0, :4, :5], kind, include_self=include_self)


def scatter_rows(kind, columns):
    """Rows 3, 0, 0 and 5 of 7: of all columns, or of some."""
    index = torch.tensor([3, 0, 0, 5])[:, None]
    return lambda x: x[0, 0].scatter_reduce(0, index.expand(-1, columns), x[1, 0, :4, :columns], kind, include_self=False)


CALLS = {
    "unfold": lambda x: x.unfold(2, 3, 2), "unfold the last, a rest": lambda x: x.unfold(-1, 4, 3), "unfold a patch":
    lambda x: x.unfold(1, 2, 2).unfold(3, 2, 2), "unfold whole": lambda x: x.unfold(2, 7, 1),
    "pool 3, 4": lambda x: F.adaptive_avg_pool2d(x, (3, 4)), "pool to more": lambda x: F.adaptive_avg_pool2d(x, (9, 4)),
    "pool one image": lambda x: F.adaptive_avg_pool2d(x[0], (7, 3)),
    "pool a volume": lambda x: F.adaptive_avg_pool3d(x, (3, 4, 5)),
    "pool to a half": lambda x: F.adaptive_avg_pool2d(x, (7, 3)), "pool a line": lambda x: F.adaptive_avg_pool1d(x[0], 4),
    "divisor": lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5),
    "divisor, ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False, divisor_override=2),
    "average of volumes": lambda x: F.avg_pool3d(x, 2, 1, 1, ceil_mode=True, count_include_pad=False),
    "volumes, divisor": lambda x: F.avg_pool3d(x, (2, 3, 3), 2, 1, divisor_override=5),
    "largest of volumes": lambda x: F.max_pool3d(x, 2, 2, 1, ceil_mode=True), "with places": lambda x: F.max_unpool3d(
        *F.max_pool3d(x, 2, return_indices=True), 2, output_size=(4, 7, 6)),
    "adaptive maximum of a line": lambda x: F.adaptive_max_pool1d(x[0], 4), "of a plane": lambda x: F.adaptive_max_pool2d(x, (3, 4)),
    "evenly": lambda x: F.adaptive_max_pool2d(x, (7, 3)), "of a volume": lambda x: F.adaptive_max_pool3d(x, (3, 4, 5)),
    "of a volume, places": lambda x: F.adaptive_max_pool3d(x, (3, 4, 5), return_indices=True)[1] * x.sum(),
    "fractional": lambda x: F.fractional_max_pool2d(x, (2, 3), (4, 3), _random_samples=torch.linspace(0, 0.9, 16).view(2, 4, 2)),
    "fractional volume": lambda x: F.fractional_max_pool3d(x, 2, (2, 5, 1), _random_samples=torch.linspace(0, 0.9, 6).view(1, 2, 3)),
    "diagonal": lambda x: x.diagonal_scatter(x[:, 1, :, :4] * 2, 0, 1, 3),
    "diagonal below": lambda x: x.diagonal_scatter(x[:, :, 0, :5] * 2, -2, 2, 3),
    "replication": lambda x: F.pad(x, (2, 1, 0, 3), mode="replicate"),
    "stable": lambda x: x.round().sort(dim=2, stable=True, descending=True).values * torch.arange(6),
} | {f"scatter {kind}{'' if own else ' without'}": scatter(kind, own) for kind in ("sum", "mean", "prod", "amax", "amin")
     for own in (True, False)} | {f"scatter rows {kind} {n}": scatter_rows(kind, n) for kind in ("sum", "mean", "amax") for n in (6, 4)
     } | {"gather rows": lambda x: x[0, 0].gather(0, torch.tensor([[2], [0], [2]]).expand(3, 6)),
          "gather rows of planes": lambda x: x[0].gather(-3, torch.tensor([2, 0, 2])[:, None, None].expand_as(x[0, :3]))}


class Call(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call, self.scale = call, torch.nn.Parameter(torch.randn(2, 4, 7, 6))

    def forward(self, x):
        y = self.call(self.scale * x)
        return (y * torch.linspace(1, 2, y.numel()).view(y.shape)).sum()


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_as_eager(call):
    plain, x = Call(call), torch.randn(2, 4, 7, 6)
    wrapped, trained = copy.deepcopy(plain), copy.deepcopy(plain)
    expected = plain(x)
    expected.backward()
    with caesura.strict():
        given = caesura.wrap(wrapped)(x)
        given.backward()
        loss = caesura.compile_step(trained, None, torch.optim.SGD(trained.parameters(), lr=1.0))(x)
    assert [given.item(), loss.item()] == pytest.approx([expected.item()] * 2, rel=1e-5, abs=1e-4)
    torch.testing.assert_close(wrapped.scale.grad, plain.scale.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(plain.scale - trained.scale, plain.scale.grad, rtol=1e-5, atol=1e-5)


def test_rows_that_indices_give_are_moved_as_rows(tmp_path):
    import onnx

    class Rows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(1))

        def forward(self, x, index):
            y = x.new_zeros(7, 6).scatter_add(0, index[:, None].expand_as(x), self.scale * x)
            return y.gather(0, index[:, None].expand(-1, 6)).sum()

    module, arguments = Rows(), (torch.randn(4, 6), torch.tensor([3, 0, 0, 5]))
    caesura.compile_step(module, None, torch.optim.SGD(module.parameters())).export(tmp_path, *arguments)
    ops = {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    assert {"ScatterND", "Gather"} <= ops and not ops & {"ScatterElements", "GatherElements"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pool_keeps_what_is_infinite_in_its_windows(dtype):
    x = torch.ones(1, 2, 7, 5, dtype=dtype)
    x[0, 0, 0, 0], x[0, 1, 6, 4] = torch.inf, torch.nan
    with caesura.strict():
        y = caesura.wrap(torch.nn.AdaptiveAvgPool2d((3, 4)))(x)
    torch.testing.assert_close(y, F.adaptive_avg_pool2d(x, (3, 4)), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
@pytest.mark.parametrize("descending", [False, True])
def test_equal_elements_keep_their_order(dtype, descending):
    class Order(torch.nn.Module):
        def forward(self, x):
            values = x.sort(dim=0, descending=descending, stable=True).values
            return torch.argsort(x, descending=descending, stable=True), values

    x = torch.randint(0, 4, (3, 100)).to(dtype)
    if dtype == torch.float32:
        x[:, 50] = torch.nan
    with caesura.strict():
        order, values = caesura.wrap(Order())(x)
    assert torch.equal(order, torch.argsort(x, descending=descending, stable=True))
    torch.testing.assert_close(values, x.sort(0, descending).values, equal_nan=True)


@pytest.mark.parametrize("window", [dict(kernel_size=(2, 40)), dict(kernel_size=(3, 20), padding=(1, 9), stride=(2, 7)),
                                    dict(kernel_size=(2, 17), dilation=(1, 2), padding=(0, 8)), dict(kernel_size=(3, 300))])
def test_long_windows_find_the_place_that_pytorch_finds(window):
    x = torch.randn(2, 3, 4, 300).round(decimals=1)
    x[0, 1, 2, 77], x[1, 0, 1, 5:9], x[1, 2] = torch.nan, torch.nan, -torch.inf
    expected, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    with caesura.strict():
        y = caesura.wrap(torch.nn.MaxPool2d(**window))(other)
    z = F.max_pool2d(expected, **window)
    assert torch.equal(y.nan_to_num(9), z.nan_to_num(9))
    weights = torch.randn_like(z)
    (weights * y).sum().backward()
    (weights * z).sum().backward()
    torch.testing.assert_close(other.grad, expected.grad, equal_nan=True)


@pytest.mark.parametrize("net, shape", [
    (torch.nn.Conv2d(4, 6, (5, 1)), (2, 4, 9, 1)), (torch.nn.Conv2d(4, 6, (1, 3), (1, 2), (0, 1)), (2, 4, 1, 9)),
    (torch.nn.Conv3d(4, 6, (1, 3, 1), groups=2), (2, 4, 1, 9, 1)), (torch.nn.Conv2d(4, 6, 1), (2, 4, 1, 1)),
    (torch.nn.ConvTranspose2d(4, 6, (3, 1), (2, 1)), (2, 4, 5, 1)), (torch.nn.Conv2d(4, 6, (3, 1), padding=(0, 1)), (2, 4, 9, 1))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_axes_of_one_position_may_be_left_out(net, shape, dtype):
    net, x = net.to(dtype), torch.randn(shape, dtype=dtype)
    given = [x.clone().requires_grad_() for _ in range(2)]
    with caesura.strict():
        y = caesura.wrap(net)(given[0])
    z = net(given[1])
    torch.testing.assert_close(y, z)
    ours, theirs = (torch.autograd.grad(out.square().sum(), [a, *net.parameters()]) for out, a in zip((y, z), given))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_running_sums_of_powers_are_pytorchs(axis, dtype):
    class Running(torch.nn.Module):
        def forward(self, x):
            return x.logcumsumexp(axis)

    x = (20 * torch.randn(3, 4, 300)).to(dtype)
    x[0, 0, :3], x[1, 1, 5], x[2, 2, 7] = -torch.inf, torch.inf, torch.nan
    with caesura.strict():
        torch.testing.assert_close(caesura.wrap(Running())(x), x.logcumsumexp(axis), equal_nan=True)
    x = (3 * torch.randn(3, 4, 300, dtype=torch.float64)).to(dtype)
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    weights = torch.randn_like(x)
    with caesura.strict():
        (weights * caesura.wrap(Running())(ours)).sum().backward()
    (weights * theirs.logcumsumexp(axis)).sum().backward()
    close = dict(rtol=0.1, atol=0.1) if dtype == torch.bfloat16 else dict(rtol=1e-4, atol=1e-4)  # PyTorch's are of logarithms
    torch.testing.assert_close(ours.grad, theirs.grad, **close)
    if dtype == torch.bfloat16:
        return

    class Moved(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.x = torch.nn.Parameter(x.clone())

        def forward(self, weights):
            return (weights * self.x.logcumsumexp(axis)).sum()

    moved = Moved()
    with caesura.strict():
        caesura.compile_step(moved, None, torch.optim.SGD(moved.parameters(), lr=1.0))(weights)
    torch.testing.assert_close(x - moved.x.detach(), theirs.grad, **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("columns", [1, 7, 64, 300])
def test_equal_elements_are_sorted_as_by_pytorch(columns, descending, dtype):
    x = torch.randn(6, columns).to(dtype)
    x[1:3] = x[1:3].round()
    x[3, ::3], x[4, ::2], x[5] = torch.nan, -0.0, 0.0
    x[4, 1::2] = 0.0
    with caesura.strict():
        values, places = caesura.wrap(Sort())(x, descending)
    torch.testing.assert_close(values, x.sort(-1, descending).values, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(places, x.sort(-1, descending).indices)


class Sort(torch.nn.Module):
    def forward(self, x, descending):
        return tuple(x.sort(-1, descending))


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")  # of the transforms themselves
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_an_inverse_transform_divides_by_one_envelope_for_the_whole_batch(batch):
    window = torch.hann_window(16, dtype=torch.float64)

    class Spectral(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))

        def forward(self, x):
            spectrum = torch.stft(x * self.scale, 16, 4, window=window, return_complex=True)
            return torch.istft(spectrum * spectrum.abs(), 16, 4, window=window)

    torch._dynamo.reset()
    module = Spectral()
    wrapped, x = caesura.wrap(copy.deepcopy(module)), torch.randn(batch, 64, dtype=torch.float64)
    for net in (module, wrapped):
        net(x).square().sum().backward()
    torch.testing.assert_close(wrapped(x), module(x))
    torch.testing.assert_close(wrapped.scale.grad, module.scale.grad)
