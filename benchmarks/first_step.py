# SPDX-License-Identifier: Apache-2.0
"""Measures the time to the end of the first step of transformers' Llama, captured and then loaded from disk.

    python benchmarks/first_step.py                 through wrap and compile_step, twice from disk
    python benchmarks/first_step.py --times 5

Each line is its own process. Imports and the construction of the model are not counted. The cache is a fresh folder.
"""

import argparse
import os
import subprocess
import sys
import tempfile

STEP = """
import sys, time, warnings
warnings.simplefilter("ignore")
import torch, transformers, caesura
torch.manual_seed(0)
config = transformers.LlamaConfig(vocab_size=2048, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
                                  num_attention_heads=8, num_key_value_heads=4, bos_token_id=1, eos_token_id=2)
model, tokens, through = transformers.LlamaForCausalLM(config), torch.randint(0, 2048, (4, 128)), sys.argv[1]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=through == "wrap" or None)
began = time.perf_counter()
if through == "wrap":
    wrapped = caesura.wrap(model)

    def step():
        loss = wrapped(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()
else:
    compiled = caesura.compile_step(model, None, optimizer)
    step = lambda: compiled(input_ids=tokens, labels=tokens).item()
loss = step()
seconds = time.perf_counter() - began
step()  # a call is kept after it
print(f"{through:13} first step {seconds:5.2f} s, loss {loss:.6f}", end="")
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=2, help="processes that find it on disk (2)")
    times = parser.parse_args().times
    with tempfile.TemporaryDirectory() as folder:
        for through in ("wrap", "compile_step"):
            for turn in range(1 + times):
                run = subprocess.run([sys.executable, "-W", "ignore", "-c", STEP, through], text=True, check=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                     env=os.environ | {"CAESURA_PROGRAM_CACHE": folder})
                print(run.stdout + (", from disk" if turn else ", captured"), flush=True)


if __name__ == "__main__":
    main()
