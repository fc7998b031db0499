# SPDX-License-Identifier: Apache-2.0
"""Imports what takes seconds, and takes its objects out of the garbage collection, which would walk through all of them
again and again. For processes of tests, and for servers that fork such processes."""

import gc

import torch._dynamo  # noqa: F401
import torch._functorch.aot_autograd  # noqa: F401
import torch._inductor.scheduler  # noqa: F401
import torch.distributed.tensor  # noqa: F401

import caesura  # noqa: F401

gc.collect()
gc.freeze()
