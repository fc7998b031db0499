# SPDX-License-Identifier: Apache-2.0
"""Complex numbers in wrapped modules, in graphs of torch.compile and in compiled steps, beside eager."""

import copy
import os

import pytest

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn

import caesura  # noqa: E402
from compile_step_test import eager, fresh, same  # noqa: E402, F401


class Rotary(nn.Module):
    """Rotary positions as complex factors, as in Llama's original code."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads, self.project = heads, nn.Linear(width, 3 * width)
        angles = torch.outer(torch.arange(32.0), 100 ** -torch.linspace(0, 1, width // heads // 2))
        self.register_buffer("factors", torch.polar(torch.ones_like(angles), angles))
        self.last = nn.Linear(width, 4)

    def rotate(self, x):
        pairs = torch.view_as_complex(x.to(self.factors.real.dtype).reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.factors[: x.shape[1], None]).flatten(3).type_as(x)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.project(x).chunk(3, -1))
        q, k, v = (t.transpose(1, 2) for t in (self.rotate(q), self.rotate(k), v))
        return self.last(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)).mean(1)


class Fourier(nn.Module):
    """A Fourier layer with complex weights, magnitudes and phases."""

    def __init__(self, width=16, modes=5):
        super().__init__()
        self.modes, self.lift = modes, nn.Linear(16, width)
        self.weight = nn.Parameter(torch.randn(width, width, modes, dtype=torch.complex64) / width)
        self.last = nn.Linear(width, 4)

    def forward(self, x):
        x = self.lift(x).transpose(1, 2)
        spectrum = torch.fft.rfft(x, norm="ortho")
        mixed = torch.einsum("bim,iom->bom", spectrum[..., : self.modes], self.weight)
        y = torch.fft.irfft(F.pad(mixed, (0, spectrum.shape[-1] - self.modes)), n=x.shape[-1], norm="ortho")
        return self.last(F.gelu(x + y).mean(-1)) + spectrum.abs().mean() + (mixed * 1j).angle().cos().mean()


class Parts(nn.Module):
    """Arithmetic of all kinds, with numbers and real tensors in it."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x):
        z = torch.complex(self.a(x), self.b(x))
        w = (z * (2 - 1j) + z.conj() * z.real + 0.5).transpose(0, 1) / 3 - self.a(x).transpose(0, 1)
        w = torch.cat([w, -w.conj(), z.transpose(0, 1)[::2] * 1j + 1], 0).sum(0) @ torch.eye(4).to(w.dtype)
        return w.real + w.imag + torch.view_as_real(w.mean(0)).sum() + w.to(torch.complex128).imag.to(x.dtype)


class Placed(nn.Module):
    """Writes values into tensors, and selects among several."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x):
        z, rows = torch.complex(self.a(x), self.b(x)), torch.arange(x.shape[0]).flip(0)
        w = torch.zeros_like(z)
        w[..., :3] = z[..., 1:] * 2j
        w[:, 0] = z[:, 1].conj()
        w[:, 2, 1] = self.a(x)[:, 0, 0].to(z.dtype)
        w = w.index_add(0, rows, z * 1j, alpha=2).index_copy(2, torch.tensor([3]), z[..., :1])
        w = torch.where(x[..., :4] > 0, w, z * 3).masked_fill(x[..., 4:8] > 1, 0.5 - 1j)
        w = w.scatter(2, torch.tensor([2, 1]).expand(*z.shape[:2], 2), z[..., 2:] * 1j)
        w = w.index_put((rows,), z * w, accumulate=True) + torch.full_like(z, 2j) + torch.full(z.shape, 1 + 1j, dtype=z.dtype)
        w = w.scatter_add(2, torch.tensor([3, 0]).expand(*z.shape[:2], 2), z[..., :2])
        w = torch.diagonal_scatter(w, z[:, :4, 0] * 1j, dim1=1, dim2=2)
        w = F.pad(w, (1, 2), value=1.5)
        return w.real + w.imag.square()


class Correlation(nn.Module):
    """A transform of transposed values, whose strides change when numbers become pairs."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 16)

    def forward(self, x):
        y = torch.fft.rfft(self.a(x).view(*x.shape[:2], 2, 8).transpose(1, 2), dim=2)
        return torch.fft.irfft(y * y.conj(), n=x.shape[1], dim=2).transpose(1, 2).flatten(2)[..., :4] + y.real.mean()


