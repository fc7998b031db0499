#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures float32 matrix products in all four layouts: caesura beside PyTorch's MKL, oneDNN's sgemm and OpenBLAS.

    . build/activate && pip install scipy-openblas32 && python benchmarks/products.py

The shapes are those of linear layers of the other benchmarks' models. Each instruction set has a process of its own, in
which every library is capped. In it the libraries take turns, and a figure is the best of the rounds: of CPU time on one
thread, else of time. The peak is that of a loop of fused multiply-adds, compiled here, which takes its turn. Without
OpenBLAS its column is left out.
"""

import argparse
import ctypes
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

SHAPES = [(1024, 1024, 1024), (256, 768, 3072), (256, 3072, 768), (768, 256, 3072), (256, 768, 768), (1024, 384, 1536),
          (1024, 1536, 384), (384, 1024, 1536), (512, 256, 1024), (256, 256, 688), (64, 784, 512), (512, 64, 784),
          (128, 128, 384)]
CAPS = {"avx2": {"CAESURA_MAX_ISA": "x86-64-v3", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
                 "ATEN_CPU_CAPABILITY": "avx2", "OPENBLAS_CORETYPE": "Haswell"}, "avx512": {}}
PEAK = r"""
typedef float v __attribute__((vector_size(BYTES)));
#define STEP(x) x = x * m + d; asm volatile("" : "+v"(x));
void spin(long n) {
  v m = (v){} + 0.999f, d = (v){} + 0.001f, a = d, b = d, c = d, e = d, f = d, g = d, h = d, i = d, j = d, k = d;
  while (n-- > 0) { STEP(a) STEP(b) STEP(c) STEP(e) STEP(f) STEP(g) STEP(h) STEP(i) STEP(j) STEP(k) }
}
"""


def spinning(isa):
    """Returns a call of fused multiply-adds in registers, on one thread, and the number of their operations."""
    size, flags = (64, ["-mavx512f"]) if isa == "avx512" else (32, ["-mavx2", "-mfma"])
    with tempfile.TemporaryDirectory() as folder:
        library = pathlib.Path(folder) / "peak.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", f"-DBYTES={size}", *flags, "-xc", "-", "-o", library],
                       input=PEAK.encode(), check=True)
        spin = ctypes.CDLL(str(library)).spin
        return lambda: spin(ctypes.c_long(100_000)), 1e5 * 10 * 2 * size / 4


def seconds(call, count, clock):
    began = clock()
    for _ in range(count):
        call()
    return (clock() - began) / count


def session_call(runtime, helper, a, b, c, turn_a, turn_b, threads):
    """A session of one Gemm, bound to these arrays."""
    info = lambda name, array: helper.make_tensor_value_info(name, 1, array.shape)
    node = helper.make_node("Gemm", ["a", "b"], ["c"], transA=turn_a, transB=turn_b)
    graph = helper.make_graph([node], "g", [info("a", a), info("b", b)], [info("c", c)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding, kept = session.io_binding(), runtime.OrtValue.ortvalue_from_numpy(c)
    binding.bind_cpu_input("a", a)
    binding.bind_cpu_input("b", b)
    binding.bind_ortvalue_output("c", kept)
    return lambda: session.run_with_iobinding(binding), kept


def column_major_call(sgemm, a, b, c, turn_a, turn_b):
    """Fortran's sgemm for row-major matrices: it multiplies them in the other order."""
    (m, n), k = c.shape, a.shape[0 if turn_a else 1]
    number, pointer = lambda x: ctypes.byref(ctypes.c_int(x)), lambda x: x.ctypes.data_as(ctypes.c_void_p)
    one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
    arguments = (b"NT"[turn_b:turn_b + 1], b"NT"[turn_a:turn_a + 1], number(n), number(m), number(k), one, pointer(b),
                 number(b.shape[1]), pointer(a), number(a.shape[1]), zero, pointer(c), number(n))
    return lambda: sgemm(*arguments)


def oneDNN_call(library, a, b, c, turn_a, turn_b):
    (m, n), k = c.shape, a.shape[0 if turn_a else 1]
    pointer, size = lambda x: x.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64
    arguments = (ctypes.c_char(b"NT"[turn_a]), ctypes.c_char(b"NT"[turn_b]), size(m), size(n), size(k), ctypes.c_float(1),
                 pointer(a), size(a.shape[1]), pointer(b), size(b.shape[1]), ctypes.c_float(0), pointer(c), size(n))
    return lambda: library.dnnl_sgemm(*arguments)


def openblas(threads):
    try:
        import scipy_openblas32
    except ImportError:
        return None
    library = ctypes.CDLL(str(pathlib.Path(scipy_openblas32.get_lib_dir()) / "libscipy_openblas.so"))
    library.scipy_openblas_set_num_threads(threads)
    library.scipy_openblas_get_corename.restype = ctypes.c_char_p
    return library


