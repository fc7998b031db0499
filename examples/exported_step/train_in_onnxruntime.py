# SPDX-License-Identifier: Apache-2.0
"""Trains a step that TrainingSession.export_training() wrote, in onnxruntime alone."""

import argparse

import numpy as np
import onnxruntime


def train(step: str, data: str, batch_size: int, updates: int, output: str) -> list[float]:
    run = onnxruntime.InferenceSession(step, providers=["CPUExecutionProvider"])
    names = [value.name for value in run.get_outputs()]
    arrays = dict(np.load(data))
    count = len(next(iter(arrays.values())))
    state: dict[str, np.ndarray] = {}  # at first the file's own
    losses = []
    for update in range(updates):
        rows = np.arange(update * batch_size, (update + 1) * batch_size) % count
        feeds = {name: values[rows] for name, values in arrays.items()} | {"caesura.step": np.array(update + 1)}
        found = dict(zip(names, run.run(None, feeds | state)))
        losses.append(float(found["caesura.loss"]))
        state = {name.removeprefix("updated."): value for name, value in found.items() if name.startswith("updated.")}
    np.savez(output, **state)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step")
    parser.add_argument("data", help="an .npz with an array for each of the model's inputs, and for the target")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--output", default="trained.npz")
    arguments = parser.parse_args()
    print("losses:", *(f"{loss:.4f}" for loss in train(**vars(arguments))))
