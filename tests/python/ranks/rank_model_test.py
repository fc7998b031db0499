# SPDX-License-Identifier: Apache-2.0
"""The model of the cost of many ranks: formulas beside the simulated communicator's, memory beside sessions'."""

import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys

import numpy
import onnx
import pytest

import caesura

TOP = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TOP / "benchmarks" / "ranks"))

import rank_model  # noqa: E402
import rank_steps  # noqa: E402
from rank_steps import Exchange, Gpu, Link, Model, predict  # noqa: E402

PROGRAM = shutil.which("collective_seconds")
MODEL = Model(layers=4, width=256, sequence=128, batch=4, vocabulary=1000)
GPU = Gpu(tflops=1, memory_rate=1000, memory=80)
FLAT = Link(node_ranks=1, node_latency=0, node_rate=1e9, latency=20, rate=10, adapters=1, ring_adapters=1)
NODES = Link(node_ranks=8, node_latency=3, node_rate=300, latency=14, rate=50, adapters=8, ring_adapters=2)


@pytest.mark.skipif(PROGRAM is None, reason="collective_seconds was not built")
def test_formulas_are_those_of_the_simulated_communicator():
    links = [(20e-6, 10e9), (0.0, 1e6), (1e-3, 125e6)]
    points = [(kind, ranks, ranks * part, link) for kind in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
              for ranks in (1, 2, 3, 8, 64, 1024) for part in (0, 1, 4096, 1 << 20) for link in links]
    lines = "".join(f"{kind} {ranks} {size} {latency!r} {rate!r}\n" for kind, ranks, size, (latency, rate) in points)
    printed = subprocess.run([PROGRAM], input=lines, capture_output=True, text=True, check=True).stdout.split()
    ours = {"all_reduce": rank_steps.ring_all_reduce, "all_to_all": rank_steps.all_to_all}
    for (kind, ranks, size, (latency, rate)), seconds in zip(points, printed, strict=True):
        link = dataclasses.replace(FLAT, latency=1e6 * latency, rate=1e-9 * rate)
        found = sum(ours.get(kind, rank_steps.ring_pass)(size, ranks, link))
        assert found == pytest.approx(float(seconds), rel=1e-9), (kind, ranks, size)


def test_nodes_have_fewer_slow_hops_and_the_rate_of_their_adapters():
    latency, transfer = rank_steps.ring_all_reduce(1e9, 16, NODES)
    assert latency == pytest.approx(28 * 3e-6 + 2 * 14e-6) and transfer == pytest.approx(2 * 15 / 16 * 1e9 / 100e9)
    latency, transfer = rank_steps.tree_all_reduce(1e9, 64, NODES)
    assert latency == pytest.approx(14 * 3e-6 + 2 * 3 * 14e-6) and transfer == pytest.approx(2e9 / 100e9)
    assert rank_steps.ring_all_reduce(1e9, 8, NODES)[1] == pytest.approx(2 * 7 / 8 * 1e9 / 300e9)
    # Seven parts within the node, and 56 by the rank's own adapter.
    assert rank_steps.all_to_all(64e6, 64, NODES)[1] == pytest.approx(7e6 / 300e9 + 56e6 / 50e9)


@pytest.mark.parametrize("kind, passes", (("all_reduce", 2), ("shard", 2), ("logical_shards", 2),
                                          ("shard_grad_op", 2), ("fully_shard", 2.75)))
def test_each_rank_sends_what_its_exchange_needs(kind, passes):
    """In units of (n - 1) / n of the gradients. fully_shard gathers all layers twice, but the last one only once."""
    found = predict(MODEL, GPU, FLAT, Exchange(kind, bucket=1), 8, efficiency=1)
    expected = passes * 7 / 8 * 4 * MODEL.parameters
    assert found["sent_bytes"] == pytest.approx(expected, rel=1e-4)  # and the words of the agreement


