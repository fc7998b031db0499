# SPDX-License-Identifier: Apache-2.0
"""50 steps of both examples agree with PyTorch, from the same weights, batches and optimizer."""

import copy
import os
import sys

import numpy as np
import torch

import caesura

EXAMPLES = os.path.join(os.path.dirname(__file__), "..", "..", "..", "examples")
sys.path += [os.path.join(EXAMPLES, "digits"), os.path.join(EXAMPLES, "chargpt")]
import export_chargpt  # noqa: E402
import export_digits  # noqa: E402

STEPS = 50
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


def torch_run(module, batches, loss_of):
    """Returns the losses and the state after STEPS steps of AdamW."""
    module = module.train()
    optimizer = torch.optim.AdamW(module.parameters(), **ADAMW)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(module, *batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses), {name: value.detach().double().numpy() for name, value in module.state_dict().items()}


def check(module, batches, loss_of, session, feeds_of, zero_gradient):
    """zero_gradient(name, array) removes elements whose true gradient is zero: their values are only rounding noise."""
    double_batches = [tuple(t.double() if t.is_floating_point() else t for t in batch) for batch in batches]
    double_losses, double_state = torch_run(copy.deepcopy(module).double(), double_batches, loss_of)
    losses, state = torch_run(copy.deepcopy(module), batches, loss_of)
    ours = np.array([session.step(feeds_of(*batch)) for batch in batches])

    def drift(losses, steps=STEPS):
        return np.max(np.abs(losses - double_losses)[:steps] / np.abs(double_losses)[:steps])

    # The bound is PyTorch's own float32 distance from float64. Losses jump when rounding switches one element of a
    # pooling or a ReLU. Over the digits' 50 steps PyTorch is 1.6e-4 to 2.4e-3 away, depending on the batches; we as
    # far, or 4e-6.
    assert drift(ours) <= max(3 * drift(losses), 1e-4)
    assert drift(ours, 10) <= 3e-6  # before anything switches: 8e-7 at most, for ours and for PyTorch's
    parameters = session.parameters()
    assert set(parameters) == {name for name in state if "num_batches_tracked" not in name}
    for name, value in parameters.items():
        own, reference, double = (zero_gradient(name, np.asarray(a, dtype=np.float64))
                                  for a in (value, state[name], double_state[name]))
        if own.size == 0:
            continue
        scale = max(np.abs(double).max(), 1e-30)
        distance = np.abs(own - double).max() / scale
        allowed = max(3 * np.abs(reference - double).max() / scale, 1e-4)
        if name.endswith("running_var"):  # ONNX keeps the biased variance: 1 / n less, of n >= 1,024 elements
            allowed += 1 / 1024
        assert distance <= allowed, f"{name}: {distance} from float64, PyTorch's own float32 is at {allowed / 3}"


def test_digits(tmp_path):
    module = export_digits.export(str(tmp_path))
    images, labels, _, _ = export_digits.load_data()
    rng = np.random.default_rng(5)
    picks = [rng.choice(len(images), 64, replace=False) for _ in range(STEPS)]
    batches = [(torch.from_numpy(images[p]), torch.from_numpy(labels[p])) for p in picks]
    session = caesura.TrainingSession(str(tmp_path / "digits.onnx"), target="labels", optimizer=caesura.optim.AdamW(**ADAMW))

    def zero_gradient(name, array):
        # BatchNorm's mean cancels the bias of the convolution before it.
        return array[:0] if name in ("features.0.bias", "features.3.bias", "features.7.bias") else array

    check(module, batches, lambda m, x, y: torch.nn.functional.cross_entropy(m(x), y), session,
          lambda x, y: {"images": x.numpy(), "labels": y.numpy()}, zero_gradient)


def test_chargpt(tmp_path):
    time, width = 64, 128
    corpus = np.frombuffer(export_chargpt.corpus(300_000).encode("ascii"), dtype=np.uint8)
    characters, tokens = np.unique(corpus, return_inverse=True)
    module = export_chargpt.export(str(tmp_path), len(characters))
    begins = np.random.default_rng(6).integers(0, len(tokens) - time - 1, size=(STEPS, 4))
    text = np.stack([[tokens[b:b + time + 1] for b in row] for row in begins]).astype(np.int64)
    batches = [(torch.from_numpy(t[:, :-1].copy()), torch.from_numpy(t[:, 1:].copy())) for t in text]
    session = caesura.TrainingSession(str(tmp_path / "chargpt.onnx"), target="next", class_axis=-1,
                                      optimizer=caesura.optim.AdamW(**ADAMW))

    def zero_gradient(name, array):
        if name.endswith("qkv.bias"):  # a key's bias shifts all scores of a row equally
            return np.concatenate([array[:width], array[2 * width:]])
        if name == "position.weight":  # rows after the sequence have no gradient, only decay
            return array[:time]
        return array

    check(module, batches, lambda m, x, y: torch.nn.functional.cross_entropy(m(x).flatten(0, 1), y.flatten()), session,
          lambda x, y: {"tokens": x.numpy(), "next": y.numpy()}, zero_gradient)
