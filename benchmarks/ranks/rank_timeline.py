# SPDX-License-Identifier: Apache-2.0
"""Draws a step of two ranks over a slow link, as it was measured: what each rank computes, waits for and sends.

    python benchmarks/ranks/rank_timeline.py docs/images/rank_timeline.png --gbit 1

Each rank is a process on one thread, in a network namespace of its own (rank_link.py), so it needs root. The model is
the GPT of 10.7 M parameters of caesura.bench with AdamW, as a TrainingSession. The profiler times the nodes of the
graph; the operating system's counter of sent bytes, read each 4 ms, shows the link. Of --steps profiled steps the one
of median length is drawn. Each is compared with its bound.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import threading
import time

import rank_link

WAITS = ("CollectiveWait", "AgreeToCommit")
COLORS = {"forward": "#7aa6d8", "backward": "#20457c", "optimizer": "#e0a030", "waits": "#d04545", "sends": "#4f9f6f"}
EVERY = 0.004  # seconds between readings of the link


def export(path, batch):
    import torch

    from caesura.bench.models import Gpt, GptSizes
    torch.manual_seed(0)
    tokens = torch.zeros(batch, GptSizes().time, dtype=torch.int64)
    torch.onnx.export(Gpt(GptSizes()).eval(), (tokens,), dynamo=True, optimize=False, verbose=False, input_names=["x"],
                      output_names=["scores"]).save(str(path))


class Readings:
    """(time, bytes sent) of the link, read by a thread within a `with` block."""

    def __enter__(self):
        self.rows, self._ends = [], threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        return self

    def _read(self):
        with open(rank_link.SENT_BYTES) as counter:
            while not self._ends.wait(EVERY):
                counter.seek(0)
                self.rows.append((time.monotonic(), int(counter.read())))

    def __exit__(self, *error):
        self._ends.set()
        self._thread.join()


def measure(options):
    """A rank: writes the events and readings of each profiled step, on the clock that all processes share."""
    import torch
    import torch.distributed as dist

    import caesura
    from caesura.bench.models import GptSizes

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    session = caesura.TrainingSession(options.folder / "gpt.onnx", optimizer=caesura.optim.AdamW(lr=1e-4))
    generator, sizes = torch.Generator().manual_seed(options.rank), GptSizes()
    shape, steps = (options.batch, sizes.time), []
    tokens, targets = (torch.randint(0, sizes.vocabulary, shape, generator=generator) for _ in range(2))
    feeds = {"x": tokens, "target": targets.flatten()}
    for _ in range(3):
        session.step(feeds)
    for _ in range(options.steps):
        dist.barrier()
        trace = options.folder / f"trace-{options.rank}.json"
        with Readings() as readings:
            began = time.monotonic()
            session.profile_step(feeds, trace)
            ended = time.monotonic()
            time.sleep(0.05)  # bytes that the link still holds
        events = [e for e in json.loads(trace.read_text())["traceEvents"] if "thread_statistics" in e.get("args", {})]
        steps.append({"began": began, "ended": ended, "sent": readings.rows, "events": [
            {"op": e["args"]["op_name"], "phase": e["cat"], "bytes": e["args"]["output_size"], "from": began + 1e-6 * e["ts"],
             "to": began + 1e-6 * (e["ts"] + e["dur"])} for e in events]})
    (options.folder / f"rank-{options.rank}.json").write_text(json.dumps(steps))
    dist.barrier()
    dist.destroy_process_group()


def bound(ranks, gbit):
    """Seconds that the step takes at least, from the records of all ranks: each node begins when the one before has ended and takes
    as long as it did, a bucket is sent when it is full on all ranks and the link is free, and a wait ends with its bucket, in the
    order of the buckets. Two ranks send as many bytes as they sum. What the transport computes beside the nodes is in their times."""
    link, sent, left = 0.0, [], [list(record["events"]) for record in ranks]
    now, before = [0.0] * len(ranks), [record["began"] for record in ranks]
    full, waited = [[] for _ in ranks], [0] * len(ranks)
    while any(left):
        for rank, events in enumerate(left):
            while events and not (events[0]["op"] == "CollectiveWait" and waited[rank] == len(sent)):
                event = events.pop(0)
                now[rank] += event["from"] - before[rank]
                before[rank] = event["to"]
                if event["op"] == "CollectiveStart":
                    full[rank].append((now[rank], event["bytes"]))
                elif event["op"] == "CollectiveWait":
                    now[rank] = max(now[rank], sent[waited[rank]])
                    waited[rank] += 1
                if event["op"] not in WAITS:
                    now[rank] += event["to"] - event["from"]
        for bucket in list(zip(*full))[len(sent):]:
            link = max(link, *(when for when, _ in bucket)) + 8e-9 * bucket[0][1] / gbit
            sent.append(link)
    return max(at + record["ended"] - last for at, record, last in zip(now, ranks, before, strict=True))


def kind(event):
    return "waits" if event["op"] in WAITS else event["phase"]


def blocks(events):
    """[kind, from, to] of neighbours of one kind; starts of collectives are none."""
    found = []
    for event in events:
        if event["op"] == "CollectiveStart":
            continue
        if found and found[-1][0] == kind(event) and event["from"] - found[-1][2] < 1e-3:
            found[-1][2] = event["to"]
        else:
            found.append([kind(event), event["from"], event["to"]])
    return found


def draw(path, ranks, gbit):
    """ranks: the record of the same step on each rank."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    plt.rcParams["font.size"] = 13
    zero = min(r["began"] for r in ranks)
    whole = max(r["ended"] for r in ranks) - zero
    figure, axes = plt.subplots(4, 1, sharex=True, figsize=(8, 5.6),
                                gridspec_kw={"height_ratios": [1, 1.3, 1, 1.3], "hspace": 0.12})
    for number, record in enumerate(ranks):
        steps, link = axes[2 * number], axes[2 * number + 1]
        for name, begin, end in blocks(record["events"]):
            steps.barh(0, 1e3 * (end - begin), left=1e3 * (begin - zero), height=1, color=COLORS[name], linewidth=0)
        steps.set(yticks=[], ylim=(-0.5, 0.5))
        steps.set_ylabel(f"rank {number}", rotation=0, ha="right", va="center")
        read = record["sent"]
        rates = [8e-9 * (sent - before) / (now - then) for (then, before), (now, sent) in zip(read, read[1:])]
        link.stairs(rates, [1e3 * (now - zero) for now, _ in read], fill=True, color=COLORS["sends"])
        for event in record["events"]:
            if event["op"] == "CollectiveStart":
                link.plot(1e3 * (event["from"] - zero), 1.3 * gbit, marker="v", color="black", markersize=6)
        link.axhline(gbit, color="#808080", linewidth=1, linestyle=":")
        link.set(ylim=(0, 1.5 * gbit), yticks=[0, gbit])
        link.set_ylabel("sends,\nGbit/s", rotation=0, ha="right", va="center")
    axes[-1].set(xlim=(0, 1e3 * whole), xlabel="ms")
    patches = [matplotlib.patches.Patch(color=color, label=name) for name, color in COLORS.items()]
    patches.append(matplotlib.lines.Line2D([], [], color="black", marker="v", linestyle="", label="a bucket is full"))
    figure.legend(handles=patches, loc="upper center", ncols=3, frameon=False, bbox_to_anchor=(0.5, 1.0))
    figure.subplots_adjust(left=0.16, right=0.97, top=0.86, bottom=0.11)
    figure.savefig(path, dpi=110)


