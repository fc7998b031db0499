# SPDX-License-Identifier: Apache-2.0
"""caesura.wrap and the torch.compile backend run PyTorch's kernels for modules on devices other than the CPU."""

import copy
import os

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import caesura  # noqa: E402
from caesura import torch_kernels  # noqa: E402

if not torch_kernels.load():
    pytest.skip("built without LibTorch (CAESURA_TORCH=OFF)", allow_module_level=True)

import standin_device  # noqa: E402

DEVICE = standin_device.load()
pytestmark = pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    caesura.reports.reset()


def language_model(name):
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 50, "intermediate_size": 48}
    if name == "gpt2":
        config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=50, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
        return transformers.GPT2LMHeadModel(config)
    if name == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=2))
    config = transformers.BertConfig(**sizes, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    return transformers.BertForMaskedLM(config)


class Residual(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.first = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.last = torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 5)

    def forward(self, x, labels):
        y = self.stem(x)
        y = F.relu(y + self.norm(self.first(y)))
        return F.cross_entropy(self.last(F.avg_pool2d(y, 8).flatten(1)), labels)


def case(name):
    """Returns a module, and a function (module, batch size) -> loss that calls it on the device."""
    if name == "resnet":
        return Residual(), lambda m, n: m(torch.sin(torch.arange(n * 192.0).view(n, 3, 8, 8)).to(DEVICE),
                                                      torch.arange(n).to(DEVICE) % 5)
    def loss(m, n):
        tokens = (torch.arange(n * 7).view(n, 7) * 3 % 50).to(DEVICE)
        return m(input_ids=tokens, labels=tokens).loss

    return language_model(name), loss


# Each model by one of the two routes, which lead to the same captures; CAESURA_LONG: by both.
@pytest.mark.parametrize("name, route", [("gpt2", "wrap"), ("llama", "compile"), ("bert", "wrap"), ("resnet", "compile")] +
                         [("gpt2", "compile"), ("llama", "wrap"), ("bert", "compile"),
                          ("resnet", "wrap")] * bool(os.environ.get("CAESURA_LONG")))
def test_models_train_as_in_eager(name, route):
    module, loss = case(name)
    other = copy.deepcopy(module).to(DEVICE)  # storages of such devices cannot be copied
    module.to(DEVICE)
    trained = caesura.wrap(other) if route == "wrap" else torch.compile(other, backend="caesura")
    first, second = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, other))
    for step in range(4):
        size = 2 + step % 2
        expected, given = loss(module, size), loss(trained, size)
        assert given.device == DEVICE
        torch.testing.assert_close(given.cpu(), expected.cpu(), rtol=1e-5, atol=1e-6)
        expected.backward()
        given.backward()
        for (parameter_name, p), q in zip(module.named_parameters(), other.parameters(), strict=True):
            assert (q.grad is None) == (p.grad is None), parameter_name
            if p.grad is not None:
                torch.testing.assert_close(q.grad.cpu(), p.grad.cpu(), rtol=1e-3, atol=1e-5, msg=lambda m: f"{parameter_name}: {m}")
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
    for p, q in zip(module.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(q.cpu(), p.cpu())
    report = caesura.stats()
    assert report.eager_calls > 0 and report.kernel_calls == 0


def test_it_is_told_and_can_be_forbidden():
    net = caesura.wrap(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).to(DEVICE))
    x = torch.ones(2, 4, device=DEVICE)
    with caesura.strict(), pytest.raises(Exception, match=f"all calls on {DEVICE}: caesura's kernels are the CPU's"):
        net(x)
    torch._dynamo.reset()
    with pytest.warns(caesura.FallbackWarning, match=f"all calls on {DEVICE}"):
        caesura.wrap(torch.nn.Linear(4, 4).to(DEVICE))(x)


class Halves(torch.nn.Module):
    """A first part on the CPU, a second one on the device."""

    def __init__(self):
        super().__init__()
        self.near, self.far = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.far(F.gelu(self.near(x)).to(DEVICE)).square().sum()


def test_a_part_on_the_cpu_has_our_kernels():
    module, other = Halves(), Halves()
    other.load_state_dict(module.state_dict())
    module.far.to(DEVICE)
    other.far.to(DEVICE)
    wrapped = caesura.wrap(other)
    x = torch.linspace(-1, 1, 30).view(5, 6)
    expected, given = module(x), wrapped(x)
    expected.backward()
    given.backward()
    torch.testing.assert_close(given.cpu(), expected.cpu())
    for p, q in zip(module.parameters(), wrapped.parameters(), strict=True):
        torch.testing.assert_close(q.grad.cpu(), p.grad.cpu())
    report = caesura.stats()
    assert report.kernel_calls > 0 and report.eager_calls > 0


def test_dropout_repeats_under_the_seed():
    net = caesura.wrap(torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Dropout(0.5)).to(DEVICE))
    x = torch.ones(2, 4, device=DEVICE)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(net(x).cpu())
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    with pytest.raises(RuntimeError, match=f"draws random numbers on {DEVICE.type}"):
        torch.autograd.grad(net(x).sum(), net[0].weight, create_graph=True)


def test_derivatives_of_derivatives():
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh()).to(DEVICE)

    def penalty(m):
        x = torch.linspace(-1, 1, 8).view(2, 4).to(DEVICE).requires_grad_()
        (slope,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), module[0].weight)[0].cpu()

    torch.testing.assert_close(penalty(caesura.wrap(module)), penalty(module))


def test_autocast_of_the_device():
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).to(DEVICE)
    wrapped = caesura.wrap(module)
    x = torch.linspace(-1, 1, 24).view(3, 8).to(DEVICE)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        expected, given = module(x), wrapped(x)
    assert given.dtype == expected.dtype
    torch.testing.assert_close(given.cpu(), expected.cpu())


def test_a_compiled_step_names_the_device():
    module = torch.nn.Linear(4, 2).to(DEVICE)
    step = caesura.compile_step(module, F.cross_entropy, torch.optim.AdamW(module.parameters()))
    with pytest.raises(Exception, match=f"{DEVICE}.*caesura.wrap"):
        step(torch.ones(3, 4, device=DEVICE), torch.zeros(3, dtype=torch.long, device=DEVICE))


def test_recurrent_layers_are_pytorchs():
    class Reads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.last = torch.nn.GRU(4, 6, batch_first=True), torch.nn.Linear(6, 2)

        def forward(self, x):
            return self.last(self.layers(x)[0][:, -1])

    module = Reads()
    wrapped, x = caesura.wrap(copy.deepcopy(module).to(DEVICE)), torch.randn(3, 5, 4)
    given, expected = wrapped(x.to(DEVICE)), module(x)
    torch.testing.assert_close(given.cpu(), expected, rtol=1e-4, atol=1e-5)
    given.square().sum().backward()
    expected.square().sum().backward()
    for p, q in zip(wrapped.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-4, atol=1e-5)
