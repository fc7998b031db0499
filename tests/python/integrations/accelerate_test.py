# SPDX-License-Identifier: Apache-2.0
"""A compiled step of an Accelerator trains, saves and resumes as Accelerate's documented loop does."""

import pytest

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")

import caesura  # noqa: E402
from caesura.integrations.accelerate import compile_step, why_not  # noqa: E402

WIDTH, CLASSES, LOSS = 12, 3, torch.nn.functional.cross_entropy


@pytest.fixture(autouse=True)
def fresh():
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def batches(rows=56):
    make = torch.Generator().manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(rows, WIDTH, generator=make), torch.randint(CLASSES, (rows,), generator=make))
    return torch.utils.data.DataLoader(data, batch_size=8)


class Run:
    """A loop of two epochs or `stop` batches; the losses, norms and rates of its batches, and what it leaves."""

    def __init__(self, ours, dropout=0.0, resume=None, save=None, stop=14, net=None, **options):
        torch.manual_seed(0)
        net = net or torch.nn.Sequential(torch.nn.Linear(WIDTH, 16), torch.nn.GELU(), torch.nn.Dropout(dropout),
                                         torch.nn.Linear(16, CLASSES))
        accelerator = accelerate.Accelerator(cpu=True, **options)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        model, optimizer, loader, schedule = accelerator.prepare(net, optimizer, batches(), schedule)
        self.step = compile_step(accelerator, model, LOSS, optimizer, clip_norm=0.5, masks="pytorch") if ours else None
        self.losses, self.norms, self.rates, self.net, self.optimizer = [], [], [], net, optimizer
        done = 0
        if resume is not None:
            folder, done = resume
            accelerator.load_state(folder)
        for epoch in range(done // 7, 2):
            for x, y in accelerator.skip_first_batches(loader, done % 7) if epoch == done // 7 else loader:
                if ours:
                    loss = self.step(x, y)
                    norm = self.step.gradient_norm
                    schedule.step()
                else:
                    with accelerator.accumulate(model):
                        loss = LOSS(model(x), y)
                        accelerator.backward(loss)
                        if accelerator.sync_gradients:
                            norm = float(accelerator.clip_grad_norm_(model.parameters(), 0.5))
                        optimizer.step()
                        schedule.step()
                        optimizer.zero_grad()
                self.losses.append(loss.item())
                if accelerator.sync_gradients:
                    self.norms.append(norm)
                self.rates.append(optimizer.param_groups[0]["lr"])
                if done + len(self.losses) == stop:
                    if save is not None:
                        accelerator.save_state(save)
                    return


def equal(ours, plain, rel=2e-5):
    assert len(plain.losses) > 1 and ours.losses == pytest.approx(plain.losses, rel=rel) and ours.rates == plain.rates
    assert ours.norms == pytest.approx(plain.norms, rel=1e-4)
    torch.testing.assert_close(ours.net.state_dict(), plain.net.state_dict(), rtol=1e-3, atol=2e-5)
    torch.testing.assert_close(ours.optimizer.state_dict(), plain.optimizer.state_dict(), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("steps", [1, 2, 3, 9])
def test_trains_as_the_documented_loop(steps):
    plain, ours = Run(False, 0.2, gradient_accumulation_steps=steps), Run(True, 0.2, gradient_accumulation_steps=steps)
    assert ours.step.refused is None
    equal(ours, plain)


def test_bfloat16():
    plain, ours = Run(False, mixed_precision="bf16"), Run(True, mixed_precision="bf16")
    assert ours.step.refused is None
    assert ours.losses == pytest.approx(plain.losses, rel=1e-2)  # 8 bits, 0.4%
    assert ours.norms == pytest.approx(plain.norms, rel=1e-2)


@pytest.mark.parametrize("before, after", [(True, True), (True, False), (False, True)])
def test_resumes_with_and_without(tmp_path, before, after):
    whole = Run(False)
    first = Run(before, save=tmp_path / "state", stop=9)
    second = Run(after, resume=(tmp_path / "state", 9))
    assert first.losses + second.losses == pytest.approx(whole.losses, rel=2e-5)


def gpu(accelerator):
    accelerator.native_amp, accelerator.state._mixed_precision = True, "fp16"


def hook(accelerator):
    accelerator.ddp_handler = accelerate.DistributedDataParallelKwargs(comm_hook=accelerate.utils.DDPCommunicationHookType.BF16)


def deepspeed(accelerator):
    accelerator.state.distributed_type = accelerate.DistributedType.DEEPSPEED


@pytest.mark.parametrize("change, why", [(gpu, "mixed_precision='fp16' scales"), (hook, "comm_hook='bf16'"),
                                         (deepspeed, "distributed by deepspeed")])
def test_accelerators_that_go_by_wrap(change, why):
    """As they are on machines that have what they ask for."""
    accelerator = accelerate.Accelerator(cpu=True)
    change(accelerator)
    assert why in why_not(accelerator)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_target_by_keyword(wrapped):
    accelerator = accelerate.Accelerator(cpu=True)
    if wrapped:
        hook(accelerator)
    torch.manual_seed(0)
    net, (x, y) = torch.nn.Linear(WIDTH, CLASSES), next(iter(batches()))
    expected = LOSS(net(x), y).item()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    step = compile_step(accelerator, model, LOSS, optimizer)
    assert (step.refused is not None) == wrapped
    assert step(x, target=y).item() == pytest.approx(expected) and step(x, y).item() < expected
    with pytest.raises(TypeError, match="the call has none"):
        step(input=x)


def test_a_model_that_is_no_program_trains_by_wrap():
    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = torch.nn.Linear(WIDTH, 16), torch.nn.Linear(16, CLASSES)

        def forward(self, x):
            x = self.first(x)
            return self.last(x * 2 if x.sum() > 1e9 else x)

    plain = Run(False, net=Branches(), gradient_accumulation_steps=2)
    with pytest.warns(caesura.FallbackWarning, match="compile_step in AcceleratedStep is not used: the step cannot be one program"):
        ours = Run(True, net=Branches(), gradient_accumulation_steps=2)
    assert "one program" in ours.step.refused
    equal(ours, plain)


@pytest.mark.parametrize("saved", [4, 5, 8])
@pytest.mark.parametrize("after", [True, False])
def test_resumes_between_the_batches_of_an_update(tmp_path, saved, after):
    """Accelerate itself loses the gradients of such an update."""
    whole = Run(False, gradient_accumulation_steps=3)
    first = Run(True, save=tmp_path / "state", stop=saved, gradient_accumulation_steps=3)
    second = Run(after, resume=(tmp_path / "state", saved), gradient_accumulation_steps=3)
    if after or saved % 7 % 3 == 0:
        assert first.losses + second.losses == pytest.approx(whole.losses, rel=2e-5)
    else:
        assert len(first.losses + second.losses) == len(whole.losses)
