# SPDX-License-Identifier: Apache-2.0
"""Lightning, transformers' Trainer and Accelerate train, evaluate, save and resume in caesura as they do in eager."""

import copy
import subprocess
import sys

import pytest
import torch

import caesura

WIDTH, CLASSES = 12, 3
EXACT = {"rtol": 1e-5, "atol": 1e-6}


def data(rows=32):
    make = torch.Generator().manual_seed(0)
    return torch.randn(rows, WIDTH, generator=make), torch.randint(CLASSES, (rows,), generator=make)


def layers():
    torch.manual_seed(0)
    return torch.nn.Linear(WIDTH, 16), torch.nn.Linear(16, CLASSES)


def batches():
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=8)


class Counted:
    """The work between two places of a test; a fallback is an error."""

    def __enter__(self):
        caesura.reports.reset()
        self._strict = caesura.strict()
        self._strict.__enter__()
        return self

    def __exit__(self, *error):
        self._strict.__exit__(*error)
        self.report = caesura.stats()
        if error[0] is None:
            assert self.report.kernel_calls > 0 and self.report.eager_calls == 0 and not self.report.fallbacks


def is_ours(module) -> bool:
    """True if a call of the module runs in our kernels only."""
    caesura.reports.reset()
    with torch.no_grad():
        module(data()[0])
    return caesura.stats().kernel_calls > 0


def test_libraries_are_imported_when_they_are_used():
    code = """if True:
        import sys, caesura
        dir(caesura.integrations)
        print([name for name in ("torch", "lightning", "transformers") if name in sys.modules])
        print(caesura.integrations.lightning.CaesuraCallback.__module__, "lightning" in sys.modules, "transformers" in sys.modules)
        print(caesura.integrations.transformers.CaesuraCallback.__module__, "transformers" in sys.modules)"""
    pytest.importorskip("lightning")
    pytest.importorskip("transformers")
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()
    assert said[0] == "[]"
    assert said[1].startswith("caesura.integrations.lightning True")
    assert said[2] == "caesura.integrations.transformers True"
    with pytest.raises(AttributeError, match="no attribute 'keras'"):
        caesura.integrations.keras


# --- Lightning ---


@pytest.fixture(name="lightning")
def _lightning():
    return pytest.importorskip("lightning")


