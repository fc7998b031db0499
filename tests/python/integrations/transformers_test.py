# SPDX-License-Identifier: Apache-2.0
"""CaesuraTrainer trains, logs, evaluates, saves and resumes as transformers' Trainer does, argument by argument."""

import math
import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import caesura  # noqa: E402
from caesura.integrations.transformers import CaesuraMixin, CaesuraTrainer  # noqa: E402

WIDTH = 16


def gpt(dropout=0.0):
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=64, n_positions=WIDTH, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0, resid_pdrop=dropout,
        embd_pdrop=dropout, attn_pdrop=dropout))
    model.loss_type = "ForCausalLM"  # otherwise its forward logs that it has none
    return model


def texts(rows=24, lengths=(WIDTH,)):
    """Rows of ids with labels, some of which are ignored."""
    make = torch.Generator().manual_seed(0)
    out = []
    for i in range(rows):
        ids = torch.randint(1, 64, (lengths[i % len(lengths)],), generator=make)
        out.append({"input_ids": ids, "labels": torch.where(torch.arange(len(ids)) < i % 5, -100, ids)})
    return out


def trainer(folder, kind=CaesuraTrainer, model=None, data=None, callbacks=(), **options):
    given = {"max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "logging_steps": 1, "save_strategy": "no",
             "max_grad_norm": 0.5, "warmup_steps": 2} | options
    arguments = transformers.TrainingArguments(str(folder), report_to=[], use_cpu=True, disable_tqdm=True, seed=0, **given)
    more = {"step_options": {"masks": "pytorch"}} if issubclass(kind, CaesuraMixin) else {}
    return kind(model=model or gpt(), args=arguments, train_dataset=data or texts(), eval_dataset=texts(8), callbacks=list(callbacks),
                **more)


def logged(run, *names):
    return [[entry[name] for name in names] for entry in run.state.log_history if names[0] in entry]


def equal(ours, plain, rel=2e-5):
    """Losses, norms and rates in the log, parameters and the optimizer's state."""
    names = "loss", "grad_norm", "learning_rate"
    assert len(logged(plain, *names)) > 1
    for one, other in zip(logged(ours, *names), logged(plain, *names), strict=True):
        assert one == pytest.approx(other, rel=rel)
    parameters = [{name: value for name, value in run.model.state_dict().items() if not name.endswith("c_attn.bias")}
                  for run in (ours, plain)]
    torch.testing.assert_close(*parameters, rtol=1e-3, atol=2e-5)  # without the bias of the keys, whose gradient is noise
    states = [run.optimizer.state_dict() for run in (ours, plain)]
    assert states[0]["param_groups"] == states[1]["param_groups"]
    assert states[0]["state"].keys() == states[1]["state"].keys()
    for i, state in states[1]["state"].items():
        assert states[0]["state"][i].keys() == state.keys()
        for name, value in state.items():
            torch.testing.assert_close(states[0]["state"][i][name], value, rtol=1e-3, atol=1e-5)


# The rows of the table in docs/guides/integrations.md that go by compile_step.
WHOLE = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 2},
    "an epoch that ends within an accumulation": {"gradient_accumulation_steps": 4},
    "no clipping": {"max_grad_norm": 0.0},
    "schedule": {"lr_scheduler_type": "cosine"},
    "sgd": {"optim": "sgd"},
    "fused": {"optim": "adamw_torch_fused", "weight_decay": 0.1},
    "adagrad": {"optim": "adagrad"},
    "rmsprop": {"optim": "rmsprop"},
    "label smoothing": {"label_smoothing_factor": 0.1},
    "label smoothing, accumulation": {"label_smoothing_factor": 0.1, "gradient_accumulation_steps": 2},
    "checkpointing": {"gradient_checkpointing": True},
    "tokens": {"include_num_input_tokens_seen": "all", "logging_steps": 2},
    "without the filter": {"logging_nan_inf_filter": False},
}


