# SPDX-License-Identifier: Apache-2.0
"""Writes the digits example's inputs: digits.onnx, a convolutional net exported from PyTorch, and digits.npz,
scikit-learn's 1,797 handwritten digits, split into four fifths for training and one fifth held out."""

import argparse
import os

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn


class DigitsNet(nn.Module):
    """Three 3x3 convolutions, each with BatchNorm and ReLU; scores of ten classes for 8x8 images."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.head = nn.Linear(64 * 2 * 2, 10)

    def forward(self, images):
        return self.head(self.features(images).flatten(1))


def load_data(seed: int = 0):
    """(train images, train labels, held-out images, held-out labels); images are float32 [n, 1, 8, 8] in [0, 1]."""
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[:, None]
    order = np.random.default_rng(seed).permutation(len(images))
    images, labels = images[order], digits.target[order].astype(np.int64)
    held_out = len(images) // 5
    return images[held_out:], labels[held_out:], images[:held_out], labels[:held_out]


def export(folder: str, seed: int = 0) -> DigitsNet:
    """Writes digits.onnx and digits.npz into folder and returns the module whose weights the file holds."""
    os.makedirs(folder, exist_ok=True)
    torch.manual_seed(seed)
    module = DigitsNet().train()
    batch = torch.export.Dim("batch")
    # optimize=False: the optimiser would fold BatchNorm into the convolutions, and no BatchNorm would be left to train.
    program = torch.onnx.export(module, (torch.zeros(4, 1, 8, 8),), dynamo=True, optimize=False, verbose=False,
                                input_names=["images"], output_names=["scores"],
                                dynamic_shapes={"images": {0: batch}})
    program.save(os.path.join(folder, "digits.onnx"))
    train_x, train_y, test_x, test_y = load_data(seed)
    np.savez(os.path.join(folder, "digits.npz"), train_images=train_x, train_labels=train_y, test_images=test_x,
             test_labels=test_y)
    return module


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    export(parser.parse_args().folder)
