# SPDX-License-Identifier: Apache-2.0
"""Files that TensorBoard reads, written without TensorBoard."""

import os

import numpy as np

from caesura import _core


class EventWriter:
    """Writes scalars, texts and histograms into a new event file of a folder, which `tensorboard --logdir` shows.

    The methods are those of PyTorch's SummaryWriter, which needs the tensorboard package. The event of a call is in the
    file when the call returns. Several threads may use one writer.

    Args:
        folder: where the file is made; a missing folder is made, too.

    Raises:
        OSError: the folder or the file cannot be written; also from the methods.

    Example::

        events = caesura.EventWriter("runs/first")
        for update, (inputs, targets) in enumerate(batches):
            events.add_scalar("loss/train", step(inputs, targets), update)
    """

    def __init__(self, folder):
        self._events = _core.Events.open(os.fspath(folder))

    @property
    def path(self) -> str:
        """The path of the event file."""
        return self._events.path

    def add_scalar(self, tag: str, value, step: int) -> None:
        """Writes a number.

        Args:
            tag: its name; the part before the first "/" is its group.
            value: what float() takes, a tensor of one element too.
            step: its place on the horizontal axis.
        """
        self._events.scalar(tag, float(value), step)

    def add_text(self, tag: str, text: str, step: int = 0) -> None:
        """Writes a text, which TensorBoard takes for Markdown.

        Args:
            tag: its name.
            text: what is shown.
            step: its place in the order of texts of that name.
        """
        self._events.text(tag, text, step)

    def add_histogram(self, tag: str, values, step: int) -> None:
        """Writes how numbers are distributed, in 64 buckets of equal width; nothing where none is finite.

        Args:
            tag: its name; the part before the first "/" is its group.
            values: an array or a CPU tensor of any shape, counted as float32.
            step: its place on the horizontal axis.
        """
        values = values.detach().float().numpy() if hasattr(values, "detach") else values
        self._events.histogram(tag, np.ascontiguousarray(values, np.float32), step)