@pytest.mark.parametrize("options", WHOLE.values(), ids=WHOLE)
def test_arguments_that_go_by_compile_step(tmp_path, options):
    plain, ours = (trainer(tmp_path, kind, **options) for kind in (transformers.Trainer, CaesuraTrainer))
    plain.train()
    ours.train()
    assert ours.refused is None
    equal(ours, plain)


def test_dropout_with_masks_of_pytorch(tmp_path):
    plain, ours = (trainer(tmp_path, kind, gpt(dropout=0.2), gradient_accumulation_steps=2)
                   for kind in (transformers.Trainer, CaesuraTrainer))
    for one in (plain, ours):
        torch.manual_seed(0)  # a Trainer seeds when it is made, and masks are drawn when it trains
        one.train()
    assert ours.refused is None
    equal(ours, plain)


@pytest.mark.parametrize("options", [{}, {"label_smoothing_factor": 0.1, "gradient_accumulation_steps": 2}], ids=["plain", "smoothed"])
def test_bfloat16(tmp_path, options):
    plain, ours = (trainer(tmp_path, kind, bf16=True, **options) for kind in (transformers.Trainer, CaesuraTrainer))
    plain.train()
    ours.train()
    assert ours.refused is None
    for one, other in zip(logged(ours, "loss", "grad_norm"), logged(plain, "loss", "grad_norm"), strict=True):
        assert one == pytest.approx(other, rel=4e-3)  # of 8 bits, 0.4%
    assert ours.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], rel=4e-3)


def test_texts_of_many_lengths(tmp_path):
    def run(kind):
        data = texts(lengths=(16, 9, 12, 7))
        collate = transformers.DataCollatorForTokenClassification(Pads())
        made = trainer(tmp_path, kind, data=data, per_device_train_batch_size=2)
        made.data_collator = collate
        made.train()
        return made

    equal(run(CaesuraTrainer), run(transformers.Trainer))


class Pads:
    """As much of a tokenizer as the collator asks for."""

    padding_side = "right"
    deprecation_warnings = {"Asking-to-pad-a-fast-tokenizer": True}

    def pad(self, rows, padding=True, max_length=None, pad_to_multiple_of=None, return_tensors=None):
        length = max(len(row["input_ids"]) for row in rows)
        ids = torch.stack([torch.nn.functional.pad(torch.as_tensor(row["input_ids"]), (0, length - len(row["input_ids"]))) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids != 0).long()}


# The rows of the table that go by wrap, and the line that tells why.
@pytest.mark.parametrize("options, why", [({"torch_compile_backend": "eager"}, "torch_compile=True gives the model to torch.compile"),
                                          ({"gradient_accumulation_steps": 2, "data": "stream"}, "a data set of unknown length")])
def test_arguments_that_go_by_wrap(tmp_path, options, why):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(texts())

    options = {name: Stream() if value == "stream" else value for name, value in options.items()}
    ours = trainer(tmp_path, **options)
    with pytest.warns(caesura.FallbackWarning, match=f"compile_step in CaesuraTrainer is not used: .*{why}"):
        ours.train()
    assert why in ours.refused
    with caesura.strict(), pytest.raises(caesura.StrictError, match=why):
        trainer(tmp_path, **options).train()


def test_a_model_that_is_no_program_trains_by_wrap(tmp_path):
    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.table, self.head = torch.nn.Embedding(64, 8), torch.nn.Linear(8, 64)

        def forward(self, input_ids, labels):
            scores = self.head(self.table(input_ids))
            if scores.sum() > 1e9:
                scores = scores * 2
            return {"loss": torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())}

    plain, ours = (trainer(tmp_path, kind, Branches(), max_grad_norm=0.1) for kind in (transformers.Trainer, CaesuraTrainer))
    plain.train()
    caesura.reports.reset()
    with pytest.warns(caesura.FallbackWarning, match="compile_step in CaesuraTrainer is not used: the step cannot be one"):
        ours.train()
    assert "one program" in ours.refused
    equal(ours, plain)


