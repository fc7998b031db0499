# SPDX-License-Identifier: Apache-2.0
"""Convolutions, forward and backward."""

from caesura.lowering.onnx_builder import DOMAIN, Tensor
from caesura.lowering.registry import Refused, aten, register
from caesura.rewrites.fx_meta import is_read, is_static, result


def _attributes(weight, stride, padding, dilation, transposed, output_padding, groups):
    rank = weight.rank - 2
    if not is_static(weight.shape):
        raise Refused("weights of sizes that are not numbers")
    spread = lambda values: list(values) * rank if len(values) == 1 else list(values)  # noqa: E731
    made = {"kernel_shape": list(weight.shape[2:]), "strides": spread(stride), "pads": spread(padding) * 2,
            "dilations": spread(dilation), "group": groups}
    if transposed:
        made["output_padding"] = spread(output_padding)
    return made


@register(aten.convolution.default)
def convolution(w, node, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    attributes = _attributes(weight, stride, padding, dilation, transposed, output_padding, groups)
    inputs = [x, weight] + ([bias] if bias is not None else [])
    return w.make("ConvTranspose" if transposed else "Conv", inputs, *result(node), **attributes)


@register(aten.convolution_backward.default)
def convolution_backward(w, node, dy, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
                         wanted):
    attributes = _attributes(weight, stride, padding, dilation, transposed, output_padding, groups)
    outputs = [w.fresh("conv_grad") if want and is_read(node, i) else "" for i, want in enumerate(wanted)]
    w.node("ConvTransposeGrad" if transposed else "ConvGrad", [dy, x, weight], outputs, domain=DOMAIN, **attributes)
    return tuple(Tensor(name, *result(node, i)) if name else None for i, name in enumerate(outputs))
