# SPDX-License-Identifier: Apache-2.0
"""Gradients of ONNX models, as ONNX models."""

import os
from collections.abc import Sequence
from typing import Optional, Union, cast

from caesura import _core
from caesura.sessions.values import model_source
from caesura.typing import Model, Path


def _listed(names: Union[str, Sequence[str]]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def gradient(model: Model, of: Union[str, Sequence[str]] = (), by: Union[str, Sequence[str]] = (), *, sum: bool = False,
             scale: float = 1.0, names: Union[str, Sequence[str]] = (), hessian_product: bool = False, plain: bool = False,
             path: Optional[Path] = None) -> Union[bytes, str]:
    """Returns a model that computes what `model` does and the gradient of its outputs by its inputs.

    The result is an ONNX model with operators of caesura's, unless it is `plain`: InferenceSession runs it, TrainingSession
    trains it (with a loss on the gradient, too), and it has a gradient itself. The inputs and outputs of `model` stay. The gradients follow
    the outputs, each of the shape and dtype of what it is by. They are those of the model as InferenceSession runs it.

    For an output of several elements the gradient is a vector-Jacobian product, that of the sum of its elements times
    weights. The weights are a new input of the output's type, NAME_gradient; one element known as such needs none.

    Args:
        model: a path, the bytes of an ONNX file, or an onnx.ModelProto.
        of: names of outputs, whose gradients are added up; by default the model's only output.
        by: names of inputs or initializers; by default all floating inputs.
        sum: All weights are one: the gradient of the sum of all elements, without further inputs.
        scale: the results are multiplied by it; -1 makes forces of the gradient of an energy.
        names: names of the gradients, one for each of `by`; by default BY_gradient.
        hessian_product: Adds the Hessian's product with a vector: for each of `by` an input BY_direction of its type and
            an output BY_hessian_product.
        plain: The result has ONNX's own operators only, so that any runtime of ONNX runs it. Initializers among `by` become
            inputs that have them as defaults.
        path: the file to write, with a second one beside it where 2 GB do not suffice. None: the model is returned.

    Returns:
        bytes | str: what sessions take as a model: the bytes of an ONNX file, or `path`.

    Raises:
        ValueError: a name that the model does not have, an input or output that is no floating tensor, an output that
            does not depend on an input (a constant gradient has a Hessian of zeros), or a new name that is taken.
        NotImplementedError: nodes have no gradient, or none in ONNX's operators where it is to be `plain`; all of them are
            listed.
        FileNotFoundError: there is no file at `model`.

    Example::

        saliency = caesura.gradient("net.onnx", of="scores", by="images")
        session = caesura.onnxruntime.InferenceSession(saliency)
        slopes, = session.run(["images_gradient"], {"images": images, "scores_gradient": one_hot})
    """
    written = "" if path is None else os.fspath(path)
    made = _core.gradient(model_source(model), of=_listed(of), by=_listed(by), sum=sum, scale=float(scale),
                          names=_listed(names), hessian_product=hessian_product, plain=plain,
                          path=written)
    return cast(bytes, made) if path is None else written
