# SPDX-License-Identifier: Apache-2.0
"""Captures a step and a wrapped module. The first capture of a process takes a second more than later ones, for modules that
PyTorch imports then and tables that are made once. For servers that fork processes of tests: no thread is left behind, and
no gradient is taken by PyTorch, whose engine would keep to the devices that there are now."""

import gc
import os
from unittest import mock

import torch

import caesura

threads = torch.get_num_threads()
torch.set_num_threads(1)
net, x = torch.nn.Linear(2, 2), torch.ones(3, 2)
with mock.patch.dict(os.environ, CAESURA_PROGRAM_CACHE="off"):
    with torch.no_grad():
        caesura.wrap(net)(x)
    caesura.compile_step(net, torch.nn.functional.mse_loss, torch.optim.SGD(net.parameters(), lr=0.1))(x, x)
torch.set_num_threads(threads)
caesura.reports.reset()
torch._dynamo.reset()
torch.manual_seed(torch.initial_seed())
del net, x
gc.collect()
gc.freeze()