def task(lightning, kind="inner"):
    """A LightningModule that calls its layers by `kind`: through one module, its own forward, or a list of modules."""

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            first, last = layers()
            if kind == "list":
                self.parts = torch.nn.ModuleList([first, last])
            elif kind == "own":
                self.first, self.last = first, last
            else:
                self.net = torch.nn.Sequential(first, torch.nn.GELU(), last)
            self.losses, self.scores = [], []

        def scores_of(self, x):
            if kind == "list":
                return self.parts[1](torch.nn.functional.gelu(self.parts[0](x)))
            return self(x) if kind == "own" else self.net(x)

        def training_step(self, batch, index):
            loss = torch.nn.functional.cross_entropy(self.scores_of(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def validation_step(self, batch, index):
            self.scores.append(self.scores_of(batch[0]))

        test_step = validation_step

        def predict_step(self, batch, index):
            return self.scores_of(batch[0])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    if kind == "own":
        Task.forward = lambda self, x: self.last(torch.nn.functional.gelu(self.first(x)))
    return Task()


def trainer(lightning, folder, callbacks=(), epochs=2, **options):
    return lightning.Trainer(max_epochs=epochs, accelerator="cpu", devices=1, callbacks=list(callbacks), logger=False,
                             default_root_dir=folder, enable_checkpointing=False, enable_progress_bar=False,
                             enable_model_summary=False, num_sanity_val_steps=0, **options)


def lightning_callback(**options):
    return caesura.integrations.lightning.CaesuraCallback(**options)


@pytest.mark.parametrize("kind", ["inner", "own", "list"])
def test_lightning_runs_as_eager(lightning, tmp_path, kind):
    plain, ours = task(lightning, kind), task(lightning, kind)
    trainer(lightning, tmp_path).fit(plain, batches(), batches())
    with Counted() as counted:
        trainer(lightning, tmp_path, [lightning_callback()]).fit(ours, batches(), batches())
    assert len(ours.losses) == 8 and ours.losses == pytest.approx(plain.losses, rel=1e-5)
    torch.testing.assert_close(ours.scores, plain.scores, **EXACT)
    # Forward and backward of 8 batches, and forwards of 8 to validate with: a program each, the layers of a list apart. 8 updates.
    assert counted.report.kernel_calls == 24 * (2 if kind == "list" else 1) + 8
    assert list(ours.state_dict()) == list(plain.state_dict()) and type(ours).__name__ == "Task"
    torch.testing.assert_close(ours.state_dict(), plain.state_dict(), **EXACT)


def test_lightning_clips_in_caesura(lightning, tmp_path, monkeypatch):
    plain, ours = task(lightning), task(lightning)
    trainer(lightning, tmp_path, gradient_clip_val=0.05).fit(plain, batches(), batches())
    monkeypatch.delattr(torch.nn.utils, "clip_grad_norm_")
    trainer(lightning, tmp_path, [lightning_callback()], gradient_clip_val=0.05).fit(ours, batches(), batches())
    assert ours.losses == pytest.approx(plain.losses, rel=1e-5)


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_lightning_evaluates_in_caesura(lightning, tmp_path, stage):
    plain, ours = task(lightning), task(lightning)
    expected = getattr(trainer(lightning, tmp_path), stage)(plain, batches())
    with Counted() as counted:
        results = getattr(trainer(lightning, tmp_path, [lightning_callback()]), stage)(ours, batches())
    assert counted.report.kernel_calls == 4
    torch.testing.assert_close((results, ours.scores), (expected, plain.scores), **EXACT)


@pytest.mark.parametrize("before, after", [(True, True), (True, False), (False, True)])
def test_lightning_resumes_with_and_without(lightning, tmp_path, before, after):
    def callbacks(on):
        return [lightning_callback()] if on else []

    plain = task(lightning)
    trainer(lightning, tmp_path, epochs=3).fit(plain, batches())
    first, second = task(lightning), task(lightning)
    started = trainer(lightning, tmp_path, callbacks(before), epochs=1)
    started.fit(first, batches())
    started.save_checkpoint(tmp_path / "a.ckpt")
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert list(saved["state_dict"]) == list(plain.state_dict())
    trainer(lightning, tmp_path, callbacks(after), epochs=3).fit(second, batches(), ckpt_path=tmp_path / "a.ckpt")
    assert first.losses + second.losses == pytest.approx(plain.losses, rel=1e-5)
    assert is_ours(second.net) is after and is_ours(first.net) is before


def test_lightning_modules_by_name(lightning, tmp_path):
    ours = task(lightning, "list")
    callback = lightning_callback(modules=["parts.1"])
    trainer(lightning, tmp_path, [callback], epochs=1).fit(ours, batches())
    assert is_ours(torch.nn.Sequential(*ours.parts)) and not is_ours(ours.parts[0])
    with pytest.raises(AttributeError, match="missing"):
        trainer(lightning, tmp_path, [lightning_callback(modules=["missing"])]).fit(task(lightning), batches())


def test_lightning_leaves_modules_without_parameters(lightning, tmp_path):
    ours = task(lightning)
    ours.metric = torch.nn.Identity()
    trainer(lightning, tmp_path, [lightning_callback()], epochs=1).fit(ours, batches())
    assert not is_ours(ours.metric) and is_ours(ours.net)


@pytest.mark.parametrize("kind", ["inner", "own"])
def test_lightning_in_ddp(lightning, tmp_path, kind):
    """DDP calls the LightningModule, with training_step in the place of its forward."""
    plain, ours = task(lightning, kind), task(lightning, kind)
    trainer(lightning, tmp_path).fit(plain, batches())
    options = {"strategy": "ddp", "use_distributed_sampler": False}  # the sampler would shuffle
    try:
        with Counted():
            trainer(lightning, tmp_path, [lightning_callback()], **options).fit(ours, batches())
    finally:
        torch.distributed.destroy_process_group()
    assert ours.losses == pytest.approx(plain.losses, rel=1e-5)


def test_pytorch_lightning_takes_the_callback(tmp_path):
    lightning = pytest.importorskip("pytorch_lightning")
    plain, ours = task(lightning, "own"), task(lightning, "own")
    trainer(lightning, tmp_path).fit(plain, batches())
    with Counted():
        trainer(lightning, tmp_path, [lightning_callback()]).fit(ours, batches())
    assert ours.losses == pytest.approx(plain.losses, rel=1e-5)


# --- transformers ---


@pytest.fixture(name="transformers")
def _transformers(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("transformers")


def llama(transformers):
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=0, eos_token_id=0))


def texts():
    rows = torch.randint(1, 64, (24, 16), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in rows]


def hf_trainer(transformers, folder, model, callbacks=(), steps=6, **options):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=4, learning_rate=1e-2, logging_steps=1,
        report_to=[], use_cpu=True, disable_tqdm=True, seed=0, lr_scheduler_type="constant", **options)
    made = {"model_init": model} if not isinstance(model, torch.nn.Module) else {"model": model}
    return transformers.Trainer(**made, args=arguments, train_dataset=texts(), eval_dataset=texts(), callbacks=list(callbacks))


def hf_callback():
    return caesura.integrations.transformers.CaesuraCallback()


def losses_of(trained) -> list:
    return [float(entry["loss"]) for entry in trained.state.log_history if "loss" in entry]


LOGGED = 2e-3  # Trainer's log has three digits or four


