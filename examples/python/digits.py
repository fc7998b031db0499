# SPDX-License-Identifier: Apache-2.0
"""The data of the examples: scikit-learn's 1,797 scans of handwritten digits, and a small net for them."""

import sklearn.datasets
import sklearn.model_selection
import torch


def load():
    """(images to train on, labels, images to test with, labels): float32[N, 64] in 0 to 1, and int64[N]."""
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    split = sklearn.model_selection.train_test_split(images / 16, labels, test_size=360, random_state=0)
    train_images, test_images = (torch.tensor(part, dtype=torch.float32) for part in split[:2])
    train_labels, test_labels = (torch.tensor(part) for part in split[2:])
    return train_images, train_labels, test_images, test_labels


def batches(images, labels, epochs, size=64):
    """Shuffled batches of one size."""
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(size):
            if len(chosen) == size:
                yield images[chosen], labels[chosen]


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))


def accuracy(scores, labels):
    """The part of the rows whose highest score is the label's."""
    return (torch.as_tensor(scores).argmax(1) == torch.as_tensor(labels)).double().mean().item()


def export(path):
    """The untrained net as an ONNX model: images float32[batch, 64] -> scores float32[batch, 10]."""
    torch.onnx.export(net().eval(), (torch.zeros(2, 64),), path, input_names=["images"], output_names=["scores"],
                      dynamic_shapes=({0: torch.export.Dim("batch")},), dynamo=True, optimize=False, verbose=False)
