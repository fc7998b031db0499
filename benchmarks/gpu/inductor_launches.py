# SPDX-License-Identifier: Apache-2.0
"""Counts the GPU launches of a GPT's forward and backward that PyTorch's Inductor plans, on a machine without a GPU.

    python benchmarks/gpu/inductor_launches.py          # with a CUDA build of PyTorch, which brings Triton

Each further layer is told: kernels that Inductor generates, products, and calls of attention. Caesura's own counts are
asserted by tests/python/cuda/cuda_launches_test.py. The graph is captured on fake tensors, moved to a fake H100 and
scheduled; no code is compiled. Attention is one opaque call, as both systems leave it to a library. Autocast's casts of the
weights are counted, the optimizer is not.
"""

import argparse
import collections
import copy

import torch
from torch import nn
from torch._dynamo.device_interface import CudaInterface
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.compile_fx import view_to_reshape
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.post_grad import post_grad_passes
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

BATCH, TIME, WIDTH, HEADS = 8, 1024, 768, 12


class H100:
    """The device properties that Inductor asks for."""

    name, gcnArchName, major, minor, warp_size, multi_processor_count = "H100", "", 9, 0, 32, 132
    total_memory, L2_cache_size, shared_memory_per_block_optin = 80 << 30, 50 << 20, 232448
    regs_per_multiprocessor, max_threads_per_multi_processor, max_threads_per_block = 65536, 2048, 1024


def pretend_to_have_a_gpu():
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda *_: H100
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_rng_state = torch.cuda.random.get_rng_state = lambda *_: torch.zeros(16, dtype=torch.uint8)
    torch.cuda.set_rng_state = torch.cuda.random.set_rng_state = lambda *_: None
    CudaInterface.get_device_properties = CudaInterface.Worker.get_device_properties = staticmethod(lambda *_: H100)
    CudaInterface.is_available = staticmethod(lambda: True)
    CudaInterface.current_device = staticmethod(lambda: 0)
    CudaInterface.get_compute_capability = staticmethod(lambda *_: 90)


LIBRARY = torch.library.Library("launches", "DEF")
LIBRARY.define("attention(Tensor q, Tensor k, Tensor v) -> (Tensor, Tensor)")
LIBRARY.define("attention_grad(Tensor g, Tensor q, Tensor k, Tensor v, Tensor y, Tensor lse) -> (Tensor, Tensor, Tensor)")
LIBRARY.impl("attention", lambda q, k, v: (torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)), "Meta")
LIBRARY.impl("attention_grad", lambda g, q, k, v, y, lse: tuple(map(torch.empty_like, (q, k, v))), "Meta")


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        y, lse = torch.ops.launches.attention(q, k, v)
        ctx.save_for_backward(q, k, v, y, lse)
        return y

    @staticmethod
    def backward(ctx, g):
        return torch.ops.launches.attention_grad(g, *ctx.saved_tensors)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_a, self.norm_b = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (part.view(BATCH, TIME, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm_a(x)).split(WIDTH, -1))
        x = x + self.proj(Attention.apply(q, k, v).transpose(1, 2).reshape(BATCH, TIME, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.norm_b(x)), approximate="tanh"))


def on_the_gpu(graph, inputs):
    """The graph, captured on the CPU, as one on the GPU, and such inputs."""
    graph = copy.deepcopy(graph)
    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cuda", 0)}
    graph.recompile()
    with torch.no_grad():
        moved = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda") for x in inputs]
        return make_fx(graph)(*moved), moved


def launches_of(graph, inputs, fake_mode, is_backward):
    """Counts by kind what Inductor would launch for the graph."""
    graph, inputs = on_the_gpu(graph, inputs)
    view_to_reshape(graph)
    with V.set_fake_mode(fake_mode):
        post_grad_passes(graph, is_inference=False)
    lowering = GraphLowering(graph, example_inputs=inputs, is_inference=False, is_backward=is_backward)
    with V.set_debug_handler(DebugContext()), V.set_graph_handler(lowering), V.set_fake_mode(fake_mode):
        lowering.run(*inputs)
        lowering.init_wrapper_code()
        lowering._update_scheduler()
        counts = collections.Counter()
        for node in lowering.scheduler.nodes:
            name = str(getattr(node.node, "python_kernel_name", None))
            if not node.is_extern() and type(node).__name__ != "NopKernelSchedulerNode":
                counts["kernels"] += 1
            elif "mm" in name:
                counts["products"] += 1
            elif "attention" in name:
                counts["attention"] += 1
    return counts


def step(layers, bf16):
    """The launches of forward and backward of a GPT without embedding and loss."""
    with torch.device("meta"):
        model = nn.Sequential(*(Layer() for _ in range(layers)), nn.LayerNorm(WIDTH))
    counts = collections.Counter()
    with FakeTensorMode() as fake_mode:
        parameters = {name: torch.empty(p.shape).requires_grad_() for name, p in model.named_parameters()}

        def loss(parameters, x):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                return torch.func.functional_call(model, parameters, (x,)).float().sum()

        def compiler(is_backward):
            def count(graph, inputs):
                counts.update(launches_of(graph, inputs, fake_mode, is_backward))
                return make_boxed_func(graph.forward)
            return count

        captured = aot_function(loss, compiler(False), compiler(True), min_cut_rematerialization_partition, select_decomp_table())
        captured(parameters, torch.empty(BATCH, TIME, WIDTH)).backward()
    return counts


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    pretend_to_have_a_gpu()
    print(f"PyTorch {torch.__version__}, GPT of width {WIDTH}, {BATCH} x {TIME} tokens: launches of each further layer")
    for name, bf16 in ("float32", False), ("bfloat16 (autocast)", True):
        one, two = step(1, bf16), step(2, bf16)
        print(f"{name}: " + ", ".join(f"{two[kind] - one[kind]} {kind}" for kind in ("kernels", "products", "attention")))


if __name__ == "__main__":
    main()