def test_one_bucket_overlaps_with_nothing_and_many_with_the_backward():
    given = (MODEL, GPU, FLAT)
    alone = predict(*given, Exchange("all_reduce"), 1, efficiency=1)
    assert alone["step"] == alone["compute"] + alone["update"] and alone["scaling"] == 1
    one = predict(*given, Exchange("all_reduce", bucket=1e6), 2, efficiency=1)
    agree = sum(rank_steps.ring_pass(32, 2, FLAT))
    whole = sum(rank_steps.ring_all_reduce(4 * MODEL.parameters, 2, FLAT))
    assert one["not_overlapped"] == pytest.approx(whole + agree)
    late = predict(*given, Exchange("all_reduce", bucket=1, overlaps=False), 2, efficiency=1)
    assert late["not_overlapped"] >= one["not_overlapped"]
    many = predict(*given, Exchange("all_reduce", bucket=1), 2, efficiency=1)
    count, size = rank_steps.buckets(Exchange("all_reduce", bucket=1), 4, MODEL.parameters)
    last = sum(rank_steps.exchange_cost("all_reduce", size, 2, FLAT)[:2])
    assert count > 10 and many["not_overlapped"] == pytest.approx(last + agree)  # all others are hidden


def test_a_slow_link_hides_the_backward():
    slow = dataclasses.replace(FLAT, rate=1e-3)
    found = predict(MODEL, GPU, slow, Exchange("all_reduce", bucket=1), 2, efficiency=1)
    count, _ = rank_steps.buckets(Exchange("all_reduce", bucket=1), 4, MODEL.parameters)
    first = found["compute"] / 3 + 2 * found["compute"] / 3 / count
    assert found["step"] == pytest.approx(first + found["latency"] + found["transfer"] + found["update"])
    for kind in rank_steps.STEPS:
        assert predict(MODEL, GPU, slow, Exchange(kind, bucket=1), 2, 1)["step"] >= found["transfer"] / 2


def test_a_measured_step_takes_the_place_of_the_peak():
    found = predict(MODEL, GPU, FLAT, Exchange("all_reduce"), 1, efficiency=0.1, compute_seconds=0.5)
    assert found["step"] == 0.5


def test_the_fit_gives_the_published_row():
    given = (MODEL, GPU, NODES, Exchange("fully_shard"))
    rate = predict(*given, 8, 0.37)["tokens_per_second"]
    assert rank_steps.fitted_efficiency(*given, 8, rate) == pytest.approx(0.37, rel=1e-6)


def test_an_exchange_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="expected one of all_reduce, .*got 'zero3'"):
        predict(MODEL, GPU, FLAT, Exchange("zero3"), 2, 1)


def memory_of_sessions(rank):
    """Parameters of 3 MiB in all: one bucket."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        net (float[N,512] x) => (float[N,512] y) { a = MatMul (x, w1) b = MatMul (a, w2) y = MatMul (b, w3) }""")
    for name in ("w1", "w2", "w3"):
        model.graph.initializer.append(onnx.numpy_helper.from_array(numpy.zeros((512, 512), numpy.float32), name))
    for kind, options in (("all_reduce", {}), ("all_reduce", {"exchange_dtype": "bf16"}), ("shard", {"shard": 1}),
                          ("logical_shards", {"logical_shards": 2})):
        told = caesura.TrainingSession(model.SerializeToString(), loss="mse", ranks=caesura.Ranks(**options))._session.memory
        exchange = Exchange(kind, gradient_bytes=2 if "exchange_dtype" in options else 4)
        expected = rank_steps.state_bytes(exchange, 3 * 512 * 512, ranks=2)
        assert sum(told.values()) == pytest.approx(expected, rel=1e-3), (kind, told)
    return True


def test_memory_is_that_of_sessions():
    pytest.importorskip("torch")
    from rank_processes import run_ranks
    run_ranks(2, memory_of_sessions)


def test_kept_results_are_those_of_the_scenarios():
    kept = json.loads((TOP / "benchmarks" / "results" / "rank_costs.json").read_text())
    assert kept == json.loads(json.dumps(rank_model.Scenarios().results()))


def test_the_command_takes_a_case_of_ones_own(tmp_path):
    command = [sys.executable, TOP / "benchmarks" / "ranks" / "rank_model.py", "--layers", "2", "--width", "64",
               "--compute-seconds", "0.25", "--ranks", "2", "16",
               "--exchange", "all_reduce", "--json", tmp_path / "own.json"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = json.loads((tmp_path / "own.json").read_text())
    assert [r["ranks"] for r in found["costs"]] == [2, 16] and found["parameters"]["models"]["model"]["width"] == 64
    assert all(r["compute"] == 0.25 for r in found["costs"])
    assert "| model | 2 | 64 |" in printed and "TorchTitan" not in printed
