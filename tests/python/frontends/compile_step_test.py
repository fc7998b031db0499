# SPDX-License-Identifier: Apache-2.0
"""caesura.compile_step beside eager PyTorch: losses, parameters, optimizer state."""

import copy
import math

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import caesura  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    caesura.reports.reset()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(6, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.norm(F.gelu(self.first(x))))


def batches(count, rows=5):
    return [(torch.randn(rows, 6), torch.randint(0, 4, (rows,))) for _ in range(count)]


def eager(module, optimizer, data, loss_fn=F.cross_entropy, clip=0.0, accumulate=1, schedule=None):
    losses = []
    for i, (x, y) in enumerate(data):
        if i % accumulate == 0:
            optimizer.zero_grad()
        loss = loss_fn(module(x), y)
        (loss / accumulate).backward()
        if (i + 1) % accumulate == 0:
            if clip:
                torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimizer.step()
            if schedule:
                schedule.step()
        losses.append(loss.item())
    return losses


def same(module, other, atol=2e-6):
    for (name, p), q in zip(module.state_dict().items(), other.state_dict().values()):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=atol, msg=lambda m: f"{name}: {m}")


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5, centered=True),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_follows_eager(make):
    module = Net()
    other = copy.deepcopy(module)
    first, second = make(module.parameters()), make(other.parameters())
    data = batches(6)
    expected = eager(module, first, data)
    step = caesura.compile_step(other, F.cross_entropy, second)
    torch.testing.assert_close([step(x, y).item() for x, y in data], expected, rtol=1e-4, atol=1e-6)
    same(other, module)


def test_state_is_pytorchs_own():
    """PyTorch continues with the optimizer after caesura's steps, and caesura after PyTorch's."""
    module = Net()
    other = copy.deepcopy(module)
    first, second = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, other))
    data = batches(9)
    eager(module, first, data)
    step = caesura.compile_step(other, F.cross_entropy, second)
    [step(*batch) for batch in data[:3]]
    third = torch.optim.AdamW(other.parameters(), lr=1e-2)
    third.load_state_dict(copy.deepcopy(second.state_dict()))
    eager(other, third, data[3:6])
    step = caesura.compile_step(other, F.cross_entropy, third)
    [step(*batch) for batch in data[6:]]
    same(other, module)


@pytest.mark.parametrize("make", [OPTIMIZERS["momentum"], torch.optim.NAdam])
def test_under_another_default_device(make):
    """Tensors that a step makes for itself lie where they must. Those of "meta" have no values."""
    class Noisy(Net):
        def forward(self, x):
            y = self.first(x)
            y = F.interpolate(F.adaptive_avg_pool1d(y[:, None], 3), 16)[:, 0]  # whose windows are constants
            return self.last(torch.tanh(y + torch.randn_like(y)))

    module = Noisy()
    other = copy.deepcopy(module)
    first, second = make(module.parameters()), make(other.parameters())
    data = batches(4)
    torch.manual_seed(3)
    expected = eager(module, first, data)
    step = caesura.compile_step(other, F.cross_entropy, second)
    torch.manual_seed(3)
    with torch.device("meta"):
        losses = [step(*batch) for batch in data]
    torch.testing.assert_close([loss.item() for loss in losses], expected, rtol=1e-4, atol=1e-6)
    same(other, module)


def test_state_that_is_loaded_between_steps():
    module = Net()
    other = copy.deepcopy(module)
    first, second = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, other))
    step = caesura.compile_step(other, F.cross_entropy, second)
    data = batches(6)
    eager(module, first, data[:3])
    [step(*batch) for batch in data[:3]]
    for o in (first, second):  # the moments of another run
        state = copy.deepcopy(o.state_dict())
        for entry in state["state"].values():
            entry["exp_avg"].mul_(-2)
        o.load_state_dict(state)
    eager(module, first, data[3:])
    [step(*batch) for batch in data[3:]]
    same(other, module)


def test_clipping_and_schedule():
    module = Net()
    other = copy.deepcopy(module)
    first, second = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, other))
    data = batches(6)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.7) for o in (first, second)]
    expected = eager(module, first, data, clip=0.1, schedule=schedules[0])
    step = caesura.compile_step(other, F.cross_entropy, second, clip_norm=0.1)
    for (x, y), want in zip(data, expected):
        assert step(x, y).item() == pytest.approx(want, rel=1e-4)
        schedules[1].step()
    same(other, module)


