# SPDX-License-Identifier: Apache-2.0
"""CaesuraStrategy trains, logs, saves and resumes as Lightning's strategies do, option by option."""

import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning")

import caesura  # noqa: E402
from caesura.integrations.lightning import CaesuraDDPStrategy, CaesuraStrategy  # noqa: E402

WIDTH, CLASSES = 12, 3


class Task(lightning.LightningModule):
    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(WIDTH, 16, bias=False), torch.nn.BatchNorm1d(16), torch.nn.GELU(),
                                       torch.nn.Dropout(dropout), torch.nn.Linear(16, CLASSES))
        self.calls, self.losses, self.rates = [], [], []

    def training_step(self, batch, batch_idx):
        scores = self.net(batch[0])
        loss = torch.nn.functional.cross_entropy(scores, batch[1])
        self.log("loss", loss)
        self.log_dict({"right": (scores.argmax(1) == batch[1]).float().mean()}, on_epoch=True)
        return {"loss": loss, "scores": scores.detach()}

    def validation_step(self, batch, batch_idx):
        self.log("validated", torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        assert outputs["scores"].shape == (len(batch[0]), CLASSES)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def batches(rows=56):
    make = torch.Generator().manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(rows, WIDTH, generator=make), torch.randint(CLASSES, (rows,), generator=make))
    return torch.utils.data.DataLoader(data, batch_size=8)


def strategy():
    return CaesuraStrategy(step_options={"masks": "pytorch"})


def fit(folder, task, strategy, resume=None, **options):
    """The trainer, after it has fitted."""
    torch.manual_seed(1)  # for dropout
    given = {"max_epochs": 2, "logger": False, "enable_checkpointing": False} | options
    trainer = lightning.Trainer(accelerator="cpu", devices=1, strategy=strategy, default_root_dir=folder, enable_progress_bar=False,
                                enable_model_summary=False, num_sanity_val_steps=0, **given)
    trainer.fit(task, batches(), batches(), ckpt_path=resume)
    return trainer


def equal(ours, plain, rel=2e-5):
    assert len(plain.losses) > 1 and ours.losses == pytest.approx(plain.losses, rel=rel) and ours.rates == plain.rates
    torch.testing.assert_close(ours.state_dict(), plain.state_dict(), rtol=1e-3, atol=2e-5)
    (one,), (other,) = ours.trainer.optimizers, plain.trainer.optimizers
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=1e-3, atol=2e-5)
    assert ours.trainer.callback_metrics.keys() == plain.trainer.callback_metrics.keys()
    for name, value in plain.trainer.callback_metrics.items():
        torch.testing.assert_close(ours.trainer.callback_metrics[name], value, rtol=1e-4, atol=1e-5)


# The rows of the table in docs/guides/integrations.md that go by compile_step.
WHOLE = {
    "plain": {},
    "accumulation, and an epoch that ends within one": {"accumulate_grad_batches": 2},
    "accumulation of more batches than an epoch has": {"accumulate_grad_batches": 9},
    "clipping": {"gradient_clip_val": 0.1},
    "a schedule of accumulation": {"callbacks": [lightning.pytorch.callbacks.GradientAccumulationScheduler({0: 1, 1: 3})]},
    "max_steps": {"max_epochs": -1, "max_steps": 9, "accumulate_grad_batches": 2},
}


@pytest.mark.parametrize("options", WHOLE.values(), ids=WHOLE)
def test_options_that_go_by_compile_step(tmp_path, options):
    plain, ours, own = Task(0.2), Task(0.2), strategy()
    fit(tmp_path, plain, "auto", **options)
    fit(tmp_path, ours, own, **options)
    assert own.refused is None
    equal(ours, plain)


class Silent(Task):
    """Logs nothing."""

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())


@pytest.mark.parametrize("make", [Silent, Task])
def test_steps_need_no_dynamo(tmp_path, make):
    """Also after an evaluation, for which the modules are wrapped."""
    before, tasks = caesura.stats(), (make(), make())
    fit(tmp_path, tasks[0], strategy())
    fit(tmp_path, tasks[1], "auto")
    assert tasks[0].losses == pytest.approx(tasks[1].losses, rel=2e-5) and len(tasks[0].losses) == 14
    assert not [detour for detour in (caesura.stats() - before).detours if detour[0].startswith("calls of the step")]


def test_bfloat16(tmp_path):
    plain, ours, own = Task(), Task(), strategy()
    fit(tmp_path, plain, "auto", precision="bf16-mixed")
    fit(tmp_path, ours, own, precision="bf16-mixed")
    assert own.refused is None and ours.losses == pytest.approx(plain.losses, rel=2e-2)  # 8 bits, 0.4%


# The rows of the table that go by wrap, and a part of the line that tells why.
class Manual(Task):
    def __init__(self, dropout=0.0):
        super().__init__(dropout)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return {"loss": loss, "scores": self.net(batch[0]).detach()}


class Clips(Task):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clip_gradients(optimizer, 0.1, "norm")


