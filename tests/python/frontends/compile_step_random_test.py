# SPDX-License-Identifier: Apache-2.0
"""A compiled step's random numbers follow PyTorch's generator."""

import copy

import pytest

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn

import caesura  # noqa: E402


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.4), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))


def compiled(module, **options):
    return caesura.compile_step(module, F.cross_entropy, torch.optim.SGD(module.parameters(), lr=0.0), **options)


DATA = torch.randn(16, 6, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 4


@pytest.mark.parametrize("options", [{}, {"accumulation_steps": 2}, {"precision": "bf16"}, {"memory_budget": 6000}])
def test_a_seed_repeats_the_masks(options):
    """A seed repeats the masks from the capturing call on, after any calls between, and at any place of a window."""
    step = compiled(net(), **options)
    losses = []
    for calls_between in (0, 1, 2, 3):
        torch.manual_seed(7)
        losses.append([step(*DATA).item() for _ in range(3)])
        for _ in range(calls_between):
            step(*DATA)
    assert all(other == losses[0] for other in losses) and len(set(losses[0])) == 3


def test_a_state_of_the_generator_repeats_them():
    step = compiled(net())
    step(*DATA)
    state = torch.get_rng_state()
    first = [step(*DATA).item() for _ in range(3)]
    torch.set_rng_state(state)
    assert [step(*DATA).item() for _ in range(3)] == first


def test_a_resumed_run_is_the_same_run():
    def run(module, optimizer, calls):
        step = caesura.compile_step(module, F.cross_entropy, optimizer)
        return [step(*DATA).item() for _ in range(calls)]

    def make():
        module = net()
        return module, torch.optim.AdamW(module.parameters(), lr=0.05)

    whole = make()
    torch.manual_seed(3)
    losses = run(*whole, 6)
    first = make()
    torch.manual_seed(3)
    assert run(*first, 3) == losses[:3]
    saved = copy.deepcopy((first[0].state_dict(), first[1].state_dict(), torch.get_rng_state()))
    torch.manual_seed(99)
    second = make()
    second[0].load_state_dict(saved[0])
    second[1].load_state_dict(saved[1])
    torch.set_rng_state(saved[2])
    assert run(*second, 3) == losses[3:]
    for a, b in zip(whole[0].parameters(), second[0].parameters()):
        assert torch.equal(a, b)


def test_draws_of_both_kinds_keep_their_order():
    """PyTorch draws for dropout2d, and our kernel for dropout. The first call captures; the later ones do not."""
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(6, 32), nn.Linear(32, 4)

        def forward(self, x):
            y = F.dropout2d(self.first(x)[..., None, None], 0.5)[..., 0, 0]
            return self.last(F.dropout(y, 0.3))

    step = compiled(Both())
    torch.manual_seed(5)
    losses = [step(*DATA).item() for _ in range(4)]
    torch.manual_seed(5)
    assert [step(*DATA).item() for _ in range(4)] == losses and len(set(losses)) == 4


def test_a_step_without_random_ops_draws_nothing():
    module = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.0), nn.Linear(8, 4))
    step = compiled(module)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    for _ in range(4):
        step(*DATA)
    assert torch.equal(torch.get_rng_state(), before)


def test_backward_has_the_forwards_mask():
    """A weight's gradient is zero exactly where the dropout hides it from the loss."""
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(512))

        def forward(self, x):
            return F.dropout(F.dropout(self.weight * x, 0.5), 0.5).sum()

    module = Masked()
    step = caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=1.0))
    for _ in range(3):
        with torch.no_grad():
            module.weight.fill_(1.0)
        loss = step(torch.ones(512)).item()
        gradient = 1 - module.weight.detach()
        assert set(gradient.tolist()) <= {0.0, 4.0} and gradient.sum().item() == pytest.approx(loss)


class Dropping(nn.Module):
    """Dropouts of several layouts, of lengths that vary, in an attention and within recurrent layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.block = nn.Embedding(20, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.recurrent, self.image = nn.LSTM(8, 4, 2, dropout=0.3, batch_first=True), nn.Conv2d(1, 4, 3)

    def forward(self, tokens):
        hidden = self.block(self.embed(tokens))
        image = F.dropout(self.image(hidden[:, None].contiguous(memory_format=torch.channels_last)), 0.4)
        return self.recurrent(hidden)[0].square().mean() + F.dropout2d(image, 0.3).square().mean() + F.dropout(hidden.mT, 0.5).mean()


def test_masks_of_pytorch_are_eagers():
    plain = Dropping()
    ours = copy.deepcopy(plain)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    step = caesura.compile_step(ours, None, torch.optim.SGD(ours.parameters(), lr=0.1), masks="pytorch")
    for length in (5, 7, 6, 7):
        tokens = torch.arange(3 * length).reshape(3, length) % 20
        torch.manual_seed(length)
        optimizer.zero_grad()
        loss = plain(tokens)
        loss.backward()
        optimizer.step()
        after = torch.rand(2)
        torch.manual_seed(length)
        torch.testing.assert_close((step(tokens), torch.rand(2)), (loss.detach(), after))


def test_masks_are_pytorchs_or_our_own():
    module = net()
    with pytest.raises(ValueError, match="masks is one of own, pytorch, got 'eager'"):
        caesura.compile_step(module, F.cross_entropy, torch.optim.SGD(module.parameters()), masks="eager")


@pytest.mark.parametrize("draw,options", [(F.dropout, {"masks": "pytorch"}), (lambda x: x * torch.rand_like(x), {})],
                         ids=["PyTorch's masks", "numbers"])
def test_sizes_that_depend_on_values_are_not_drawn_before(draw, options):
    """Masks of our own are made where they are used."""
    class Chosen(nn.Module):
        def __init__(self, draw):
            super().__init__()
            self.linear, self.draw = nn.Linear(6, 4), draw

        def forward(self, x):
            return self.draw(self.linear(x[torch.nonzero(x[:, 0] > 0)[:, 0]])).square().sum()

    def step_of(draw, **options):
        module = Chosen(draw)
        return caesura.compile_step(module, None, torch.optim.SGD(module.parameters()), **options)

    with pytest.raises(caesura.StepRefused, match="depend on values(.|\n)*compile_step_random_test.py"):
        step_of(draw, **options)(DATA[0])
    assert step_of(F.dropout)(DATA[0]) > 0