class Moved(nn.Module):
    """Moves whole numbers in every way between two transforms, and multiplies matrices of them and their conjugates."""

    def __init__(self):
        super().__init__()
        self.a, self.weight = nn.Linear(16, 16), nn.Parameter(torch.randn(4, 4, dtype=torch.complex64) / 4)

    def forward(self, x):
        z = torch.fft.fft(self.a(x))
        y = torch.roll(z, (1, -2), (-1, 1)).flip(-2)[..., 3:11:2].unsqueeze(-1).squeeze(-1).permute(-2, 0, -1)
        y = torch.cat([y, -y.index_select(-1, torch.tensor([3, 0, 0])).repeat(1, 2, 1)[:, ::2]], -1)[..., :4]
        y = y.conj() @ self.weight.T + y * x.mean() - (y @ self.weight.conj()).conj() / 2
        y = y + (y.transpose(-1, 0).conj() * x[0, 0, 0]).sum(-1, keepdim=True).mean((1, -1))
        y = y + y.select(-1, -1).unsqueeze(-1).expand(-1, -1, 4)
        y = y.reshape(y.shape[0], -1) * torch.linspace(0, 1, 3 * 4, dtype=x.dtype)
        w = torch.zeros(x.shape[1], 3, 9, dtype=z.dtype)
        w[..., 2:6] = y.view(-1, 3, 4)
        w[:, :, -1] = w[:, :, 3] + z[0, :, :3]
        w = torch.where(w.abs() > 100, 0, w.to(torch.complex128).to(z.dtype))
        return torch.fft.irfft(w, norm="forward")[..., :4].transpose(0, 1) + torch.fft.ifft(y).imag.mean() + z.detach().view(x.dtype).mean()


MODULES = [Rotary, Fourier, Parts, Placed, Correlation, Moved]


def data(count, time=12, dtype=torch.float32):
    return [(torch.randn(3, time, 16, dtype=dtype), torch.randint(0, 4, (3,))) for _ in range(count)]


def in_double(module):
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = tensor.data.to(torch.complex128 if tensor.is_complex() else torch.float64)
    return module


def loss(y, target):
    return F.cross_entropy(y if y.dim() == 2 else y.mean(1), target)


# The second size is captured with sizes that change, so the first one need not be, but once. CAESURA_LONG: each.
@pytest.mark.parametrize("make, dynamic", [(make, None) for make in MODULES] +
                         [(make, True) for make in (MODULES if os.environ.get("CAESURA_LONG") else [Fourier])])
@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_wrap(make, dynamic):
    module = make()
    wrapped = caesura.wrap(copy.deepcopy(module), dynamic=dynamic)
    for time in (12, 9, 12):
        x, target = data(1, time)[0]
        given = [x.clone().requires_grad_() for _ in range(2)]
        for m, t in zip((module, wrapped), given):
            loss(m(t), target).backward()
        torch.testing.assert_close(given[1].grad, given[0].grad, rtol=1e-4, atol=1e-6)
        for expected, actual in zip(module.parameters(), wrapped.parameters(), strict=True):
            torch.testing.assert_close(actual.grad, expected.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", MODULES)
@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_compile_step(make):
    module = in_double(make())
    other = copy.deepcopy(module)
    batches = data(3, dtype=torch.float64) + data(2, 9, torch.float64)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, other)]
    expected = eager(module, optimizers[0], batches, loss, clip=0.1)
    step = caesura.compile_step(other, loss, optimizers[1], clip_norm=0.1)
    losses = [step(*batch).item() for batch in batches]
    assert losses == pytest.approx(expected, rel=1e-9)
    same(module, other, atol=1e-5)
    for p, q in zip(module.parameters(), other.parameters()):
        torch.testing.assert_close(optimizers[1].state[q]["exp_avg"], optimizers[0].state[p]["exp_avg"], rtol=1e-3, atol=1e-6)