def test_accumulation():
    module = Net()
    other = copy.deepcopy(module)
    first, second = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (module, other))
    data = batches(6)
    eager(module, first, data, accumulate=3)
    step = caesura.compile_step(other, F.cross_entropy, second, accumulation_steps=3)
    [step(*batch) for batch in data]
    same(other, module)


@pytest.mark.parametrize("steps", [1, 3])
def test_gradient_norm(steps):
    module = Net()
    other = copy.deepcopy(module)
    step = caesura.compile_step(other, F.cross_entropy, torch.optim.SGD(other.parameters(), lr=0.1), clip_norm=math.inf,
                                accumulation_steps=steps)
    optimizer, data = torch.optim.SGD(module.parameters(), lr=0.1), batches(9)
    assert math.isnan(step.gradient_norm)
    for i in range(0, 9, steps):
        before = step.gradient_norm
        for x, y in data[i:i + steps]:
            assert step.gradient_norm == before or i == 0
            (F.cross_entropy(module(x), y) / steps).backward()
            step(x, y)
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), math.inf)
        optimizer.step()
        optimizer.zero_grad()
        assert step.gradient_norm == pytest.approx(norm.item(), rel=1e-5)
    same(other, module)  # nothing is clipped


def test_the_norm_where_pytorch_updates():
    class Own(torch.optim.SGD):
        pass

    module = Net()
    with pytest.warns(caesura.FallbackWarning, match="no such update op"):
        step = caesura.compile_step(module, F.cross_entropy, Own(module.parameters(), lr=0.0), clip_norm=0.1)
    (x, y), = batches(1)
    step(x, y)
    module.zero_grad()
    F.cross_entropy(module(x), y).backward()
    assert step.gradient_norm == pytest.approx(torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0).item(), rel=1e-4)


def test_an_accumulation_that_ends_early():
    module = Net()
    other = copy.deepcopy(module)
    first, second = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (module, other))
    step = caesura.compile_step(other, F.cross_entropy, second, accumulation_steps=3)
    data = iter(batches(10))
    for count in (3, 1, 2, 1, 3):  # batches of each update
        for i in range(count):
            x, y = next(data)
            (F.cross_entropy(module(x), y) / 3).backward()
            if count < 3 and i == count - 1:
                step.update_next()
            step(x, y)
        first.step()
        first.zero_grad()
    same(other, module)
    assert step.updates == 5


def test_parameter_groups():
    def groups(m):
        return [{"params": m.first.parameters(), "lr": 1e-3, "weight_decay": 0.3}, {"params": m.last.parameters(), "lr": 1e-2}]
    module = Net()
    other = copy.deepcopy(module)
    first, second = (torch.optim.AdamW(groups(m)) for m in (module, other))
    data = batches(5)
    eager(module, first, data)
    step = caesura.compile_step(other, F.cross_entropy, second)
    [step(*batch) for batch in data]
    same(other, module)
    torch.testing.assert_close(other.norm.weight, torch.ones(16), rtol=0, atol=0)  # in no group


def test_changing_lengths_capture_at_most_twice():
    module = Net()
    other = copy.deepcopy(module)
    first, second = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, other))
    data = [batches(1, rows)[0] for rows in (5, 3, 8, 5, 13, 2)]
    expected = eager(module, first, data)
    step = caesura.compile_step(other, F.cross_entropy, second)
    torch.testing.assert_close([step(*batch).item() for batch in data], expected, rtol=1e-4, atol=1e-6)
    same(other, module)
    assert len(step._programs) == 2


def test_module_that_returns_its_loss_and_keyword_arguments():
    class Model(Net):
        def forward(self, x, labels=None):
            return {"loss": F.cross_entropy(super().forward(x), labels), "rest": 1}

    module = Model()
    other = copy.deepcopy(module)
    first, second = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, other))
    data = batches(4)
    losses = []
    for x, y in data:
        first.zero_grad()
        loss = module(x, labels=y)["loss"]
        loss.backward()
        first.step()
        losses.append(loss.item())
    step = caesura.compile_step(other, None, second)
    torch.testing.assert_close([step(x, labels=y).item() for x, y in data], losses, rtol=1e-4, atol=1e-6)
    same(other, module)


