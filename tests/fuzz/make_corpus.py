#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the seeds of the fuzz targets again: corpus/TARGET.zip.

usage: make_corpus.py NODE_TESTS      (the folder build/node_tests of a build)
"""
import io
import json
import pathlib
import random
import struct
import sys
import zipfile
import zlib

import numpy as np
import onnx
from onnx import TensorProto, parser

HERE = pathlib.Path(__file__).parent
MAX_BYTES = 4000  # of one model


def write(target, seeds):
    """Writes an archive without times and with sorted names, so that equal seeds give equal bytes."""
    with zipfile.ZipFile(HERE / "corpus" / f"{target}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(seeds.items()):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    print(f"{target}: {len(seeds)} seeds, {sum(map(len, seeds.values()))} bytes")


def with_integers(folder):
    """The node test's model, its inputs of integers (shapes, axes, indices) as initializers."""
    model = onnx.load(folder / "model.onnx")
    for i, info in reversed(list(enumerate(model.graph.input))):
        data = folder / "test_data_set_0" / f"input_{i}.pb"
        kind = info.type.tensor_type.elem_type
        if kind not in (TensorProto.INT64, TensorProto.INT32) or not data.exists():
            continue
        tensor = TensorProto.FromString(data.read_bytes())
        tensor.name = info.name
        model.graph.initializer.append(tensor)
        del model.graph.input[i]
    return model.SerializeToString()


def node_models(folder):
    """Returns the smallest model with each op."""
    smallest = {}
    for path in sorted(folder.iterdir()):
        data = with_integers(path)
        for node in onnx.ModelProto.FromString(data).graph.node:
            key = (node.domain, node.op_type)
            if len(data) < MAX_BYTES and len(data) < len(smallest.get(key, bytes(MAX_BYTES))):
                smallest[key] = data
    return {f"{op}": data for (_, op), data in smallest.items()}