@pytest.mark.parametrize("form", ["callback", "added", "model_init", "wrapped"])
def test_trainer_runs_as_eager(transformers, tmp_path, form):
    plain = hf_trainer(transformers, tmp_path, llama(transformers), save_strategy="no")
    plain.train()
    expected = plain.evaluate()["eval_loss"]
    if form == "model_init":
        ours = hf_trainer(transformers, tmp_path, lambda: llama(transformers), [hf_callback()], save_strategy="no")
    elif form == "wrapped":
        ours = hf_trainer(transformers, tmp_path, caesura.wrap(llama(transformers)), save_strategy="no")
    else:
        callbacks = [hf_callback()] if form == "callback" else []
        ours = hf_trainer(transformers, tmp_path, llama(transformers), callbacks, save_strategy="no")
        if form == "added":
            ours.add_callback(caesura.integrations.transformers.CaesuraCallback)
    with Counted():
        ours.train()
    assert losses_of(ours) == pytest.approx(losses_of(plain), rel=LOGGED) and len(losses_of(ours)) == 6
    with Counted():
        assert ours.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(ours.model.state_dict(), plain.model.state_dict(), rtol=1e-3, atol=1e-4)


def test_trainer_evaluates_before_training(transformers, tmp_path):
    expected = hf_trainer(transformers, tmp_path, llama(transformers)).evaluate()["eval_loss"]
    ours = hf_trainer(transformers, tmp_path, llama(transformers), [hf_callback()])
    with Counted():
        assert ours.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("before, after", [(True, True), (True, False), (False, True)])
def test_trainer_resumes_with_and_without(transformers, tmp_path, before, after):
    def callbacks(on):
        return [hf_callback()] if on else []

    plain = hf_trainer(transformers, tmp_path / "plain", llama(transformers), save_strategy="no")
    plain.train()
    first = hf_trainer(transformers, tmp_path, llama(transformers), callbacks(before), steps=3, save_steps=3)
    first.train()
    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-3")
    assert type(saved) is transformers.LlamaForCausalLM
    torch.testing.assert_close(saved.state_dict(), first.model.state_dict(), rtol=0, atol=0)
    second = hf_trainer(transformers, tmp_path, llama(transformers), callbacks(after), save_strategy="no")
    caesura.reports.reset()
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert (caesura.stats().kernel_calls > 0) is after
    assert losses_of(second) == pytest.approx(losses_of(plain), rel=LOGGED)


def test_trainer_in_bfloat16(transformers, tmp_path):
    """Accelerate puts autocast around the model's forward; saving and evaluating leave the model ours."""
    plain, ours = (hf_trainer(transformers, tmp_path, llama(transformers), callbacks, bf16=True, save_steps=2)
                   for callbacks in ([], [hf_callback()]))
    plain.train()
    with Counted():
        ours.train()
    # The same steps at bfloat16's precision: 8 bits, 0.4%.
    assert losses_of(ours) == pytest.approx(losses_of(plain), rel=1e-2)
    with Counted():
        ours.evaluate()


def test_a_model_wrapped_in_place_copies_as_a_module_of_its_own(transformers, tmp_path):
    ours = hf_trainer(transformers, tmp_path, llama(transformers), [hf_callback()])
    model = ours.model
    assert type(model).__name__ == "LlamaForCausalLM" and isinstance(model, transformers.LlamaForCausalLM)
    ids = torch.stack([row["input_ids"] for row in texts()[:2]])
    other = copy.deepcopy(model)
    before = model(input_ids=ids).logits
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not other(input_ids=ids).logits.any()
    torch.testing.assert_close(model(input_ids=ids).logits, before)


# --- Accelerate ---


def accelerated(accelerator, model, resume=None, save=None, steps=6):
    """Losses of a loop as Accelerate's users write it; saves after step 3 where `save` is given."""
    made = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, made, batches())
    if resume is not None:
        accelerator.load_state(resume)
    losses = []
    while len(losses) < steps:
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            if len(losses) == 4 and save is not None:
                accelerator.save_state(save)
            if len(losses) == steps:
                break
    return losses, model


def sequential():
    first, last = layers()
    return torch.nn.Sequential(first, torch.nn.GELU(), last)


def test_accelerate_trains_saves_and_resumes(tmp_path):
    accelerate = pytest.importorskip("accelerate")

    def make():
        return accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)

    expected, _ = accelerated(make(), sequential())
    with Counted():
        losses, model = accelerated(make(), caesura.wrap(sequential()), save=tmp_path / "state")
    assert losses == pytest.approx(expected, rel=1e-5)
    unwrapped = make().unwrap_model(model)
    assert type(unwrapped).__name__ == "Sequential" and list(unwrapped.state_dict()) == list(sequential().state_dict())
    # Batches begin anew: the loader holds 4, and the state was saved after 4.
    for resumed in (sequential(), caesura.wrap(sequential())):
        again, _ = accelerated(make(), resumed, resume=tmp_path / "state", steps=2)
        assert again == pytest.approx(expected[4:], rel=1e-5)


def test_accelerate_in_bfloat16():
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    try:
        make = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
        expected, _ = accelerated(make, sequential())
        with Counted():
            losses, _ = accelerated(make, caesura.wrap(sequential()))
        assert losses == pytest.approx(expected, rel=1e-2)  # bfloat16 has 8 bits, 0.4%
    finally:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
