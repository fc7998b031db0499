# SPDX-License-Identifier: Apache-2.0
"""OnnxModule takes names, nested structures and None, and copies nothing."""

import warnings

import numpy as np
import pytest
from onnx import TensorProto, helper

from caesura import onnxruntime

torch = pytest.importorskip("torch")


def info(name, shape=("n",), dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def bytes_of(nodes, inputs, outputs, initializers=()):
    graph = helper.make_graph(nodes, "net", inputs, outputs, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()


def longformer():
    """logits = input_ids as floats * attention_mask + global_attention_mask."""
    nodes = [helper.make_node("Cast", ["input_ids"], ["f"], to=TensorProto.FLOAT),
             helper.make_node("Mul", ["f", "attention_mask"], ["m"]),
             helper.make_node("Add", ["m", "global_attention_mask"], ["logits"])]
    return bytes_of(nodes, [info("input_ids", dtype=TensorProto.INT64), info("attention_mask"), info("global_attention_mask")],
                    [info("logits")])


IDS, MASK, GLOBAL = torch.arange(3), torch.ones(3), torch.full((3,), 0.5)


def test_inputs_of_any_name_by_keyword_and_by_position():
    module = onnxruntime.OnnxModule(longformer())
    for args, kwargs in (((), {"input_ids": IDS, "attention_mask": MASK, "global_attention_mask": GLOBAL}),
                         ((IDS, MASK, GLOBAL), {}), ((IDS,), {"global_attention_mask": GLOBAL, "attention_mask": MASK}),
                         (((IDS, MASK),), {"global_attention_mask": GLOBAL.numpy()})):
        logits = module(*args, **kwargs)
        assert isinstance(logits, torch.Tensor) and logits.tolist() == [0.5, 1.5, 2.5]
    assert module.eval() is module and not list(module.parameters())
    assert "global_attention_mask" in repr(module)


def test_dense_tensors_cross_without_a_copy():
    module = onnxruntime.OnnxModule(longformer())
    module(IDS, MASK, GLOBAL)
    assert module.session._session.exchanged() == (3, 0)
    module(torch.arange(6)[::2], MASK, GLOBAL)
    assert module.session._session.exchanged() == (6, 1)


def test_outputs_stay_when_the_next_call_goes():
    module = onnxruntime.OnnxModule(longformer())
    first = module(IDS, MASK, GLOBAL)
    second = module(IDS, MASK, GLOBAL * 3)
    assert first.tolist() == [0.5, 1.5, 2.5] and second.tolist() == [1.5, 2.5, 3.5]
    first.zero_()
    assert module(IDS, MASK, GLOBAL).tolist() == [0.5, 1.5, 2.5]


def decoder():
    """Two layers, each with a key and a value that grow by x. `scale` has a default."""
    names = [f"{layer}.{part}" for layer in range(2) for part in ("key", "value")]
    nodes = [helper.make_node("Concat", [f"past_key_values.{n}", "x"], [f"present.{n}"], axis=0) for n in names]
    nodes.append(helper.make_node("Mul", ["x", "scale"], ["logits"]))
    return bytes_of(nodes, [info("x")] + [info(f"past_key_values.{n}", ("p",)) for n in names] + [info("scale", (1,))],
                    [info("logits")] + [info(f"present.{n}", ("t",)) for n in names],
                    [helper.make_tensor("scale", TensorProto.FLOAT, [1], [2.0])])


PRESENT = [(f"present.{layer}.key", f"present.{layer}.value") for layer in range(2)]


def test_nested_structures_in_and_out():
    module = onnxruntime.OnnxModule(decoder(), output_structure={"logits": "logits", "past_key_values": PRESENT})
    x = torch.ones(1)
    past = [(torch.zeros(0), torch.zeros(0)) for _ in range(2)]
    for step in range(1, 4):
        outputs = module(x=x * step, past_key_values=past)
        assert outputs["logits"].tolist() == [2.0 * step]
        past = outputs["past_key_values"]
    assert isinstance(past[1], tuple) and [t.tolist() for pair in past for t in pair] == [[1, 2, 3]] * 4
    assert module.session._session.exchanged()[1] == 0
    # The same by position, and the default of `scale` replaced.
    assert module(x, past)["past_key_values"][0][1].tolist() == [1, 2, 3, 1]
    assert module(x, past, scale=torch.tensor([5.0]))["logits"].tolist() == [5]
    assert module(x, past, scale=None)["logits"].tolist() == [2]


def test_outputs_by_name_attribute_and_index():
    module = onnxruntime.OnnxModule(decoder())
    outputs = module(x=torch.ones(1), past_key_values={"a": [torch.zeros(1)] * 2, "b": [torch.zeros(1)] * 2})
    assert list(outputs) == module.output_names
    assert outputs.logits is outputs["logits"] is outputs[0] is outputs.to_tuple()[0]
    assert outputs["present.1.value"].tolist() == [0, 1]
    with pytest.raises(AttributeError, match="no output 'loss'; it has logits"):
        outputs.loss


def test_optional_inputs_may_be_none():
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    body = [helper.make_graph([helper.make_node("OptionalGetElement", ["bias"], ["b"]), helper.make_node("Add", ["x", "b"], ["t"])],
                              "then", [], [info("t", None)]),
            helper.make_graph([helper.make_node("Identity", ["x"], ["e"])], "else", [], [info("e", None)])]
    nodes = [helper.make_node("OptionalHasElement", ["bias"], ["has"]),
             helper.make_node("If", ["has"], ["y"], then_branch=body[0], else_branch=body[1])]
    module = onnxruntime.OnnxModule(bytes_of(nodes, [info("x"), helper.make_value_info("bias", optional)], [info("y", None)]))
    x = torch.ones(2)
    assert module(x, torch.ones(2) * 4).tolist() == [5, 5]
    assert module(x, None).tolist() == module(x=x, bias=None).tolist() == module(x).tolist() == [1, 1]


def test_sequences_in_and_out():
    sequence = helper.make_tensor_sequence_value_info
    nodes = [helper.make_node("SequenceInsert", ["s", "x"], ["out"])]
    module = onnxruntime.OnnxModule(bytes_of(nodes, [sequence("s", TensorProto.FLOAT, None), info("x")],
                                         [sequence("out", TensorProto.FLOAT, None)]))
    for call in (lambda: module([torch.zeros(1), torch.ones(2)], torch.ones(3)),
                 lambda: module(s=[torch.zeros(1), torch.ones(2)], x=torch.ones(3))):
        assert [t.tolist() for t in call()] == [[0], [1, 1], [1, 1, 1]]


def test_what_is_wrong_is_named():
    module = onnxruntime.OnnxModule(decoder())
    x, two = torch.ones(1), [torch.ones(1)] * 2
    with pytest.raises(TypeError, match="no input 'global_mask'"):
        module(x=x, global_mask=x)
    with pytest.raises(TypeError, match="no input 'past_key_values'"):  # a tensor is no structure
        module(x=x, past_key_values=x)
    with pytest.raises(TypeError, match="'past_key_values' has 2 tensors for the 4 inputs"):
        module(x=x, past_key_values=two)
    with pytest.raises(TypeError, match="'x' is given twice"):
        module(x, x=x)
    with pytest.raises(TypeError, match="more tensors by position"):
        module(*[x] * 7)
    with pytest.raises(ValueError, match="no value given for input.s. 'past_key_values.0.key'"):
        module(x, None)
    with pytest.raises(ValueError, match="no output.s. .'loss'."):
        onnxruntime.OnnxModule(decoder(), output_structure=["loss"])
    with pytest.raises(ValueError, match="'x' is float32"):
        module(np.ones(1), two, two)


def test_gradients_are_refused_rather_than_lost():
    module = onnxruntime.OnnxModule(longformer())
    mask = MASK.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="'attention_mask' requires a gradient"):
        module(IDS, mask, GLOBAL)
    with torch.no_grad():
        assert not module(IDS, mask, GLOBAL).requires_grad


def test_what_does_not_move_says_so():
    module = onnxruntime.OnnxModule(longformer())
    for move, message in ((lambda m: m.to("meta"), r"does not go to meta: the model runs on CPUExecutionProvider; providers="),
                          (lambda m: m.half(), r"does not go to torch.float16: tensors have the types"),
                          (lambda m: torch.nn.Sequential(m).to("meta"), "does not go to meta")):
        with pytest.warns(UserWarning, match=message) as warned:
            move(module)
        assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module.to("cpu").cpu().float().eval() is module
    assert module(IDS, MASK, GLOBAL).tolist() == [0.5, 1.5, 2.5]
