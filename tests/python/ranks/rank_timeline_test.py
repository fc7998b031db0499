# SPDX-License-Identifier: Apache-2.0
"""The picture of a step of two ranks, from records as its ranks write them."""

import pathlib
import sys

import pytest

pytest.importorskip("matplotlib")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "benchmarks" / "ranks"))

import rank_timeline  # noqa: E402

EVENTS = [("MatMul", "forward", 0.0, 0.1), ("Gelu", "forward", 0.1, 0.2), ("MatMul", "backward", 0.2, 0.3),
          ("CollectiveStart", "optimizer", 0.3, 0.301), ("MatMul", "backward", 0.301, 0.4),
          ("CollectiveWait", "optimizer", 0.4, 0.5), ("AgreeToCommit", "optimizer", 0.5, 0.51),
          ("AdamUpdate", "optimizer", 0.51, 0.6)]
SENT = [(0.3, 0), (0.35, 3 << 20), (0.45, 4 << 20)]


def record():
    """A step that begins at 100 s."""
    return {"began": 100.0, "ended": 100.6, "sent": [(100 + now, sent) for now, sent in SENT], "events": [
        {"op": op, "phase": phase, "bytes": 4 << 20, "from": 100 + begin, "to": 100 + end} for op, phase, begin, end in EVENTS]}


def test_neighbours_of_one_kind_are_one_block():
    blocks = rank_timeline.blocks(record()["events"])
    found = [(name, round(begin - 100, 3), round(end - 100, 3)) for name, begin, end in blocks]
    assert found == [("forward", 0, 0.2), ("backward", 0.2, 0.3), ("backward", 0.301, 0.4), ("waits", 0.4, 0.51),
                     ("optimizer", 0.51, 0.6)]


def test_the_summary_says_what_overlapped():
    assert rank_timeline.summary(1, record()) == (
        "rank 1: 600 ms; forward 200 ms, backward 199 ms, optimizer 90 ms, waits 110 ms; 4.0 MiB sent, 75% of it before "
        "the backward's end")


def test_a_bound_waits_for_buckets_only():
    """The bucket of 33.6 ms at 1 Gbit/s is sent before its wait begins; at 0.1 Gbit/s it comes 235.5 ms after that. A rank whose
    first node takes 0.1 s longer sends it that much later."""
    late = record()
    late["ended"] += 0.1
    for event in late["events"]:
        event["from"] += 0.1 * (event is not late["events"][0])
        event["to"] += 0.1
    for gbit, ranks, seconds in ((1, [record(), record()], 0.49), (0.1, [record(), record()], 0.49 + 0.2355443),
                                 (0.1, [record(), late], 0.59 + 0.2355443), (1, [late, record()], 0.59)):
        assert rank_timeline.bound(ranks, gbit) == pytest.approx(seconds, abs=1e-6)


def test_the_picture_is_drawn(tmp_path):
    rank_timeline.draw(tmp_path / "step.png", [record(), record()], gbit=1)
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