class Branches(Task):
    def training_step(self, batch, batch_idx):
        out = super().training_step(batch, batch_idx)
        return out if out["loss"] < 1e9 else None


WRAPPED = {
    "automatic_optimization": (Manual, {}, "automatic_optimization=False"),
    "clipping by value": (Task, {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}, "gradient_clip_algorithm='value'"),
    "a hook": (Clips, {}, r"Clips overrides configure_gradient_clipping\(\)"),
    "a branch on values": (Branches, {"accumulate_grad_batches": 2}, "the step cannot be one program"),
}


@pytest.mark.parametrize("kind, options, why", WRAPPED.values(), ids=WRAPPED)
def test_options_that_go_by_wrap(tmp_path, kind, options, why):
    plain, ours, own = kind(), kind(), strategy()
    fit(tmp_path, plain, "auto", **options)
    caesura.reports.reset()
    with pytest.warns(caesura.FallbackWarning, match=f"compile_step in CaesuraStrategy is not used: .*{why}"):
        fit(tmp_path, ours, own, **options)
    assert own.refused and caesura.stats().kernel_calls > 0
    equal(ours, plain)


@pytest.mark.parametrize("before, after", [(True, True), (True, False), (False, True)])
def test_checkpoints_resume_with_and_without(tmp_path, before, after):
    plain, first, second = Task(), Task(), Task()
    fit(tmp_path, plain, "auto", max_epochs=3)
    strategies = [strategy() if ours else "auto" for ours in (before, after)]
    fit(tmp_path, first, strategies[0], max_epochs=1).save_checkpoint(tmp_path / "a.ckpt")
    assert torch.load(tmp_path / "a.ckpt", weights_only=True)["state_dict"].keys() == plain.state_dict().keys()
    fit(tmp_path, second, strategies[1], resume=tmp_path / "a.ckpt", max_epochs=3)
    assert first.losses + second.losses == pytest.approx(plain.losses, rel=2e-5)


class OneBatch(Task):
    """Trains with one batch again and again, so that it is of no account where in an epoch a run goes on."""

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.cross_entropy(self.net(self.batch[0]), self.batch[1])
        return {"loss": loss, "scores": batch[0][:, :CLASSES]}

    def on_fit_start(self):
        self.batch = next(iter(batches()))


class SavesAt(lightning.Callback):
    def __init__(self, batch, path):
        self.batch, self.path = batch, path

    def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx):
        if batch_idx + 1 == self.batch:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("saved", [1, 2, 3, 4])
def test_resumes_between_the_batches_of_an_update(tmp_path, saved):
    """Lightning itself loses the gradients of such an update."""
    plain, first, second = OneBatch(), OneBatch(), OneBatch()
    options = {"accumulate_grad_batches": 3, "max_epochs": 1}
    fit(tmp_path, plain, "auto", **options)
    fit(tmp_path, first, strategy(), callbacks=[SavesAt(saved, tmp_path / "a.ckpt")], **options)
    fit(tmp_path, second, strategy(), resume=tmp_path / "a.ckpt", **options)
    assert second.losses[-1] == pytest.approx(plain.losses[-1], rel=2e-5) and 0 < len(second.losses) < len(plain.losses)
    torch.testing.assert_close(second.state_dict(), plain.state_dict(), rtol=1e-4, atol=1e-5)


def test_early_stopping_and_the_best_checkpoint(tmp_path):
    def run(task, strategy, name):
        saves = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path / name, monitor="validated", save_top_k=1)
        stops = lightning.pytorch.callbacks.EarlyStopping("validated", patience=1)
        trainer = fit(tmp_path, task, strategy, max_epochs=20, enable_checkpointing=True, callbacks=[saves, stops])
        return trainer.current_epoch, saves.best_model_score.item(), torch.load(saves.best_model_path, weights_only=True)["epoch"]

    plain, ours = Task(), Task()
    assert run(ours, strategy(), "ours") == pytest.approx(run(plain, "auto", "plain"), rel=1e-4)
    equal(ours, plain, rel=1e-4)


def test_hooks_are_called_in_lightnings_order(tmp_path):
    names = ("on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad", "on_train_batch_end")

    class Calls(lightning.Callback):
        def __init__(self):
            self.calls = []

    for name in names:
        setattr(Calls, name, lambda self, *_, name=name: self.calls.append(name))
    seen = []
    for used in ("auto", strategy()):
        callback = Calls()
        fit(tmp_path, Task(), used, callbacks=[callback], accumulate_grad_batches=2)
        seen.append(callback.calls)
    assert seen[0] == seen[1] and set(seen[0]) == set(names)


def test_in_ddp(tmp_path):
    plain, ours = Task(), Task()
    options = {"use_distributed_sampler": False, "max_epochs": 1}  # the sampler would shuffle
    own = CaesuraDDPStrategy(process_group_backend="gloo")
    fit(tmp_path, plain, "auto", **options)
    try:
        fit(tmp_path, ours, own, **options)
    finally:
        torch.distributed.destroy_process_group()
    assert own.refused is None
    equal(ours, plain)
