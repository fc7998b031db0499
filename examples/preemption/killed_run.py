# SPDX-License-Identifier: Apache-2.0
"""Trains the digits twice: once undisturbed, once killed eleven times. Both runs are the same, bit for bit; a picture
shows their loss curves and where the second one was killed."""

import argparse
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
from safetensors.numpy import load_file

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "digits"))
from export_digits import export

UPDATES, KILLS = 900, 11


def train(folder, name):
    """Starts `caesura train`, or goes on with the run of this name."""
    return subprocess.Popen(["caesura", "train", "digits.onnx", "--data", "digits.npz", "--feed", "images=train_images",
                             "--target", "train_labels", "--steps", str(UPDATES), "--schedule", "cosine", "--checkpoint", name,
                             "--save-every", "25", "--log", f"{name}.csv", "--snapshot-on", "SIGTERM", "--resume"],
                            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def updates(folder):
    """Returns how many updates of the killed run are in its log."""
    log = os.path.join(folder, "killed.csv")
    return max(0, len(open(log).readlines()) - 1) if os.path.exists(log) else 0


def draw(folder, straight, killed, places):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axis = plt.subplots(figsize=(9, 4))
    axis.plot(straight, color="#c0c8d8", linewidth=5, label="undisturbed")
    axis.plot(killed, color="#20457c", linewidth=1, label=f"killed {KILLS} times")
    axis.plot(places, killed[places], "x", color="#c03030", label="killed here")
    axis.set(xlabel="update", ylabel="loss (nats)", yscale="log")
    axis.legend()
    figure.savefig(os.path.join(folder, "killed.png"), dpi=110, bbox_inches="tight")


def main(folder):
    export(folder)
    assert train(folder, "straight").wait() == 0
    places, order = [], random.Random(0)
    while len(places) < KILLS:
        process = train(folder, "killed")
        while updates(folder) < UPDATES * (len(places) + 0.5) / (KILLS + 1) and process.poll() is None:
            time.sleep(0.005)
        time.sleep(0.02 * order.random())
        # SIGTERM saves in the middle of a step; after SIGKILL the run goes on from the checkpoint before.
        process.send_signal(signal.SIGKILL if len(places) % 3 == 2 else signal.SIGTERM)
        assert process.wait() != 0, "the run was over before it was killed"
        places.append(updates(folder))
    assert train(folder, "killed").wait() == 0
    paths = [os.path.join(folder, name) for name in ("straight", "killed")]
    losses = [np.genfromtxt(f"{path}.csv", delimiter=",", skip_header=1)[:, 2] for path in paths]
    states = [load_file(path) for path in paths]
    assert all(np.array_equal(states[0][key], states[1][key]) for key in states[0]) and np.array_equal(*losses)
    draw(folder, *losses, places)
    print(f"killed {len(places)} times: {len(losses[0])} losses and {len(states[0])} tensors are equal, bit for bit")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    main(parser.parse_args().folder)
