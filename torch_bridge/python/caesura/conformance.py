# SPDX-License-Identifier: Apache-2.0
"""The ONNX node tests, on caesura's kernels.

    python -m caesura.conformance                     all cases, a line for each one that does not pass
    python -m caesura.conformance --filter softmax    cases whose name contains "softmax"
    python -m caesura.conformance --write FOLDER      write the cases out as files (for `caesura conformance`)

Each case runs in a worker process, so that a crash is a result like any other.
"""

import argparse
import collections
import functools
import json
import multiprocessing
import os
import sys

import numpy as np


def collect(name_filter: str = "") -> list:
    """The node test cases of the installed onnx package whose name contains name_filter."""
    from onnx.backend.test.case.node import collect_testcases

    return [case for case in collect_testcases(None) if name_filter in case.name]


def _to_numpy(item):
    """Test data comes as arrays, lists (sequences), None, or protos."""
    import onnx

    if isinstance(item, onnx.TensorProto):
        return onnx.numpy_helper.to_array(item)
    if isinstance(item, onnx.SequenceProto):
        return onnx.numpy_helper.to_list(item)
    if isinstance(item, onnx.OptionalProto):
        return onnx.numpy_helper.to_optional(item)
    return item


def _compare(got, want, rtol: float, atol: float, path: str) -> str:
    """Empty when equal within tolerance, else what differs."""
    if want is None or got is None:
        return "" if got is None and want is None else f"{path}: one of the two is empty"
    if isinstance(want, (list, tuple)):
        if not isinstance(got, list) or len(got) != len(want):
            return f"{path}: expected a sequence of {len(want)}"
        parts = (_compare(g, w, rtol, atol, f"{path}[{i}]") for i, (g, w) in enumerate(zip(got, want)))
        return next((part for part in parts if part), "")
    want = np.asarray(want)
    if got.shape != want.shape:
        return f"{path}: shape {got.shape}, expected {want.shape}"
    if want.dtype.kind in "OUST":
        return "" if [str(x) for x in got.reshape(-1)] == [str(x) for x in want.reshape(-1)] else f"{path}: strings differ"
    if got.dtype != want.dtype:
        return f"{path}: dtype {got.dtype}, expected {want.dtype}"
    if want.dtype.kind not in "biufc" or want.dtype.itemsize < 4 and want.dtype.kind == "f":
        got, want = got.astype(np.float32), want.astype(np.float32)
    close = np.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
    if close.all():
        return ""
    worst = np.argmin(close.reshape(-1))
    return f"{path}: {(~close).sum()} of {close.size} differ, e.g. {got.reshape(-1)[worst]} for {want.reshape(-1)[worst]}"


def run_case(case, make_session) -> str:
    """Empty when the case passes, else the reason. make_session(bytes) gives an object with run(None, feeds)."""
    session = make_session(case.model.SerializeToString())
    names = [value.name for value in case.model.graph.input]
    for inputs, outputs in case.data_sets:
        feeds = {name: _to_numpy(item) for name, item in zip(names, inputs)}
        got = session.run(None, feeds)
        for i, (g, w) in enumerate(zip(got, outputs)):
            difference = _compare(g, _to_numpy(w), case.rtol or 1e-3, case.atol or 1e-7, f"output {i}")
            if difference:
                return difference
    return ""


def _make_caesura(model: bytes, provider: str = "cpu"):
    from caesura.onnxruntime import InferenceSession

    name, _, device = provider.partition(":")
    if name in ("torch", "torch-only"):
        session = InferenceSession(model, providers=[("TorchExecutionProvider", {"device": device} if device else {})])
        if name == "torch-only":  # nothing is left to our own kernels
            session._open({"TorchExecutionProvider": {}}, [(name, {})])
        return session
    if provider == "cpu":
        return InferenceSession(model)
    name = "OpenVINOExecutionProvider" if provider == "openvino" else provider
    # Cases are of one node, mostly: none is too small.
    return InferenceSession(model, providers=[(name, {"min_nodes": "1"})])


def _work(connection, name_filter: str, make_session):
    cases = {case.name: case for case in collect(name_filter)}
    while True:
        name = connection.recv()
        if name is None:
            return
        try:
            connection.send(run_case(cases[name], make_session))
        except Exception as error:  # every failure of a case is a result to report
            connection.send(f"{type(error).__name__}: {error}")


