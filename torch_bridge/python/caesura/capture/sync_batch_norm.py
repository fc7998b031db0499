# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNorm as a step computes it, on CPUs too: PyTorch has kernels for GPUs only, and Dynamo does not trace them."""

import torch
import torch.distributed as dist

from caesura.capture.compat import BatchNorm, all_gather_tensor


def sync_batch_norm(self, x: torch.Tensor) -> torch.Tensor:
    """The forward of a SyncBatchNorm: the statistics are those of all ranks' batches, which may have other sizes. One exchange:
    each rank gives its mean, its variance and its number of elements a channel. Half types are normalized in float32."""
    group = dist.group.WORLD if self.process_group is None else self.process_group
    ranks = dist.get_world_size(group) if dist.is_initialized() else 1
    if not self.training or ranks == 1:
        return BatchNorm.forward(self, x)
    self._check_input_dim(x)
    dims = [d for d in range(x.dim()) if d != 1]
    along = [-1 if d == 1 else 1 for d in range(x.dim())]
    values, channels = x if x.dtype == torch.float64 else x.float(), x.size(1)
    mean = values.mean(dims)
    variance = (values - mean.view(along)).square().mean(dims)
    count = values.new_full((1,), x.numel() // channels)
    every = all_gather_tensor(torch.cat([mean, variance, count]), 0, group).view(ranks, -1)
    means, variances, counts = every.split([channels, channels, 1], 1)
    total = counts.sum()
    shares = counts / total
    mean = (shares * means).sum(0)
    variance = (shares * (variances + (means - mean).square())).sum(0)
    y = (values - mean.view(along)) * torch.rsqrt(variance + self.eps).view(along)
    if self.affine:
        y = y * self.weight.view(along) + self.bias.view(along)
    if self.track_running_stats:
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            share = self.num_batches_tracked.to(mean.dtype).reciprocal() if self.momentum is None else self.momentum
            self.running_mean.mul_(1 - share).add_(mean * share)
            self.running_var.mul_(1 - share).add_(variance * (total / (total - 1)) * share)
    return y.to(x.dtype)