def summary(number, record):
    """One rank as the picture shows it."""
    spent = dict.fromkeys(COLORS, 0.0)
    found = blocks(record["events"])
    for name, begin, end in found:
        spent[name] += 1e3 * (end - begin)
    backward_end = max(end for name, _, end in found if name == "backward")
    first, last = record["sent"][0][1], record["sent"][-1][1]
    early = max((sent for now, sent in record["sent"] if now <= backward_end), default=first) - first
    parts = ", ".join(f"{name} {value:.0f} ms" for name, value in spent.items() if value)
    return (f"rank {number}: {1e3 * (record['ended'] - record['began']):.0f} ms; {parts}; {(last - first) / 2**20:.1f} "
            f"MiB sent, {early / max(1, last - first):.0%} of it before the backward's end")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=pathlib.Path, nargs="?", help="the PNG file")
    parser.add_argument("--gbit", type=float, default=1, help="the link's rate")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--batch", type=int, default=8, help="sequences of a rank")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        measure(options)
        return
    if options.picture is None:
        parser.error("the name of the picture is missing")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        export(folder / "gpt.onnx", options.batch)
        try:
            with rank_link.namespaces():
                rank_link.limit(options.gbit)
                rank_link.run_ranks(__file__, [*sys.argv[1:], "--folder", name])
        except rank_link.NoNamespaces as error:
            sys.exit(str(error))
        steps = list(zip(*(json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)), strict=True))
    steps.sort(key=lambda ranks: max(r["ended"] - r["began"] for r in ranks))
    chosen = steps[len(steps) // 2]
    draw(options.picture, chosen, options.gbit)
    for number, record in enumerate(chosen):
        print(summary(number, record))
    shares = [bound(ranks, options.gbit) / max(r["ended"] - r["began"] for r in ranks) for ranks in steps]
    print(f"the bound over the step's time: {min(shares):.0%} to {max(shares):.0%}, median {statistics.median(shares):.0%}")


if __name__ == "__main__":
    main()