def work(isa, shapes, threads, rounds, milliseconds):
    import numpy as np
    import torch
    from onnx import helper

    import caesura.onnxruntime as runtime
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    own = next(line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if "libdnnl.so" in line)
    dnnl, blas = ctypes.CDLL(own), openblas(threads)
    report = {"oneDNN": hex(dnnl.dnnl_get_effective_cpu_isa()), "PyTorch": torch.backends.cpu.get_cpu_capability(),
              "OpenBLAS": blas.scipy_openblas_get_corename().decode() if blas else None}
    print(json.dumps(report), flush=True)
    spin, spins = spinning(isa)
    rng = np.random.default_rng(0)
    for m, k, n in shapes:
        for turn_a in (0, 1):
            for turn_b in (0, 1):
                a = rng.standard_normal((k, m) if turn_a else (m, k), np.float32)
                b = rng.standard_normal((n, k) if turn_b else (k, n), np.float32)
                c, ta, tb, tc = np.empty((m, n), np.float32), torch.from_numpy(a), torch.from_numpy(b), torch.empty(m, n)
                ta, tb = ta.T if turn_a else ta, tb.T if turn_b else tb
                call, kept = session_call(runtime, helper, a, b, c, turn_a, turn_b, threads)
                calls = {"caesura": call, "MKL": lambda: torch.mm(ta, tb, out=tc),
                         "oneDNN": oneDNN_call(dnnl, a, b, np.empty_like(c), turn_a, turn_b)}
                if blas:
                    calls["OpenBLAS"] = column_major_call(blas.scipy_sgemm_, a, b, np.empty_like(c), turn_a, turn_b)
                operations = 2.0 * m * n * k
                count, best = max(1, int(milliseconds * 1e-3 * 5e10 / operations)), dict.fromkeys(calls, math.inf)
                peak = 0.0
                for _ in range(rounds):
                    peak = max(peak, threads * spins / seconds(spin, 1, clock) / 1e9)
                    for name, run in calls.items():
                        best[name] = min(best[name], seconds(run, count, clock))
                exact = ta.double() @ tb.double()
                error = lambda x: (x.double() - exact).abs().mean().item()
                print(json.dumps({"shape": [m, k, n], "layout": "nt"[turn_a] + "nt"[turn_b], "peak": peak,
                                  "error": error(torch.from_numpy(kept.numpy())) / error(tc),
                                  "rates": {name: operations / time / 1e9 for name, time in best.items()}}), flush=True)


def table(isa, arguments):
    environment = dict(os.environ, **CAPS[isa], OMP_NUM_THREADS=str(arguments.threads))
    shapes = json.dumps(arguments.shapes)
    process = subprocess.Popen([sys.executable, __file__, "--worker", isa, "--worker-shapes", shapes, "--threads",
                                str(arguments.threads), "--rounds", str(arguments.rounds), "--milliseconds",
                                str(arguments.milliseconds)], stdout=subprocess.PIPE, text=True, env=environment)
    about = json.loads(process.stdout.readline())
    print(f"\n{isa}, {arguments.threads} thread(s), GFLOP/s; oneDNN's instruction sets {about['oneDNN']}, PyTorch's "
          f"{about['PyTorch']}, OpenBLAS' core {about['OpenBLAS']}")
    peers = ["MKL", "oneDNN"] + (["OpenBLAS"] if about["OpenBLAS"] else [])
    print(f"{'m, k, n':<18} {'':<3} {'caesura':>8} " + " ".join(f"{peer:>8}" for peer in peers) +
          f" {'/ best':>7} {'of peak':>7} {'error':>6}")
    ratios = []
    for line in process.stdout:
        row = json.loads(line)
        rates = row["rates"]
        ratios.append(rates["caesura"] / max(rates[peer] for peer in peers))
        print(f"{', '.join(map(str, row['shape'])):<18} {row['layout']:<3} {rates['caesura']:>8.1f} " +
              " ".join(f"{rates[peer]:>8.1f}" for peer in peers) +
              f" {ratios[-1]:>7.2f} {rates['caesura'] / row['peak']:>7.2f} {row['error']:>6.2f}", flush=True)
    process.wait()
    if ratios:
        print(f"caesura over the best of the others: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f} (geometric "
              f"mean), {min(ratios):.2f} at least")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", nargs="+", choices=CAPS, default=list(CAPS))
    parser.add_argument("--shapes", nargs="+", type=lambda text: [int(x) for x in text.split(",")], default=SHAPES,
                        metavar="M,K,N")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--milliseconds", type=float, default=10, help="of a library in one round, at 50 GFLOP/s")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--worker-shapes", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments.worker, arguments.worker_shapes, arguments.threads, arguments.rounds, arguments.milliseconds)
    if "avx512" in arguments.isa and "avx512f" not in pathlib.Path("/proc/cpuinfo").read_text():
        arguments.isa.remove("avx512")
    for isa in arguments.isa:
        table(isa, arguments)


if __name__ == "__main__":
    main()