def test_batch_norm_statistics_and_counters():
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
                                 torch.nn.Flatten(), torch.nn.Linear(4 * 16, 4))
    other = copy.deepcopy(module)
    first, second = (torch.optim.SGD(m.parameters(), lr=1e-2) for m in (module, other))
    data = [(torch.randn(3, 2, 6, 6), torch.randint(0, 4, (3,))) for _ in range(4)]
    eager(module, first, data)
    step = caesura.compile_step(other, F.cross_entropy, second)
    [step(*batch) for batch in data]
    same(other, module, atol=1e-5)
    assert other[1].num_batches_tracked == 4


def test_weights_that_others_write():
    module = Net()
    other = copy.deepcopy(module)
    first, second = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, other))
    step = caesura.compile_step(other, F.cross_entropy, second)
    for batch in batches(3):
        eager(module, first, [batch])
        step(*batch)
        for m in (module, other):
            m.first.weight.data.mul_(0.9)
            m.last.weight.detach().numpy()[:] *= 1.1
    same(other, module)


def test_dropout_repeats_under_a_seed():
    net = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 4))
    data = batches(3)

    def losses(seed):
        torch._dynamo.reset()
        module = copy.deepcopy(net)
        step = caesura.compile_step(module, F.cross_entropy, torch.optim.SGD(module.parameters(), lr=0.0))
        torch.manual_seed(seed)
        return [step(*data[0]).item() for _ in range(3)]
    first = losses(1)
    assert first == losses(1) and len(set(first)) == 3 and first != losses(2)


