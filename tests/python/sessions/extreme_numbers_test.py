# SPDX-License-Identifier: Apache-2.0
"""Extreme numbers in every op give an error or a result, quickly and without harm to the process.

The ONNX node tests are run with one integer attribute, or one small input, replaced. CAESURA_LONG=1: all of them;
otherwise one for each op.
"""

import functools
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
REALS = (float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 1e-30)  # values of the replaced sizes and counts
MEMORY = 4 << 30  # memory of a worker; larger allocations fail
PATIENCE = 20  # seconds for one mutant, on a busy machine
LONG = os.environ.get("CAESURA_LONG") == "1"
KINDS = (defs.OpSchema.AttrType.INT, defs.OpSchema.AttrType.INTS)
FILLED = {defs.OpSchema.AttrType.INT: 1, defs.OpSchema.AttrType.INTS: [1, 1], defs.OpSchema.AttrType.STRING: "linear",
          defs.OpSchema.AttrType.FLOAT: 1.0}
TENSORS = {"tensor(float)": 1, "tensor(double)": 11, "tensor(int64)": 7, "tensor(int32)": 6, "tensor(bool)": 9,
           "tensor(string)": 8}


def schema_of(case, node):
    versions = {opset.domain: opset.version for opset in case.model.opset_import}
    try:
        return defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
    except defs.SchemaError:
        return None


def attributes_of(case) -> list:
    """Yields (node index, attribute name, is a list) of all integer attributes that the case's nodes may have."""
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
    for output in model.graph.output:  # the declared shapes no longer hold
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return model.SerializeToString()


def mutants_of(case):
    """Yields (label, model, feeds)."""
    names = [value.name for value in case.model.graph.input]
    feeds = dict(zip(names, map(conformance._to_numpy, case.data_sets[0][0])))
    for index, name, many in attributes_of(case):
        for value in EXTREMES:
            yield f"{name} = {value}", with_attribute(case, index, name, many, value), feeds
    for name, array in feeds.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "if" or not 0 < array.size <= 8:
            continue
        if name == "trip_count":  # a loop makes all its trips until the caller ends the run
            continue
        for value in EXTREMES if array.dtype.kind == "i" else REALS:
            if array.dtype.kind == "f" or np.iinfo(array.dtype).min <= value <= np.iinfo(array.dtype).max:
                for last_only in (False, True):
                    changed = array.copy()
                    changed.reshape(-1)[-1 if last_only else slice(None)] = value
                    yield f"input {name} = {value}", case.model.SerializeToString(), feeds | {name: changed}


def model_of(schema, rank: int, name: str, value) -> bytes:
    """A node with the attribute (for "", with integer constants of the value), on inputs of dims 2, or None."""
    inputs, constants, arguments = [], [], {}
    for attribute, row in schema.attributes.items():
        if attribute == name:
            arguments[attribute] = [value, value] if row.type == KINDS[1] else value
        elif row.required and row.type not in FILLED:
            return None
        elif row.required:
            arguments[attribute] = FILLED[row.type]
    for index, formal in enumerate(schema.inputs):
        kind = next((text for text in sorted(formal.types) if text in TENSORS), None)
        if kind is None:
            return None
        if not name and index > 0 and "tensor(int64)" in formal.types:
            constants.append(onnx.numpy_helper.from_array(np.array([value, 1], np.int64), f"i{index}"))
        else:
            inputs.append(helper.make_tensor_value_info(f"i{index}", TENSORS[kind], [2] * rank))
    outputs = [f"o{index}" for index in range(len(schema.outputs))]
    names = [f"i{index}" for index in range(len(schema.inputs))]
    node = helper.make_node(schema.name, names, outputs, domain=schema.domain, **arguments)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info(o, 1, None) for o in outputs], constants)
    opset = helper.make_opsetid(schema.domain, schema.since_version)
    others = [helper.make_opsetid("", 17)] if schema.domain else []
    return helper.make_model(graph, opset_imports=[opset] + others, ir_version=8).SerializeToString()


def label_of(schema) -> str:
    return f"{schema.domain}::{schema.name} of version {schema.since_version}"


def schemas() -> list:
    """All versions of all ops in the long tests; otherwise the newest ones."""
    return defs.get_all_schemas_with_history() if LONG else defs.get_all_schemas()


def inference_mutants(schema):
    for rank in range(5) if LONG else (2, 4):
        for value in EXTREMES:
            for name, row in sorted(schema.attributes.items()) + [("", None)]:
                if row is None or row.type in KINDS:
                    model = model_of(schema, rank, name, value)
                    if model is not None:
                        yield f"rank {rank}, {name or 'constants'} = {value}", model, None


def work(connection):
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    from caesura import onnxruntime

    mutants = {case.name: functools.partial(mutants_of, case) for case in conformance.collect()}
    mutants |= {label_of(schema): functools.partial(inference_mutants, schema) for schema in schemas()}
    connection.send("ready")
    while (name := connection.recv()) is not None:
        for label, model, feeds in mutants[name]():
            connection.send(label)
            try:
                session = onnxruntime.InferenceSession(model)
                if feeds is not None:
                    session.run(None, feeds)
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
        """Returns the number of mutants that ran, and the failure as a text ("" for none)."""
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
    """Returns the names of all cases, or of the smallest one for each op."""
    if LONG:
        return [case.name for case in cases]
    kept = {}
    for case in sorted(cases, key=lambda case: (len(case.model.graph.node), case.model.ByteSize())):
        node = case.model.graph.node[-1]
        kept.setdefault((node.domain, node.op_type), case)
    return [case.name for case in kept.values()]


def sweep(names: list) -> tuple:
    worker, total, harms = None, 0, []
    for name in names:
        worker = worker or Worker()
        count, harm = worker.harm(name)
        total += count
        if harm:
            harms.append(harm)
            worker = None
    if worker is not None:
        worker.connection.send(None)
    return total, harms


@pytest.mark.parametrize("of, least", [("runs", 2000), ("inference", 2000)])
def test_extreme_numbers_harm_nobody(of, least):
    names = chosen(conformance.collect()) if of == "runs" else [label_of(schema) for schema in schemas()]
    began = time.time()
    total, harms = sweep(names)
    print(f"{total} mutants of {len(names)} cases in {time.time() - began:.0f} s")
    assert total > least
    assert not harms, "\n".join(harms)
