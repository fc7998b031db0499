# SPDX-License-Identifier: Apache-2.0
"""The backend of torch.compile: `torch.compile(module, backend="caesura")`."""

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import unset_fake_temporarily

from caesura.aten import TABLE
from caesura.graph_program import GraphProgram


def decompositions(kept=TABLE):
    """PyTorch's own decompositions of the calls that are not `kept` as they are."""
    return {target: function for target, function in core_aten_decompositions().items() if target not in kept}


def _compile(module: torch.fx.GraphModule, example_inputs):
    with unset_fake_temporarily():  # the graph's constants are real
        program = GraphProgram(module)

    def run(arguments):
        return program.run(arguments)

    run._boxed_call = True  # the arguments come as a list that is ours to empty
    return run


def backend(module: torch.fx.GraphModule, example_inputs, **options):
    """Compiles a graph of dynamo's: forward and backward as programs of caesura's, cut where PyTorch's autograd cuts."""
    if options:
        raise ValueError(f"backend 'caesura' has no options {sorted(options)}")
    compile_graph = aot_autograd(fw_compiler=_compile, bw_compiler=_compile, inference_compiler=_compile,
                                 decompositions=decompositions(), partition_fn=min_cut_rematerialization_partition)
    return compile_graph(module, example_inputs)