def test_attention_with_a_mask_between_projections():
    """The step works although ONNX infers no type for the captured attention's own outputs."""
    class Attends(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(6, 24), torch.nn.Linear(8, 4)

        def forward(self, x):
            q, k, v = (t.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()[None, None]
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return self.out(y.transpose(1, 2).reshape(x.shape[0], x.shape[1], 8)).mean(1)

    module = Attends()
    other = copy.deepcopy(module)
    first, second = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (module, other))
    data = [(torch.randn(3, 5, 6), torch.randint(0, 4, (3,))) for _ in range(3)]
    expected = eager(module, first, data)
    step = caesura.compile_step(other, F.cross_entropy, second)
    torch.testing.assert_close([step(x, y).item() for x, y in data], expected, rtol=1e-4, atol=1e-6)
    same(other, module)


# --- optimizers that PyTorch steps ------------------------------------------------------------------------------


class Own(torch.optim.Adagrad):
    """A user's class, whose step() may do anything."""


LEFT_TO_PYTORCH = {
    "a class of the user's": (lambda p: Own(p, lr=1e-2), "Own"),
}


@pytest.mark.parametrize("make,reason", LEFT_TO_PYTORCH.values(), ids=LEFT_TO_PYTORCH)
def test_other_optimizers_step_our_gradients(make, reason):
    module = Net()
    module.unused = torch.nn.Linear(2, 2)  # decay must not touch a parameter without a gradient
    other = copy.deepcopy(module)
    first, second = make(module.parameters()), make(other.parameters())
    data = batches(8)
    expected = eager(module, first, data, clip=0.1, accumulate=2)
    caesura.reports.reset()
    with pytest.warns(caesura.FallbackWarning, match=reason):
        step = caesura.compile_step(other, F.cross_entropy, second, clip_norm=0.1, accumulation_steps=2)
    torch.testing.assert_close([step(x, y).item() for x, y in data], expected, rtol=1e-4, atol=1e-6)
    same(other, module)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    more = batches(2)
    expected = eager(module, first, more, clip=0.1, accumulate=2)
    torch.testing.assert_close([step(x, y).item() for x, y in more], expected, rtol=1e-4, atol=1e-6)
    same(other, module)


def test_other_optimizers_are_forbidden_by_strict():
    module = Net()
    with caesura.strict(), pytest.raises(caesura.StrictError, match="Own"):
        caesura.compile_step(module, F.cross_entropy, Own(module.parameters()))


def test_a_scaled_loss_needs_an_update_in_the_program():
    module = Net()
    caesura.reports.reset()
    with pytest.warns(caesura.FallbackWarning), pytest.raises(caesura.StepRefused, match="fp16"):
        caesura.compile_step(module, F.cross_entropy, Own(module.parameters()), precision="fp16")


# --- refusals ---------------------------------------------------------------------------------------------------

def refused(module, match):
    step = caesura.compile_step(module, lambda y, t: y.square().mean(), torch.optim.SGD(module.parameters(), lr=0.1))
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(caesura.StepRefused, match=match):
        step(torch.randn(3, 6), torch.zeros(1))
    assert all(torch.equal(a, b) for a, b in zip(before.values(), module.state_dict().values()))


def test_refuses_a_graph_break():
    class Breaks(Net):
        def forward(self, x):
            y = super().forward(x)
            return y * 2 if y.sum() > 0 else y
    refused(Breaks(), "a Python branch over a tensor's value: write torch.where or torch.cond")


def test_refuses_sizes_that_data_decide():
    class Splits(Net):
        def forward(self, x):
            counts = torch.bincount(x[:, 0].sign().long() + 1, minlength=3).tolist()
            return torch.stack([part.sum() for part in super().forward(x).split(counts)])
    refused(Splits(), "a Python loop, branch or size that depends on a tensor's value: write it in tensors")


class Partly(Net):
    """Has parameters that get no gradient from the loss."""

    def __init__(self):
        super().__init__()
        self.stopped, self.chosen, self.unread = (torch.nn.Parameter(torch.ones(4)) for _ in range(3))

    def forward(self, x):
        y = super().forward(x)
        self.seen = y * self.unread
        table = torch.zeros(4)
        table[1:] = (y * 2).mean(0)[1:]
        return y * self.stopped.detach() + (self.chosen > 0) * y + table


@pytest.mark.parametrize("make", [OPTIMIZERS["adamw"], OPTIMIZERS["momentum"], lambda p: torch.optim.Adagrad(p, weight_decay=0.1)])
@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_parameters_without_a_gradient_stay(make):
    """Weight decay, too, applies only to parameters with a gradient."""
    module, data = Partly(), batches(4)
    other = copy.deepcopy(module)
    optimizers = [make(m.parameters()) for m in (module, other)]
    step = caesura.compile_step(other, F.cross_entropy, optimizers[1])
    assert [step(*batch).item() for batch in data] == pytest.approx(eager(module, optimizers[0], data), rel=1e-5)
    same(module, other)
    assert all(torch.equal(p, torch.ones(4)) for p in (other.stopped, other.chosen, other.unread))


def test_refuses_a_loss_without_parameters():
    class Constant(Net):
        def forward(self, x):
            return super().forward(x).detach()
    refused(Constant(), "depends on no parameter")


class Quantizes(Net):
    """A straight-through estimator, with codes that follow the values they represent."""

    def __init__(self):
        super().__init__()
        self.codes = torch.nn.Parameter(torch.linspace(-1, 1, 8).view(2, 4))

    def forward(self, x):
        y = super().forward(x)
        nearest = (y[:, None] - self.codes).square().sum(-1).argmin(-1)
        chosen = self.codes[nearest]
        through = y + (chosen - y).detach()
        return through + (chosen - y.detach()).square().mean() + 0.25 * (chosen.detach() - y).square().mean()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_no_gradient_passes_what_is_detached(precision):
    module = Quantizes()
    other = copy.deepcopy(module)
    data = batches(6)
    losses = eager(module, torch.optim.SGD(module.parameters(), lr=0.1), data)
    step = caesura.compile_step(other, F.cross_entropy, torch.optim.SGD(other.parameters(), lr=0.1), precision=precision)
    given = [step(x, y).item() for x, y in data]
    if precision == "fp32":
        assert given == pytest.approx(losses, rel=1e-5)
        same(module, other)
    else:
        assert given == pytest.approx(losses, rel=3e-2)  # bfloat16 has 8 bits


@pytest.mark.parametrize("tied", [True, False])
def test_the_row_of_padding_does_not_learn_from_the_embedding(tied):
    class Embeds(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.last = torch.nn.Embedding(10, 6, padding_idx=2), torch.nn.Linear(6, 10)
            if tied:
                self.last.weight = self.rows.weight

        def forward(self, x):
            return self.last(self.rows(x).tanh()).flatten(0, 1)

    module = Embeds()
    other, x, y = copy.deepcopy(module), torch.arange(20).view(4, 5) % 4, torch.arange(20) % 10
    data = [(x, y)] * 3
    losses = eager(module, torch.optim.SGD(module.parameters(), lr=0.5), data)
    step = caesura.compile_step(other, F.cross_entropy, torch.optim.SGD(other.parameters(), lr=0.5))
    assert [step(x, y).item() for x, y in data] == pytest.approx(losses, rel=1e-5)
    same(module, other)


def test_refuses_an_optimizer_that_evaluates_the_loss_itself():
    module = Net()
    with pytest.raises(caesura.StepRefused, match="LBFGS evaluates the loss several times"):
        caesura.compile_step(module, F.cross_entropy, torch.optim.LBFGS(module.parameters()))
