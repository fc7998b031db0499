# SPDX-License-Identifier: Apache-2.0
"""A step leaves Python: `caesura train` or a C++ program (../continue_step) goes on with it, and Python takes it back.

    python export_step.py FOLDER          writes FOLDER/step and FOLDER/digits.npz
    python export_step.py FOLDER --back   reads FOLDER/step, which was trained meanwhile
"""

import argparse
import pathlib

import digits
import numpy
import torch

import caesura

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", type=pathlib.Path, help="where the step and the data are written")
parser.add_argument("--back", action="store_true", help="take the trained step back")
options = parser.parse_args()

images, labels, test_images, test_labels = digits.load()
model = digits.net()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
if options.back:
    caesura.load(str(options.folder / "step"), model, optimizer)
else:
    step = caesura.compile_step(model, torch.nn.functional.cross_entropy, optimizer, dynamic=True)
    for x, y in digits.batches(images, labels, epochs=1):
        step(x, y)
    options.folder.mkdir(parents=True, exist_ok=True)
    step.export(str(options.folder / "step"), images[:64], labels[:64])
    numpy.savez(options.folder / "digits.npz", input=images.numpy(), target=labels.numpy())
with torch.no_grad():
    print(f"accuracy {digits.accuracy(model(test_images), test_labels):.3f}")