def several_ops():
    """Models of several nodes: patterns that passes fuse, nested bodies, functions, weights."""
    texts = {
        "mlp": """<ir_version: 10, opset_import: ["": 21]> g (float[N, 4] x) => (float[N, 3] y)
            <float[4, 8] w = {}, float[8] b = {}, float[8, 3] v = {}>
            { a = MatMul (x, w) c = Add (a, b) d = Relu (c) e = MatMul (d, v) y = Softmax (e) }""",
        "norm": """<ir_version: 10, opset_import: ["": 21]> g (float[2, 3, 8] x) => (float[2, 3, 8] y)
            <float[8] s = {}, float t = {2}, float e = {0.001}>
            { p = Pow (x, t) m = ReduceMean <keepdims = 1> (p) a = Add (m, e) r = Sqrt (a) d = Div (x, r) y = Mul (d, s) }""",
        "attention": """<ir_version: 10, opset_import: ["": 21]>
            g (float[1, 2, 4, 8] q, float[1, 2, 4, 8] k) => (float[1, 2, 4, 8] y) <float c = {0.35}>
            { t = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul (q, t) z = Mul (s, c) p = Softmax (z) y = MatMul (p, k) }""",
        "conv": """<ir_version: 10, opset_import: ["": 21]> g (float[1, 2, 6, 6] x) => (float[1, 12] y)
            <float[3, 2, 3, 3] w = {}, int64[2] s = {1, -1}>
            { c = Conv <pads = [1, 1, 1, 1]> (x, w) r = Relu (c) p = MaxPool <kernel_shape = [3, 3], strides = [3, 3]> (r)
              y = Reshape (p, s) }""",
        "loop": """<ir_version: 10, opset_import: ["": 21]> g (float[2] x, bool c) => (float[2] y, float[K, 2] all)
            <int64 n = {3}>
            { y, all = Loop (n, c, x) <body = b (int64 i, bool d, float[2] s) => (bool d2, float[2] s2, float[2] o)
              { d2 = Identity (d) s2 = Add (s, x) o = If (d) <then_branch = t () => (float[2] u) { u = Neg (s) },
                else_branch = e () => (float[2] v) { v = Relu (s2) }> }> }""",
        "scan": """<ir_version: 10, opset_import: ["": 21]> g (float[2] x, float[3, 2] z) => (float[2] y, float[3, 2] all)
            { y, all = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] i) => (float[2] s2, float[2] o)
              { s2 = Add (s, i) o = Mul (s2, i) }> (x, z) }""",
        "function": """<ir_version: 10, opset_import: ["": 21, "f": 1]> g (float[2] x) => (float[2] y)
            { a = f.Twice <by = 2.0> (x) y = f.Twice <by = 3.0> (a) }
            <domain: "f", opset_import: ["": 21]> Twice <by> (v) => (r)
            { k = Constant <value_float: float = @by> () l = CastLike (k, v) r = Mul (v, l) }""",
        "shapes": """<ir_version: 10, opset_import: ["": 21]> g (float[N, M] x) => (y)
            <int64[1] i = {0}, int64[1] m = {-1}>
            { s = Shape (x) n = Gather (s, i) c = Concat <axis = 0> (n, m) r = Reshape (x, c) z = ConstantOfShape (s)
              e = Expand (r, s) y = Add (e, z) }""",
        "old": """<ir_version: 3, opset_import: ["": 7]> g (float[1, 2, 4, 4] x) => (float[1, 2, 8, 8] y)
            { u = Upsample <scales = [1.0, 1.0, 2.0, 2.0], mode = "nearest"> (x) y = Dropout <ratio = 0.5> (u) }""",
        "sequence": """<ir_version: 10, opset_import: ["": 21]> g (float[4, 2] x) => (float[4, 2] y)
            { s = SplitToSequence <axis = 0> (x) y = ConcatFromSequence <axis = 0, new_axis = 0> (s) }""",
        "maps": """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 1]>
            g (map(int64, float) x) => (seq(map(int64, float)) z, float[1, 2] d)
            { c = ai.onnx.ml.CastMap <map_form = "SPARSE", max_map = 4> (x)
              z = ai.onnx.ml.ZipMap <classlabels_int64s = [3, 1, 2, 0]> (c)
              d = ai.onnx.ml.DictVectorizer <int64_vocabulary = [3, 1]> (x) }""",
        "quantized_lstm": """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
            g (float[3, 1, 2] x) => (float[3, 1, 1, 1] y)
            <int8[1, 2, 4] w = {1, -2, 3, -4, 5, -6, 7, -8}, int8[1, 1, 4] r = {9, -8, 7, -6}, float[1] s = {0.1}, int8[1] z = {2}>
            { y = com.microsoft.DynamicQuantizeLSTM <hidden_size = 1> (x, w, r, , , , , , s, z, s, z) }""",
        "nbits": f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g (float[3, 20] x) => (float[3, 2] y)
            <uint8[2, 2, 8] b = {{{listed(32)}}}, float[2, 2] s = {{}}, uint8[2, 1] z = {{52, 169}}>
            {{ y = com.microsoft.MatMulNBits <K = 20, N = 2, bits = 4, block_size = 16> (x, b, s, z) }}""",
        "stored": f"""<ir_version: 10, opset_import: ["": 21]> g (float[3, 20] x) => (float[3, 2] y)
            <uint8[20, 2] q = {{{listed(40)}}}, float[2, 2] s = {{}}>
            {{ w = DequantizeLinear <axis = 0, block_size = 16> (q, s) y = MatMul (x, w) }}""",
    }
    models = {}
    for name, text in texts.items():
        random.seed(name)
        model = parser.parse_model(fill(text))
        models[name] = model.SerializeToString()
    return models


def listed(count):
    """Returns `count` numbers of a byte each."""
    return ", ".join(str(i * 37 % 256) for i in range(count))


def fill(text):
    """Fills the empty initializers."""
    out = []
    for part in text.split("= {}"):
        out.append(part)
        dims = part[part.rfind("[") + 1 : part.rfind("]")]
        count = int(np.prod([int(d) for d in dims.split(",")])) if dims.replace(",", "").replace(" ", "").isdigit() else 0
        out.append("= {" + ", ".join(f"{random.uniform(-1, 1):.2f}" for _ in range(count)) + "}")
    return "".join(out[:-1])


# Findings that only a sanitizer sees: products and norms of integers beyond their type.
BEYOND_INTEGERS = {
    "beyond_Gemm": "47656d6d006e4d6900c950674d61780000000600002bffff27ff0a6c3b133b133b013d000052656475634c654cffffc2699000002bffff7eff6c3b"
                   "133b133b013d00",
    "beyond_ReduceL2": "5265647563654c3200436f69bc2709496b7eff61777777777777777777f7777777777777777777775b77777777003f77777701009f7727"
                       "4c696b65007777777777f77777777777777777777777777777003f77777777506f770001009f9a9a9a9a9a9a77",
}


def kernel_inputs():
    """Returns each op's name with decisions: all moderate, and two mixtures; and some findings."""
    seeds = {name: bytes.fromhex(text) for name, text in BEYOND_INTEGERS.items()}
    for schema in onnx.defs.get_all_schemas():
        draw = random.Random(schema.name)
        for i in range(3):
            decisions = bytes(draw.randrange(256) if draw.random() < 0.2 * i else 0 for _ in range(80 * i))
            seeds[f"{schema.name}_{i}"] = schema.name.encode() + b"\0" + decisions
    return seeds


def safetensors(tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, (kind, array) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor_files():
    every = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "BF16": np.uint16, "I8": np.int8, "U8": np.uint8,
             "I16": np.int16, "U16": np.uint16, "I32": np.int32, "U32": np.uint32, "I64": np.int64, "U64": np.uint64,
             "BOOL": np.bool_, "C64": np.complex64, "F8_E5M2": np.uint8, "F8_E4M3": np.uint8}
    return {
        "empty": safetensors({}, {}),
        "one": safetensors({"a": ("F32", np.arange(6, dtype=np.float32).reshape(2, 3))}, {"format": "pt"}),
        "all": safetensors({kind: (kind, np.ones(2, dtype)) for kind, dtype in every.items()}, {"key": "text"}),
        "scalar": safetensors({"s": ("I64", np.array(7)), "none": ("F32", np.zeros((0, 3), np.float32))}, {}),
    }


def checkpoints():
    names = {"F32": "float32", "F64": "float64", "I64": "int64"}

    def one(tensors, properties):
        metadata = {"caesura.checkpoint": "1"} | {f"property/{key}": text for key, text in properties.items()}
        crc = 0
        for key, text in sorted(metadata.items()):
            crc = zlib.crc32(f"{key}\0{text}\0".encode(), crc)
        for name, (kind, array) in sorted(tensors.items()):
            dims = "[" + ", ".join(map(str, array.shape)) + "]"
            crc = zlib.crc32(f"{name}\0{names[kind]}{dims}\0".encode() + array.tobytes(), crc)
        return safetensors(tensors, metadata | {"caesura.crc32": str(crc)})

    weight = ("F32", np.ones((2, 3), np.float32))
    return {
        "empty": one({}, {}),
        "sgd": one({"parameter/w": weight}, {"step": "int:7", "rate": "double:0.1", "name": "string:x"}),
        "adam": one({"parameter/w": weight, "optimizer/w.m": weight, "optimizer/w.v": weight,
                     "optimizer/step": ("I64", np.array(3))}, {"step": "int:3"}),
    }


def adapters():
    """Configuration, a zero byte, and matrices, as PEFT has them."""
    def folder(kind, matrices, **options):
        config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_dora": False, "rank_pattern": {}, "bias": "none"} | options
        tensors = {f"base_model.model.{name}.weight": (kind, value) for name, value in matrices.items()}
        return json.dumps(config).encode() + b"\0" + safetensors(tensors, {"format": "pt"})

    ramp = np.arange(6, dtype=np.float32)
    whole = {"net.fc.lora_A": ramp.reshape(2, 3), "net.fc.lora_B": ramp[:2].reshape(1, 2)}
    halves = {name: value.astype(np.float16) for name, value in whole.items()}
    return {"whole": folder("F32", whole), "halves": folder("F16", halves),
            "two_layers": folder("F32", whole | {name.replace("fc", "out"): value for name, value in whole.items()}),
            "no_b": folder("F32", {"net.fc.lora_A": ramp.reshape(2, 3)}), "dora": folder("F32", whole, use_dora=True),
            "rank": folder("F32", whole, r=3)}


def arrays():
    seeds = {}
    kinds = ["<f4", ">f8", "<f2", "|i1", "|u1", "<i2", ">i4", "<i8", "<u8", "|b1", "<c8", "<U3"]
    for kind in kinds:
        out = io.BytesIO()
        np.save(out, np.ones((2, 3)).astype(kind))
        seeds["npy" + kind[1:]] = out.getvalue()
    out = io.BytesIO()
    np.save(out, np.asfortranarray(np.arange(6).reshape(2, 3)))
    seeds["fortran"] = out.getvalue()
    for name, save in (("stored", np.savez), ("deflated", np.savez_compressed)):
        out = io.BytesIO()
        save(out, a=np.arange(12, dtype=np.float32), b=np.zeros((0, 2)), c=np.array("text"))
        seeds[name] = out.getvalue()
    return seeds


def exchanged_tensors():
    """The decisions come in the order in which fuzz_dlpack.cc reads them."""
    seeds = {}
    for code, bits in ((2, 5), (2, 4), (0, 3), (0, 6), (1, 3), (4, 4), (5, 6), (6, 3), (17, 2)):
        for strides in (0, 16):
            head = bytes([1 + 2, bits, code, 0, 0, 0, 1 + 4 + strides, 0, 0])
            seeds[f"{code}_{bits}_{strides}"] = head + bytes([1, 3, 5, 3, 0, 6])
    return seeds


def snapshot_changes():
    """A snapshot before each step of fuzz_snapshot.cc's, unchanged, and some with changes drawn at random."""
    draw = random.Random(5)
    plain = {f"step{at}": bytes([at]) for at in range(20)}
    return plain | {f"random{n}": draw.randbytes(draw.randint(4, 60)) for n in range(40)}


def main():
    (HERE / "corpus").mkdir(exist_ok=True)
    write("model", node_models(pathlib.Path(sys.argv[1])) | several_ops())
    write("kernels", kernel_inputs())
    write("safetensors", tensor_files())
    write("checkpoint", checkpoints())
    write("adapter", adapters())
    write("snapshot", snapshot_changes())
    write("npz", arrays())
    write("dlpack", exchanged_tensors())


if __name__ == "__main__":
    main()
