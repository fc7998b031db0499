#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch 2.13.0, transformers 5.17.0: torch.load() knows no location "cpu:0", and Trainer asks for it on ranks of CPUs.
#
# torch.device("cpu", 0) is a device for tensors and modules, yet torch.load(map_location=torch.device("cpu", 0)) raises. Started by
# torchrun with Gloo, Trainer's device is cpu:0 on each rank: the first checkpoint is written, and resume_from_checkpoint fails when
# it reads the optimizer's state. One process without torchrun resumes, as its device is "cpu".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 transformers==5.17.0 accelerate==1.15.0
cat > "$folder/location.py" <<'PY'
import io

import torch

print("PyTorch", torch.__version__)
print("a tensor's device:", torch.ones(1, device=torch.device("cpu", 0)).device)
for location in (torch.device("cpu"), torch.device("cpu", 0)):
    file = io.BytesIO()
    torch.save(torch.ones(1), file)
    file.seek(0)
    try:
        print(f"torch.load to {location}:", torch.load(file, map_location=location).tolist())
    except RuntimeError as error:
        print(f"torch.load to {location}:", str(error).splitlines()[0])
PY
cat > "$folder/resume.py" <<'PY'
import sys

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(0)
config = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
model = BertForSequenceClassification(config)
rows = [{"input_ids": torch.arange(8), "labels": torch.tensor(i % 2)} for i in range(16)]


def trainer(steps):
    options = TrainingArguments(sys.argv[1], max_steps=steps, save_steps=2, use_cpu=True, report_to=[], disable_tqdm=True,
                                per_device_train_batch_size=2, logging_strategy="no")
    return Trainer(model, options, train_dataset=rows)


first = trainer(2)
first.train()
try:
    trainer(4).train(resume_from_checkpoint=f"{sys.argv[1]}/checkpoint-2")
    print(f"Trainer on {first.args.device}, {first.args.world_size} ranks: resumed")
except RuntimeError as error:
    print(f"Trainer on {first.args.device}, {first.args.world_size} ranks: {str(error).splitlines()[0]}")
PY
{
  "$folder/venv/bin/python" "$folder/location.py"
  "$folder/venv/bin/python" "$folder/resume.py" "$folder/one" 2>/dev/null
  "$folder/venv/bin/torchrun" --nproc-per-node 2 "$folder/resume.py" "$folder/two" 2>/dev/null
} | grep -v train_runtime | sort -u | tee "$folder/seen"
[[ $(grep -c "tagged with cpu:0" "$folder/seen") = 2 && $(grep -c "ranks: resumed" "$folder/seen") = 1 ]] || { echo "changed"; exit 1; }
# Output seen, 2026-11-30:
#   PyTorch 2.13.0+cpu
#   Trainer on cpu, 1 ranks: resumed
#   Trainer on cpu:0, 2 ranks: don't know how to restore data location of torch.storage.UntypedStorage (tagged with cpu:0)
#   a tensor's device: cpu
#   torch.load to cpu: [1.0]
#   torch.load to cpu:0: don't know how to restore data location of torch.storage.UntypedStorage (tagged with cpu:0)
