# SPDX-License-Identifier: Apache-2.0
"""Integers that no exporter writes, in every op: each ends in an error or runs, quickly, and harms nobody.

The ONNX node tests are run with one integer attribute, or one integer input, replaced. CAESURA_LONG=1: all of them;
otherwise one for each op.
"""

import multiprocessing
import os
import resource
import time

import numpy as np
import onnx
import pytest
from onnx import defs, helper

from caesura import conformance

EXTREMES = (-(1 << 63), -(1 << 31) - 1, -1, 0, (1 << 31) - 1, 1 << 31, 1 << 62, (1 << 63) - 1)
MEMORY = 4 << 30  # of a worker; what wants more is refused
PATIENCE = 20  # seconds for one mutant, on a machine that does other things too
LONG = os.environ.get("CAESURA_LONG") == "1"
KINDS = (defs.OpSchema.AttrType.INT, defs.OpSchema.AttrType.INTS)


def schema_of(case, node):
    versions = {opset.domain: opset.version for opset in case.model.opset_import}
    try:
        return defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
    except defs.SchemaError:
        return None


def attributes_of(case) -> list:
    """(node index, attribute name, whether it is a list) of all integer attributes that the case's nodes may have."""
    out = []
    for index, node in enumerate(case.model.graph.node):
        schema = schema_of(case, node)
        for name, attribute in sorted(schema.attributes.items()) if schema else ():
            if attribute.type in KINDS:
                out.append((index, name, attribute.type == KINDS[1]))
    return out


def with_attribute(case, index, name, many, value) -> bytes:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    node = model.graph.node[index]
    before = next((a for a in node.attribute if a.name == name), None)
    length = len(before.ints) if before is not None else 2
    if before is not None:
        node.attribute.remove(before)
    node.attribute.append(helper.make_attribute(name, [value] * max(1, length) if many else value))
    for output in model.graph.output:  # what is declared no longer holds
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return model.SerializeToString()


def mutants_of(case):
    """(label, model, feeds)"""
    names = [value.name for value in case.model.graph.input]
    feeds = dict(zip(names, map(conformance._to_numpy, case.data_sets[0][0])))
    for index, name, many in attributes_of(case):
        for value in EXTREMES:
            yield f"{name} = {value}", with_attribute(case, index, name, many, value), feeds
    for name, array in feeds.items():
        if not isinstance(array, np.ndarray) or array.dtype not in (np.int64, np.int32) or not 0 < array.size <= 8:
            continue
        for value in EXTREMES:
            if np.iinfo(array.dtype).min <= value <= np.iinfo(array.dtype).max:
                for last_only in (False, True):
                    changed = array.copy()
                    changed.reshape(-1)[-1 if last_only else slice(None)] = value
                    yield f"input {name} = {value}", case.model.SerializeToString(), feeds | {name: changed}


def work(connection):
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    import caesura

    cases = {case.name: case for case in conformance.collect()}
    connection.send("ready")
    while (name := connection.recv()) is not None:
        for label, model, feeds in mutants_of(cases[name]):
            connection.send(label)
            try:
                caesura.InferenceSession(model).run(None, feeds)
            except (ValueError, NotImplementedError, MemoryError, RuntimeError, KeyError):
                pass
        connection.send(None)


class Worker:
    def __init__(self):
        self.connection, theirs = multiprocessing.get_context("spawn").Pipe()
        self.process = multiprocessing.get_context("spawn").Process(target=work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.connection.recv()

    def harm(self, name: str) -> tuple:
        """How many mutants of the case were run, and what went wrong ("" where nothing did)."""
        self.connection.send(name)
        label, count = "", 0
        while True:
            try:
                if not self.connection.poll(PATIENCE):
                    self.process.kill()
                    return count, f"{name}: {label}: not done after {PATIENCE} s"
                message = self.connection.recv()
            except (EOFError, ConnectionResetError):
                self.process.join()
                return count, f"{name}: {label}: ended by signal {-self.process.exitcode}"
            if message is None:
                return count, ""
            label, count = message, count + 1


def chosen(cases: list) -> list:
    if LONG:
        return cases
    kept = {}
    for case in sorted(cases, key=lambda case: (len(case.model.graph.node), case.model.ByteSize())):
        node = case.model.graph.node[-1]
        kept.setdefault((node.domain, node.op_type), case)
    return list(kept.values())


def sweep(cases: list) -> tuple:
    worker, total, harms = None, 0, []
    for case in cases:
        worker = worker or Worker()
        count, harm = worker.harm(case.name)
        total += count
        if harm:
            harms.append(harm)
            worker = None
    worker.connection.send(None)
    return total, harms


def test_extreme_integers_harm_nobody():
    cases = chosen(conformance.collect())
    began = time.time()
    total, harms = sweep(cases)
    print(f"{total} mutants of {len(cases)} cases in {time.time() - began:.0f} s")
    assert total > 2000
    assert not harms, "\n".join(harms)
