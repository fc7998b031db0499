# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer with a wrapped model: a hundred steps are 37, a kill, and 63, bit for bit.

Trainer's own checkpoint is enough: a wrapped module keeps nothing that state_dict(), the optimizer's state and PyTorch's
random state do not hold.
"""

import re
import signal

import pytest
from fork_server import Program

# Arguments: the folders of checkpoints, each with the end of a process that trains there: "whole", or "killed" for one that
# kills itself in the middle of step 40, after the checkpoint of step 37. The processes are forks, one after the other. The
# script prints how each ended.
CHILD = '''
import os, signal, sys
import torch
import transformers
from safetensors.torch import save_file
import caesura

torch.set_num_threads(1)  # a fork has no others
for folder, end in zip(sys.argv[1::2], sys.argv[2::2]):
    child = os.fork()
    if child == 0:
        break
    print("ended by", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
killed = end == "killed"
torch.manual_seed(0)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
    vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))  # with dropout
model.loss_type = "ForCausalLM"  # otherwise its forward logs that it has none, which is a graph break
rows = torch.randint(1, 64, (24, 12), generator=torch.Generator().manual_seed(0))

class Trainer(transformers.Trainer):
    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        value = loss[0] if isinstance(loss, tuple) else loss
        losses[self.state.global_step] = float(value)
        if killed and self.state.global_step == 39:
            os.kill(os.getpid(), signal.SIGKILL)
        return loss

losses = {}
arguments = transformers.TrainingArguments(
    output_dir=folder, max_steps=100, per_device_train_batch_size=4, learning_rate=1e-2, lr_scheduler_type="cosine",
    warmup_steps=5, save_steps=37, logging_steps=1000, report_to=[], use_cpu=True, disable_tqdm=True, seed=0)
trainer = Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows],
                  callbacks=[caesura.integrations.transformers.CaesuraCallback()])
found = os.path.isdir(f"{folder}/checkpoint-37")
with caesura.strict():
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-37" if found else None)
state = trainer.optimizer.state_dict()["state"]
save_file({name: value.clone() for name, value in model.state_dict().items()} |
          {f"{i}.{name}": value.clone() for i, values in state.items() for name, value in values.items()} |
          {"steps": torch.tensor(sorted(losses)), "losses": torch.tensor([losses[step] for step in sorted(losses)])},
          f"{folder}/end")
os._exit(0)
'''


def test_a_hundred_steps_are_37_a_kill_and_63(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    load_file = pytest.importorskip("safetensors.torch").load_file
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("CAESURA_NUM_THREADS", "1")
    done = Program(CHILD, tmp_path / "straight", "whole", tmp_path / "killed", "killed", tmp_path / "killed", "whole").result()
    assert re.findall(r"^ended by (.+)$", done.stdout, re.MULTILINE) == ["0", str(-signal.SIGKILL), "0"], done.stderr
    straight, resumed = (load_file(tmp_path / name / "end") for name in ("straight", "killed"))
    assert straight.pop("steps").tolist() == list(range(100)) and resumed.pop("steps").tolist() == list(range(37, 100))
    losses = straight.pop("losses")
    assert len(set(losses.tolist())) > 90
    assert torch.equal(resumed.pop("losses"), losses[37:])
    assert resumed.keys() == straight.keys()
    for name, value in straight.items():
        assert torch.equal(resumed[name], value), name
