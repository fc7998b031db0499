# SPDX-License-Identifier: Apache-2.0
"""Sessions take and return maps: skl2onnx's classifiers give one dict of scores per row (ZipMap); ops take dicts."""

import numpy as np
import pytest
from onnx import parser

from caesura import onnxruntime

HEADER = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>\n'


def session_of(text, **arguments):
    return onnxruntime.InferenceSession(parser.parse_model(HEADER + text), **arguments)


# scikit-learn's LogisticRegression of three classes, as skl2onnx writes it.
COEFFICIENTS = np.array([[0.5, -1, 0.25], [-0.5, 0.75, 1], [0.125, 0.25, -1.25]], np.float32)
INTERCEPTS = np.array([0.1, -0.2, 0.3], np.float32)
LOGISTIC = """
logistic (float[N, 3] X) => (int64[N] output_label, seq(map(int64, float)) output_probability) {
  label, scores = ai.onnx.ml.LinearClassifier <classlabels_ints = [3, 5, 8], coefficients = [0.5, -1.0, 0.25, -0.5, 0.75, 1.0,
    0.125, 0.25, -1.25], intercepts = [0.1, -0.2, 0.3], multi_class = 1, post_transform = "SOFTMAX"> (X)
  probabilities = ai.onnx.ml.Normalizer <norm = "L1"> (scores)
  output_label = Cast <to = 7> (label)
  output_probability = ai.onnx.ml.ZipMap <classlabels_int64s = [3, 5, 8]> (probabilities)
}"""
# A RandomForestClassifier of two trees and named classes: X[0] <= 0 and X[1] <= 1, each leaf half of a vote.
FOREST = """
forest (float[N, 2] X) => (string[N] output_label, seq(map(string, float)) output_probability) {
  label, probabilities = ai.onnx.ml.TreeEnsembleClassifier <classlabels_strings = ["no", "yes"],
    nodes_treeids = [0, 0, 0, 1, 1, 1], nodes_nodeids = [0, 1, 2, 0, 1, 2], nodes_featureids = [0, 0, 0, 1, 0, 0],
    nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"], nodes_values = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
    nodes_truenodeids = [1, 0, 0, 1, 0, 0], nodes_falsenodeids = [2, 0, 0, 2, 0, 0],
    class_treeids = [0, 0, 1, 1], class_nodeids = [1, 2, 1, 2], class_ids = [0, 1, 0, 1],
    class_weights = [0.5, 0.5, 0.5, 0.5], post_transform = "NONE"> (X)
  output_label = Identity (label)
  output_probability = ai.onnx.ml.ZipMap <classlabels_strings = ["no", "yes"]> (probabilities)
}"""
VECTORIZER = """v (map(string, float) X) => (float[R, C] y) {
  y = ai.onnx.ml.DictVectorizer <string_vocabulary = ["a", "b", "c"]> (X) }"""


def test_logistic_regression_gives_labels_and_dicts():
    x = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
    labels, maps = session_of(LOGISTIC).run(None, {"X": x})
    scores = np.exp(x.astype(np.float64) @ COEFFICIENTS.T + INTERCEPTS)
    want = scores / scores.sum(1, keepdims=True)
    assert labels.tolist() == np.array([3, 5, 8])[want.argmax(1)].tolist()
    assert isinstance(maps, list) and [list(m) for m in maps] == [[3, 5, 8]] * 7
    assert all(type(key) is int and type(value) is float for m in maps for key, value in m.items())
    np.testing.assert_allclose([list(m.values()) for m in maps], want, rtol=0, atol=1e-6)  # float32 beside float64


def test_forest_of_named_classes():
    labels, maps = session_of(FOREST).run(None, {"X": np.array([[-1, 0], [1, 0], [1, 2]], np.float32)})
    assert labels.tolist()[0::2] == ["no", "yes"]
    assert maps == [{"no": 1.0, "yes": 0.0}, {"no": 0.5, "yes": 0.5}, {"no": 0.0, "yes": 1.0}]


def test_outputs_by_name_and_of_no_rows():
    session = session_of(FOREST)
    (maps,) = session.run(["output_probability"], {"X": np.ones((1, 2), np.float32)})
    assert maps == [{"no": 0.5, "yes": 0.5}]
    assert session.run(None, {"X": np.ones((0, 2), np.float32)})[1] == []