def run_all(cases: list, name_filter: str, make_session=_make_caesura, provider: str = "cpu") -> dict:
    """Case name to reason; empty reason: passed. A crash is the reason "crashed". make_session as in run_case.

    cases: all of collect(name_filter), or some. provider: of our own sessions, as --provider has it.
    """
    if provider != "cpu":
        make_session = functools.partial(_make_caesura, provider=provider)
    # Not forked: OpenMP's threads, which the caller may have started, do not live on in a fork.
    context = multiprocessing.get_context("spawn")
    results = {}
    worker = connection = None
    for case in cases:
        if worker is None or not worker.is_alive():
            connection, theirs = context.Pipe()
            worker = context.Process(target=_work, args=(theirs, name_filter, make_session), daemon=True)
            worker.start()
            theirs.close()
        try:
            connection.send(case.name)
            if connection.poll(120):  # a fresh worker makes all cases first
                results[case.name] = connection.recv()
                continue
            worker.kill()
            results[case.name] = "timed out"
        except (EOFError, BrokenPipeError, ConnectionResetError):
            worker.join()
            results[case.name] = "crashed"
        worker = None
    if worker is not None:
        connection.send(None)
        worker.join()
    return results


def write_cases(cases: list, folder: str):
    """Lays the cases out as onnx's own data/node folders: NAME/model.onnx, NAME/test_data_set_0/input_0.pb, ..."""
    from onnx import numpy_helper

    def proto(value_info, item):
        if hasattr(item, "SerializeToString"):
            return item
        kind = value_info.type.WhichOneof("value")
        if kind == "sequence_type":
            return numpy_helper.from_list(list(item), value_info.name)
        if kind == "optional_type":
            return numpy_helper.from_optional(item, value_info.name)
        return numpy_helper.from_array(np.asarray(item), value_info.name)

    for case in cases:
        root = os.path.join(folder, case.name)
        os.makedirs(root, exist_ok=True)
        with open(os.path.join(root, "model.onnx"), "wb") as file:
            file.write(case.model.SerializeToString())
        with open(os.path.join(root, "tolerance.json"), "w", encoding="utf-8") as file:
            json.dump({"rtol": case.rtol or 1e-3, "atol": case.atol or 1e-7}, file)
        for number, data_set in enumerate(case.data_sets):
            directory = os.path.join(root, f"test_data_set_{number}")
            os.makedirs(directory, exist_ok=True)
            for role, infos, items in zip(("input", "output"), (case.model.graph.input, case.model.graph.output), data_set):
                for i, (info, item) in enumerate(zip(infos, items)):
                    with open(os.path.join(directory, f"{role}_{i}.pb"), "wb") as file:
                        file.write(proto(info, item).SerializeToString())


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m caesura.conformance", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    parser.add_argument("--write", metavar="FOLDER", help="write the cases out instead of running them")
    parser.add_argument("--provider", default="cpu", help="cpu, torch, torch:DEVICE (as PyTorch names it), torch-only, "
                                                          "openvino, or the path of a plug-in")
    parser.add_argument("--json", metavar="FILE", help="also write case -> reason (empty: passed) here")
    parser.add_argument("--quiet", action="store_true", help="only the summary")
    arguments = parser.parse_args(argv)
    cases = collect(arguments.filter)
    if arguments.write:
        write_cases(cases, arguments.write)
        print(f"{len(cases)} cases written to {arguments.write}")
        return 0
    results = run_all(cases, arguments.filter, provider=arguments.provider)
    failures = {name: reason for name, reason in results.items() if reason}
    if not arguments.quiet:
        for name, reason in sorted(failures.items()):
            print(f"{name}: {reason.splitlines()[0][:300]}")
    counts = collections.Counter(("expanded" if "_expanded" in name else "plain", not reason) for name, reason in results.items())
    crashed = sum(reason == "crashed" for reason in failures.values())
    print(f"plain: {counts['plain', True]} of {counts['plain', True] + counts['plain', False]} pass; "
          f"expanded: {counts['expanded', True]} of {counts['expanded', True] + counts['expanded', False]} pass; "
          f"{crashed} crashed; total {len(results) - len(failures)} of {len(results)}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1, sort_keys=True)
    return 1 if crashed else 0


if __name__ == "__main__":
    sys.exit(main())
