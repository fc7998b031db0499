# SPDX-License-Identifier: Apache-2.0
"""caesura.quantized: layers whose weights stay packed, in eager, under wrap and compile_step; GGUF files, whole and damaged."""

import copy
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402
import caesura.quantized  # noqa: E402

BITS = [4, 8]


def parts(rows, blocks, bits, zeros=True):
    torch.manual_seed(rows)
    q = torch.randint(0, 256, (rows, blocks, 4 * bits), dtype=torch.uint8)
    return q, torch.rand(rows, blocks) / 2**bits, torch.rand(rows, blocks) * 2**bits if zeros else None


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("zeros", [True, False])
def test_a_linear_layer_computes_with_its_dequantized_weight(bits, zeros):
    layer = caesura.quantized.Linear(*parts(5, 2, bits, zeros), bias=torch.arange(5.0), in_features=60)
    w = layer.dequantize()
    q, scales, zero_points = parts(5, 2, bits, zeros)
    first = (q[0, 0, 0] & 15 if bits == 4 else q[0, 0, 0]).float()
    assert w.shape == (5, 60) and layer.in_features == 60
    assert w[0, 0] == (first - (zero_points[0, 0] if zeros else 2 ** (bits - 1))) * scales[0, 0]
    x = torch.randn(2, 3, 60, requires_grad=True)
    y = layer(x)
    assert torch.allclose(y, torch.nn.functional.linear(x, w, layer.bias), atol=1e-5)
    dy = torch.randn_like(y)
    assert torch.allclose(torch.autograd.grad(y, x, dy)[0], dy @ w, atol=1e-5)
    assert layer(x.bfloat16()).dtype == torch.float32  # with the bias


def test_an_embedding_unpacks_its_rows():
    table = caesura.quantized.Embedding(*parts(7, 1, 8, zeros=False))
    ids = torch.tensor([[3, 0], [6, 3]])
    assert torch.equal(table(ids), table.dequantize()[ids])


class Adapted(torch.nn.Module):
    """A packed layer and a head, between float layers that train."""

    def __init__(self, bits):
        super().__init__()
        self.embed = caesura.quantized.Embedding(*parts(9, 1, 8, zeros=False))
        self.down, self.fc = torch.nn.Linear(32, 32), caesura.quantized.Linear(*parts(6, 1, bits))

    def forward(self, ids):
        return self.fc(torch.tanh(self.down(self.embed(ids))))


@pytest.mark.parametrize("bits", BITS)
def test_steps_run_in_the_kernels_and_are_eagers(bits):
    torch.manual_seed(0)
    ids, labels = torch.randint(0, 9, (4, 5)), torch.randint(0, 6, (20,))

    def loss_of(scores, labels):
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels)

    def trained(route):
        torch.manual_seed(1)
        model = Adapted(bits)
        optimizer = torch.optim.SGD(model.down.parameters(), lr=0.5)
        if route == "step":
            step = caesura.compile_step(model, loss_of, optimizer)
            return [step(ids, labels).item() for _ in range(3)], model.down.weight
        call, losses = caesura.wrap(model) if route == "wrap" else model, []
        for _ in range(3):
            loss = loss_of(call(ids), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, model.down.weight

    expected, weight = trained("eager")
    with caesura.strict():
        for route in ("step", "wrap"):
            losses, found = trained(route)
            assert losses == pytest.approx(expected, rel=1e-5), route
            assert torch.allclose(found, weight, atol=1e-5)


def test_parts_that_do_not_fit_are_refused():
    q, scales, zeros = parts(5, 2, 4)
    with pytest.raises(ValueError, match=r"qweight: expected uint8\[5, 2, 16 or 32\], got torch.uint8\[5, 2, 8\]"):
        caesura.quantized.Linear(q[..., :8], scales)
    with pytest.raises(ValueError, match=r"zero_points: expected \[5, 2\]"):
        caesura.quantized.Linear(q, scales, zeros[:, :1])
    with pytest.raises(RuntimeError):
        caesura.quantized.Linear(q, scales).weight.data += torch.zeros(5, 64)


# --- GGUF ---

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 32}
TENSORS = {"token_embd": (32, 64), "output_norm": (64,), "blk.0.attn_norm": (64,), "blk.0.ffn_norm": (64,), "blk.0.attn_q": (64, 64),
           "blk.0.attn_k": (32, 64), "blk.0.attn_v": (32, 64), "blk.0.attn_output": (64, 64), "blk.0.ffn_gate": (96, 64),
           "blk.0.ffn_up": (96, 64), "blk.0.ffn_down": (64, 96)}
KINDS = ["Q4_0", "Q4_1", "Q8_0"]


