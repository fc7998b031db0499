# SPDX-License-Identifier: Apache-2.0
"""The answers of a TrainingSession to a step that fails."""

import math

import numpy as np
import onnx
import pytest

import caesura

MODEL = """<ir_version: 10, opset_import: ["": 21]>
net (int64[N] x) => (float[N,2] scores) <float[3,2] w = {0.5, -0.25, 0.125, 1, 0, -1}> {
  h = Gather <axis = 0> (w, x)
  scores = Tanh (h)
}"""
GOOD = {"x": np.array([0, 1, 2, 1]), "labels": np.array([0, 1, 1, 0])}
BAD = GOOD | {"x": np.array([0, 1, 7, 1])}  # w has no row 7


def session(**options):
    return caesura.TrainingSession(onnx.parser.parse_model(MODEL), target="labels", optimizer=caesura.optim.SGD(lr=0.1), threads=1,
                                   **options)


def test_stop_is_the_default():
    opened = session()
    with pytest.raises(ValueError, match="indices: expected"):
        opened.step(BAD)
    assert opened.failures["failed"] == 1 and "indices: expected" in opened.failures["last"] and opened.inconsistent == []
    assert opened.step(GOOD) == session().step(GOOD)


def test_skip_leaves_the_batch_out():
    opened, undisturbed = session(on_failure="skip"), session()
    assert math.isnan(opened.step(BAD))
    assert opened.updates == 0
    assert opened.step(GOOD) == undisturbed.step(GOOD)
    np.testing.assert_array_equal(opened.parameters()["w"], undisturbed.parameters()["w"])
    assert opened.failures == {"failed": 1, "skipped": 1, "retried": 0, "saved": 0, "last": opened.failures["last"]}


def test_a_retry_ends_with_the_error():
    opened = session(on_failure="retry", retries=3)
    with pytest.raises(ValueError, match="indices: expected"):
        opened.step(BAD)
    assert opened.failures["failed"] == 4 and opened.failures["retried"] == 3 and opened.failures["saved"] == 0
    assert opened.step(GOOD) == session().step(GOOD)


def test_feeds_that_do_not_fit_are_no_failure():
    opened = session(on_failure="skip")
    with pytest.raises(ValueError, match="labels"):
        opened.step({"x": GOOD["x"]})
    assert opened.failures["failed"] == 0
    for policy in ("skip", "retry"):
        opened = session(on_failure=policy)
        with pytest.raises(ValueError, match=r"labels of shape \[4\] expected, got \[3\]"):
            opened.step(GOOD | {"labels": GOOD["labels"][:3]})
        assert opened.failures["failed"] == opened.failures["retried"] == 0
        assert opened.step(GOOD) == session().step(GOOD)


def test_an_early_commit_is_given_up_with_an_undo():
    """Two weights: the step waits after the update of one."""
    model = MODEL.replace("Tanh (h)", "Mul (h, scale)").replace("{0.5, -0.25, 0.125, 1, 0, -1}>",
                                                                "{0.5, -0.25, 0.125, 1, 0, -1}, float[2] scale = {1, 2}>")
    for undo in (False, True):
        opened = caesura.TrainingSession(onnx.parser.parse_model(model), target="labels", optimizer=caesura.optim.SGD(lr=0.1),
                                         threads=1, commit="eager-consume", undo=undo)
        before = opened.parameters()
        steps = sum(line.split(" ", 1)[0].isdigit() for line in opened.plan(GOOD)[0].splitlines()[1:])
        opened.suspend_at(steps - 1)
        with pytest.raises(caesura.Suspended):
            opened.step(GOOD)
        if undo:
            opened.drop()
            assert opened.inconsistent == []
        else:
            with pytest.raises(RuntimeError, match="may be half updated"):
                opened.drop()
            assert opened.inconsistent
            with pytest.raises(ValueError, match="Restore a checkpoint"):
                opened.step(GOOD)
        same = [np.array_equal(value, before[name]) for name, value in opened.parameters().items()]
        assert all(same) is undo


@pytest.mark.parametrize("options, message", [({"on_failure": "ignore"}, "is none of stop, skip"),
                                              ({"on_failure": "retry", "retries": 0}, "expected 1 or more, got 0"),
                                              ({"on_failure": "retry-in-parts", "parts": 1}, "expected 2 or more, got 1")])
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        session(**options)