@pytest.mark.parametrize("before, after", [(True, True), (True, False), (False, True)])
def test_checkpoints_resume_with_and_without(tmp_path, before, after):
    kinds = {True: CaesuraTrainer, False: transformers.Trainer}
    options = {"gradient_accumulation_steps": 2, "lr_scheduler_type": "cosine"}
    plain = trainer(tmp_path / "plain", transformers.Trainer, gpt(dropout=0.1), **options)
    plain.train()
    first = trainer(tmp_path, kinds[before], gpt(dropout=0.1), save_strategy="steps", save_steps=2, **options)
    first.add_callback(StopAt(2))
    first.train()
    second = trainer(tmp_path, kinds[after], gpt(dropout=0.1), **options)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    equal(second, plain)


class StopAt(transformers.TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == self.step


def test_early_stopping_and_the_best_model(tmp_path):
    def run(kind):
        options = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "load_best_model_at_end": True,
                   "metric_for_best_model": "eval_loss", "learning_rate": 0.5, "max_steps": 8, "warmup_steps": 1}
        made = trainer(tmp_path / kind.__name__, kind, callbacks=[transformers.EarlyStoppingCallback(2)], **options)
        made.train()
        return made

    plain, ours = run(transformers.Trainer), run(CaesuraTrainer)
    assert ours.refused is None and ours.state.global_step == plain.state.global_step < 8
    assert ours.state.best_global_step == plain.state.best_global_step
    assert logged(ours, "eval_loss") == [pytest.approx(one, rel=1e-3) for one in logged(plain, "eval_loss")]
    equal(ours, plain, rel=1e-3)


def test_callbacks_are_called_as_the_trainer_calls_them(tmp_path):
    class Calls(transformers.TrainerCallback):
        def __init__(self):
            self.calls = []

        def __getattribute__(self, name):
            if name.startswith("on_"):
                return lambda args, state, control, **_: object.__getattribute__(self, "calls").append((name, state.global_step))
            return object.__getattribute__(self, name)

    seen = []
    for kind in (transformers.Trainer, CaesuraTrainer):
        callback = Calls()
        trainer(tmp_path, kind, callbacks=[callback], gradient_accumulation_steps=2, max_steps=3).train()
        seen.append(callback.calls)
    assert seen[0] == seen[1] and ("on_optimizer_step", 2) in seen[0] and ("on_substep_end", 1) in seen[0]


def test_the_schedule_acts_without_a_new_capture(tmp_path):
    ours = trainer(tmp_path, lr_scheduler_type="linear")
    caesura.reports.reset()
    ours.train()
    assert len({rate for (rate,) in logged(ours, "learning_rate")}) > 4
    assert len(ours._whole.step(1)._programs) == 1


def test_a_second_train_and_an_optimizer_of_the_users(tmp_path):
    def run(kind):
        model = gpt()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, 3)
        made = trainer(tmp_path, kind, model, logging_steps=1)
        made.optimizer, made.lr_scheduler = optimizer, schedule
        made.train()
        made.train()
        return made

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = run(CaesuraTrainer)
    equal(ours, run(transformers.Trainer))


def test_the_loss_of_a_subclass(tmp_path):
    class Own(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs)
            loss = outputs.loss + 1e-3 * outputs.logits.square().mean()
            return (loss, outputs) if return_outputs else loss

    class Ours(CaesuraMixin, Own):
        pass

    plain, ours = (trainer(tmp_path, kind, gradient_accumulation_steps=2) for kind in (Own, Ours))
    plain.train()
    ours.train()
    assert ours.refused is None
    equal(ours, plain)


def test_norms_are_pytorchs(tmp_path):
    ours = trainer(tmp_path, max_grad_norm=0.0)
    ours.train()
    assert all(math.isfinite(norm) and norm > 0 for (norm,) in logged(ours, "grad_norm"))