# PyTorch steps Adadelta. Unlike Rprop and Adagrad it does not depend on the sign of values that are rounding only.
@pytest.mark.parametrize("optimizer", [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.Adadelta(p, lr=10)])
@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_complex_parameters_move(optimizer):
    module = Fourier()
    other, batches = copy.deepcopy(module), data(4)
    step = caesura.compile_step(other, loss, optimizer(other.parameters()))
    its = optimizer(module.parameters())
    expected = eager(module, its, batches[:2], loss)
    assert [step(*batch).item() for batch in batches[:2]] == pytest.approx(expected, rel=1e-5)
    other.weight.data = other.weight.data.clone() * 2
    module.weight.data *= 2
    assert [step(*batch).item() for batch in batches[2:]] == pytest.approx(eager(module, its, batches[2:], loss), rel=1e-5)
    same(module, other, atol=1e-5)


def test_rotary_positions_are_ours():
    """Our kernels run rotary positions; nothing is left to PyTorch."""
    module = Rotary()
    x, target = data(1)[0]
    with caesura.strict():
        loss(caesura.wrap(copy.deepcopy(module))(x), target).backward()
        step = caesura.compile_step(module, loss, torch.optim.AdamW(module.parameters()))
        step(x, target)
    assert not caesura.stats().fallbacks and caesura.stats().eager_calls == 0


class Rotates(nn.Module):
    """Only products of complex matrices."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4, dtype=torch.complex64))

    def forward(self, x):
        y = torch.view_as_complex(x.unflatten(-1, (-1, 2))) @ self.weight
        return y.real * y.real + y.imag * y.imag


@pytest.mark.parametrize("make", [Rotary, Rotates])
def test_exported(make, tmp_path):
    module, batches = make(), data(4)
    other = copy.deepcopy(module)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, other)]
    expected = eager(module, optimizers[0], batches, loss)
    caesura.compile_step(other, loss, optimizers[1]).export(tmp_path, *batches[0])
    session = caesura.TrainingSession.open(tmp_path)
    losses = [session.step({"x": x.numpy(), "target": y.numpy()}) for x, y in batches]
    assert losses == pytest.approx(expected, rel=1e-4)
    session.save(tmp_path / "state.safetensors")
    caesura.load(tmp_path, other, optimizers[1])
    same(module, other, atol=1e-5)
    for p, q in zip(module.parameters(), other.parameters()):
        torch.testing.assert_close(optimizers[1].state[q]["exp_avg"], optimizers[0].state[p]["exp_avg"], rtol=1e-3, atol=1e-6)


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_strides_of_what_is_put_together():
    class Strided(nn.Module):
        def forward(self, x):
            return torch.as_strided_copy(x * 2j, (2, 2), (1, 2))

    first = torch.randn(4, 4, dtype=torch.complex64, requires_grad=True)
    second = first.detach().clone().requires_grad_()
    for module, x in ((Strided(), first), (caesura.wrap(Strided()), second)):
        module(x).abs().square().sum().backward()
    torch.testing.assert_close(second.grad, first.grad)


def test_refuses_writes_to_complex_buffers():
    class Keeps(Rotary):
        def forward(self, x):
            self.factors.mul_(1j)
            return super().forward(x)

    module = Keeps()
    step = caesura.compile_step(module, loss, torch.optim.SGD(module.parameters(), lr=0.1))
    with pytest.raises(caesura.StepRefused, match="factors, whose numbers are complex"):
        step(*data(1)[0])
