# SPDX-License-Identifier: Apache-2.0
"""Draws the loss curves of both examples, and the GPT's sample, into one PNG."""

import argparse
import os

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np


def draw(folder: str) -> str:
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.5), gridspec_kw={"width_ratios": [1, 1, 1.1]})
    for axis, name in zip(axes, ("digits", "chargpt")):
        steps, losses = np.loadtxt(os.path.join(folder, f"{name}_loss.csv"), delimiter=",", ndmin=2).T
        smooth = np.convolve(losses, np.ones(10) / 10, mode="valid")
        axis.plot(steps, losses, color="#c0c8d8", linewidth=1, label="step")
        axis.plot(steps[len(steps) - len(smooth):], smooth, color="#20457c", linewidth=2, label="mean of 10 steps")
        axis.set(title=name, xlabel="step", ylabel="loss (nats)")
        axis.set_ylim(bottom=0)
        axis.legend()
    with open(os.path.join(folder, "chargpt_sample.txt"), encoding="ascii") as file:
        sample = file.read()
    axes[2].axis("off")
    axes[2].set_title("what the GPT writes")
    lines = [line[i:i + 64] for line in sample.splitlines() for i in range(0, max(len(line), 1), 64)]
    axes[2].text(0, 1, "\n".join(lines[:32]), family="monospace", fontsize=7, va="top", in_layout=False)
    figure.tight_layout()
    path = os.path.join(folder, "losses.png")
    figure.savefig(path, dpi=110)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    print("loss curves:", draw(parser.parse_args().folder))
