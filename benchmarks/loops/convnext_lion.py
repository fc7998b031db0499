# SPDX-License-Identifier: Apache-2.0
"""resnet_lamb.py's loop for timm's ConvNeXt with timm's Lion."""

import resnet_lamb
from timm.optim import Lion


def run(loop):
    resnet_lamb.train(loop, "convnext_atto", Lion, 1e-4, 64)
