# SPDX-License-Identifier: Apache-2.0
"""Models of old opsets have the meaning of their own versions; the model's own functions come before ONNX's ops."""

import numpy as np
import onnx.parser
import pytest

from caesura import onnxruntime

F32 = np.float32
ROWS = F32([[1, 2, 3, 4], [5, 6, 7, 8]]).reshape(1, 1, 2, 4)


def run(opset, graph, functions="", **feeds):
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g {graph} {functions}'
    return onnxruntime.InferenceSession(onnx.parser.parse_model(text)).run(None, feeds)


@pytest.mark.parametrize("scales,expected", [
    ([1, 1, .6, .6], [[1, 3]]),  # test_resize_downsample_nearest of ONNX 1.5
    ([1, 1, 2, 3], np.repeat(np.repeat(ROWS[0, 0], 2, 0), 3, 1)),  # and its test_resize_upsample_nearest
    ([1, 1, 2, .6], [[1, 3], [1, 3], [5, 7], [5, 7]]),
])
@pytest.mark.parametrize("known", [True, False])
def test_resize_10_rounds_down_where_it_grows_and_up_where_it_shrinks(scales, expected, known):
    listed = f"<float[4] s = {{{', '.join(map(str, scales))}}}>" if known else ""
    graph = f"(float[1,1,2,4] x{'' if known else ', float[4] s'}) => (float[a,b,c,d] y) {listed} {{ y = Resize (x, s) }}"
    feeds = {"x": ROWS} | ({} if known else {"s": F32(scales)})
    np.testing.assert_array_equal(run(10, graph, **feeds)[0][0, 0], expected)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "float"])
def test_onehot_counts_from_the_end_since_opset_11(dtype):
    graph = f"({dtype}[4] x) => (float[4,3] y) <int64 d = {{3}}, float[2] v = {{2, 5}}> {{ y = OneHot (x, d, v) }}"
    x = np.array([-1, 2, 3, -9], np.dtype(dtype) if dtype != "float" else np.float32)
    off, last = [2, 2, 2], [2, 2, 5]
    assert run(9, graph, x=x)[0].tolist() == [off, last, off, off]
    assert run(11, graph, x=x)[0].tolist() == [last, last, off, off]


@pytest.mark.parametrize("opset,attributes,dtype", [(6, "<is_test = 1>", np.float32), (7, "", np.float16), (9, "", np.float64),
                                                     (10, "", bool)])
def test_the_mask_of_an_old_dropout_has_the_type_of_its_data(opset, attributes, dtype):
    name = {np.float16: "float16", np.float64: "double"}.get(dtype, "float")
    mask = "bool" if dtype is bool else name
    x = np.arange(3).astype(np.float32 if dtype is bool else dtype)
    y, kept = run(opset, f"({name}[3] x) => ({name}[3] y, {mask}[3] m) {{ y, m = Dropout {attributes} (x) }}", x=x)
    assert y.tolist() == x.tolist() and kept.dtype == dtype and kept.tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", ["Doubled", "Relu"])  # no op of ONNX's, and one that the function comes before
def test_a_function_of_the_model_in_the_default_domain(name):
    function = f'<domain: "", opset_import: ["": 17]> {name} (a) => (b) {{ b = Add(a, a) }}'
    branch = f"If (c) <then_branch = t () => (float[2] p) {{ p = {name} (x) }}, else_branch = e () => (float[2] q) {{ q = Neg (x) }}>"
    graph = f"(float[2] x, bool c) => (float[2] y, float[2] z) {{ y = {name} (x) z = {branch} }}"
    y, z = run(17, graph, function, x=F32([1, -2]), c=np.array(True))
    assert y.tolist() == z.tolist() == [2, -4]
    with pytest.raises(ValueError, match="Undoubled"):
        run(17, "(float[2] x) => (float[2] y) { y = Undoubled (x) }", function, x=F32([1, -2]))