def write_gguf(gguf, path, kinds=KINDS, leave_out=()):
    """A small llama, whose matrices are of these types in turns; returns what it holds as floats."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    rng, held = np.random.default_rng(0), {}
    for i, (name, shape) in enumerate(TENSORS.items()):
        values = rng.standard_normal(shape).astype(np.float32)
        if i == 4:
            values[0, :32] = 0.25  # a block of one value
        held[name] = values
        if len(shape) == 2:
            kind = gguf.GGMLQuantizationType[kinds[i % len(kinds)]]
            data = gguf.quants.quantize(values, kind)
            held[name] = gguf.quants.dequantize(data, kind)
            if name not in leave_out:
                writer.add_tensor(name + ".weight", data, raw_dtype=kind)
        elif name not in leave_out:
            writer.add_tensor(name + ".weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def llama():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, tie_word_embeddings=True))


def test_a_gguf_files_weights_stay_packed(tmp_path):
    gguf = pytest.importorskip("gguf")
    held = write_gguf(gguf, tmp_path / "m.gguf")
    model = llama()
    assert caesura.quantized.load_gguf(model, tmp_path / "m.gguf") == []
    layer = model.model.layers[0]
    for name, module in (("attn_v", layer.self_attn.v_proj), ("attn_output", layer.self_attn.o_proj), ("ffn_gate", layer.mlp.gate_proj),
                         ("ffn_up", layer.mlp.up_proj), ("ffn_down", layer.mlp.down_proj)):
        assert np.allclose(module.dequantize(), held["blk.0." + name], atol=1e-6)
    for name, module, heads in (("attn_q", layer.self_attn.q_proj, 4), ("attn_k", layer.self_attn.k_proj, 2)):
        permuted = held["blk.0." + name].reshape(heads, 8, 2, 64).swapaxes(1, 2).reshape(-1, 64)
        assert np.allclose(module.dequantize(), permuted, atol=1e-6)
    assert np.allclose(model.model.embed_tokens.dequantize(), held["token_embd"], atol=1e-6)
    assert model.lm_head.qweight.data_ptr() == model.model.embed_tokens.qweight.data_ptr()
    assert np.array_equal(model.model.norm.weight, held["output_norm"])
    assert not any(p.requires_grad for p in model.parameters())


def test_gguf_files_that_do_not_fit_name_the_tensor(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "m.gguf"
    write_gguf(gguf, path, leave_out=["blk.0.ffn_up"])
    with pytest.raises(ValueError, match="'model.layers.0.mlp.up_proj.weight' is not in the file"):
        caesura.quantized.load_gguf(llama(), path)
    write_gguf(gguf, path, kinds=["Q5_0"])
    with pytest.raises(NotImplementedError, match="tensor 'token_embd.weight' is Q5_0"):
        caesura.quantized.load_gguf(llama(), path)
    with pytest.raises(FileNotFoundError):
        caesura.quantized.load_gguf(llama(), tmp_path / "none.gguf")


def test_damaged_gguf_files_are_refused(tmp_path):
    gguf = pytest.importorskip("gguf")
    path, damaged = tmp_path / "m.gguf", tmp_path / "damaged.gguf"
    write_gguf(gguf, path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 32, len(whole) // 8):
        damaged.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="damaged.gguf"):
            caesura.quantized.load_gguf(llama(), damaged)
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.attn_v.weight")
    damaged.write_bytes(whole[:tensor.data_offset] + b"\x00\x7c" + whole[tensor.data_offset + 2:])  # infinity in a block's scale
    with pytest.raises(ValueError, match=rf"'blk.0.attn_v.weight', which begins at byte {tensor.data_offset}: the scale of row 0, block 0"):
        caesura.quantized.load_gguf(llama(), damaged)
    many = whole.index(b"llama.block_count") + len("llama.block_count") + 4  # after the type of the number
    damaged.write_bytes(whole[:many] + b"\xff\xff\xff\x7f" + whole[many + 4:])
    with pytest.raises(ValueError, match="damaged.gguf.*llama.block_count is 2147483647, and there are 11 tensors"):
        caesura.quantized.load_gguf(llama(), damaged)


def test_gguf_files_with_any_changes_are_read_or_refused(tmp_path):
    """Changed sizes, names, types and numbers end in an error that names the file, or in weights that the file has."""
    gguf = pytest.importorskip("gguf")
    path, rng, module = tmp_path / "changed.gguf", np.random.default_rng(0), llama()
    write_gguf(gguf, path)
    whole = path.read_bytes()
    header = min(tensor.data_offset for tensor in gguf.GGUFReader(path).tensors)
    refused = 0
    for _ in range(3000 if os.environ.get("CAESURA_LONG") else 100):
        changed = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(0, header if rng.random() < 0.9 else len(changed)))
            number = int(rng.choice(np.int64([0, 1, -1, 2**31, 2**32, 2**61, 2**62, 2**63 - 1]))).to_bytes(8, "little", signed=True)
            new = [bytes([changed[at] ^ 1 << int(rng.integers(8))]), rng.bytes(1), number, b""][rng.integers(4)]
            changed[at:at + max(len(new), 1)] = new
        path.write_bytes(changed)
        try:
            caesura.quantized.load_gguf(copy.deepcopy(module), path)
        except (ValueError, NotImplementedError) as error:
            refused += 1
            assert "changed.gguf" in str(error)
    assert refused > 50
