# SPDX-License-Identifier: Apache-2.0
"""The numbers of a recipe's run: in a file, in TensorBoard, in any tracker that takes log(dict), and in a picture."""

import importlib
import json


class Log:
    """Writes FOLDER/log.jsonl, FOLDER/tensorboard where TensorBoard is installed, and to a tracker.

    tracker: the name of a module with init(project=), log(dict) and finish(), such as wandb, trackio or swanlab; or None.
    done: updates that a run which goes on has done. Lines of later ones are dropped, as they will come again.
    """

    def __init__(self, folder, tracker=None, done=0):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.path = folder, folder / "log.jsonl"
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.rows = [row for row in map(json.loads, lines) if row["update"] <= done]
        try:
            from torch.utils.tensorboard import SummaryWriter
            self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)
        except ImportError:
            self.writer = None
        self.tracker = importlib.import_module(tracker) if tracker else None
        if self.tracker:
            self.tracker.init(project=folder.name)

    def __call__(self, update, **values):
        """Adds a line of numbers by name."""
        self.rows.append({"update": update, **values})
        text = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        print(f"update {update:4}  {text}", flush=True)
        part = self.path.with_suffix(".part")  # renamed, so that a kill leaves the old file or the new one
        part.write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        part.replace(self.path)
        for name, value in values.items() if self.writer else ():
            self.writer.add_scalar(name, value, update)
        if self.tracker:
            self.tracker.log(self.rows[-1])

    def of(self, name):
        """(updates, values) of one name."""
        rows = [row for row in self.rows if name in row]
        return [row["update"] for row in rows], [row[name] for row in rows]

    def close(self, score):
        """Draws FOLDER/curves.png, the loss beside the score before and after, and ends the writers."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 3), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[3, 1])
        left.plot(*self.of("loss"), color="#20457c")
        left.set(xlabel="update", ylabel="loss (nats)")
        _, values = self.of(score)
        bars = right.bar(["before", "after"], [values[0], values[-1]], color=["#c0c8d8", "#20457c"])
        right.bar_label(bars, fmt="%.3f")
        right.margins(y=0.15)
        right.set(title=score)
        figure.savefig(self.folder / "curves.png", dpi=80)
        if self.writer:
            self.writer.close()
        if self.tracker:
            self.tracker.finish()

    def compare(self, expected_by, found_by, names, before, after):
        """Draws FOLDER/parity.png: for each name (expected, found), before and after."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.5 * len(names), 4), layout="constrained")
        for axes, name, old, new in zip(figure.subplots(1, len(names)), names, before, after):
            for (expected, found), colour, label in ((old, "#c08080", "before"), (new, "#20457c", "after")):
                axes.plot(expected.flatten(), found.flatten(), ".", color=colour, markersize=3, label=label)
            axes.axline((0, 0), slope=1, color="#808080", linewidth=0.5)
            ends = old[0].min() - 0.3, old[0].max() + 0.3
            axes.set(xlabel=f"{expected_by} {name}", ylabel=found_by, xlim=ends, ylim=ends)
            axes.legend()
        figure.savefig(self.folder / "parity.png", dpi=80)