def test_types_are_spelt_as_onnxruntime_does():
    assert [o.type for o in session_of(LOGISTIC).get_outputs()] == ["tensor(int64)", "seq(map(int64,tensor(float)))"]
    assert session_of(FOREST).get_outputs()[1].type == "seq(map(string,tensor(float)))"
    assert session_of(VECTORIZER).get_inputs()[0].type == "map(string,tensor(float))"


def test_torch_inputs_leave_maps_as_they_are():
    torch = pytest.importorskip("torch")
    label, maps = session_of(LOGISTIC).run(None, {"X": torch.zeros(1, 3)})
    assert isinstance(label, torch.Tensor) and type(maps[0][3]) is float


def test_ort_values_and_bindings():
    session, x = session_of(FOREST), np.ones((1, 2), np.float32)
    value = session.run_with_ort_values(["output_probability"], {"X": onnxruntime.OrtValue.ortvalue_from_numpy(x)})[0]
    assert value.data_type() == "seq(map(string,tensor(float)))" and not value.is_tensor_sequence() and not value.is_tensor()
    assert value.numpy() == [{"no": 0.5, "yes": 0.5}]
    binding = session.io_binding()
    binding.bind_cpu_input("X", x)
    binding.bind_output("output_probability")
    session.run_with_iobinding(binding)
    assert binding.copy_outputs_to_cpu() == [[{"no": 0.5, "yes": 0.5}]]
    with pytest.raises(ValueError, match=r"output 'output_probability' is sequence\(map\(string"):
        binding.bind_ortvalue_output("output_probability", onnxruntime.OrtValue.ortvalue_from_numpy(x))


def test_results_outlive_the_next_run():
    session = session_of(FOREST)
    first = session.run_with_ort_values(None, {"X": onnxruntime.OrtValue.ortvalue_from_numpy(np.ones((1, 2), np.float32))})[1]
    session.run(None, {"X": -np.ones((1, 2), np.float32)})
    assert first.numpy() == [{"no": 0.5, "yes": 0.5}]


def test_wrong_sizes_are_errors():
    text = "g (float[N, 2] X) => (seq(map(int64, float)) z) { z = ai.onnx.ml.ZipMap <classlabels_int64s = [1, 2, 3]> (X) }"
    with pytest.raises(ValueError, match=r"expected 3 scores a row, one a class label, got shape \[4, 2\]"):
        session_of(text).run(None, {"X": np.zeros((4, 2), np.float32)})


@pytest.mark.parametrize("feed", [{"a": 1.5, "none": 3.0, "c": 2}, {"a": np.float32(1.5), "c": np.float64(2)}])
def test_dict_vectorizer_takes_pythons_numbers(feed):
    session = session_of(VECTORIZER)
    (y,) = session.run(None, {"X": feed})
    assert y.dtype == np.float32 and y.tolist() == [[1.5, 0, 2]]
    assert session.run(None, {"X": {}})[0].tolist() == [[0, 0, 0]]
    assert session.output_shapes({"X": feed}) == {"y": None}


def test_cast_map_orders_by_key():
    cast = 'c (map(int64, string) X) => (float[R, C] y) { y = ai.onnx.ml.CastMap <cast_to = "TO_FLOAT"> (X) }'
    assert session_of(cast).run(None, {"X": {7: "0.5", -1: "2"}})[0].tolist() == [[2, 0.5]]


@pytest.mark.parametrize("feed, message", [
    ({1: 1.0}, r"input 'X' is map\(string, float32\[\]\), got map\(int64, float32\)"),
    ({"a": "b"}, r"got map\(string, string\)"),
    ({"a": 1, 2: 1}, "keys of a map are all strings or all integers"),
    ({"a": 1, "b": "c"}, "its values all strings or all numbers"),
    ({"a": [1.0]}, "its values all strings or all numbers"),
    ({"a": None}, "its values all strings or all numbers"),
    (np.zeros(3, np.float32), r"got float32\[3\]"),
    ([{"a": 1.0}], "got a sequence"),
])
def test_feeds_that_are_no_such_map_are_refused(feed, message):
    with pytest.raises(ValueError, match=message):
        session_of(VECTORIZER).run(None, {"X": feed})
