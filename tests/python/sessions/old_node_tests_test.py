# SPDX-License-Identifier: Apache-2.0
"""CAESURA_LONG=1: `caesura conformance` passes the tests in the wheels of all ONNX releases from 1.2.2 to 1.22, except those
listed here: tests that ONNX itself corrected later, tests of experimental ops that ONNX withdrew, and those of conformance_test.

The wheels (0.4 GB) are kept beside the environment. Tests are read from them, and data that several releases share run once."""

import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest
from conformance_test import REASONS

COMMAND = shutil.which("caesura")
pytestmark = pytest.mark.skipif(COMMAND is None, reason="the caesura command is not on PATH (. build/activate)")

# The Python whose wheel is taken: releases.
RELEASES = {
    "3.6": "1.2.2 1.2.3 1.3.0 1.4.0 1.4.1 1.5.0 1.6.0 1.7.0 1.8.0 1.8.1 1.9.0 1.10.0 1.10.1 1.10.2 1.11.0",
    "3.9": "1.12.0 1.13.0 1.13.1 1.14.0 1.14.1 1.15.0 1.16.0 1.16.1 1.16.2 1.17.0 1.18.0 1.19.0 1.19.1",
    "3.12": "1.20.0 1.20.1 1.21.0 1.22.0",
}
# The tests of the wheels; wheels do not change.
TESTS = {"node": 32453, "pytorch-converted": 2604, "pytorch-operator": 1129, "simple": 629}
FILE = re.compile(rf"onnx/backend/test/data/({'|'.join(TESTS)})/([^/]+)/(.+\.(?:onnx|pb))")

# (The release that corrected tests, what was wrong in each earlier one): the tests.
CORRECTED = {
    ("1.4.0", "output_shape holds the batch and the channels too"): "test_convtranspose_output_shape",
    ("1.4.0", "the model of opset 8 uses an op of opset 9"): "test_mvn",
    ("1.5.0", "tensors of 12 strings hold 3"): "test_cast_FLOAT_to_STRING test_cast_STRING_to_FLOAT",
    ("1.5.0", "the op is experimental before opset 10"): """
        test_thresholdedrelu test_thresholdedrelu_default test_thresholdedrelu_example""",
    ("1.5.0", "the input has another shape than the model says"): "test_shrink",
    ("1.7.0", "the model does not hold the nearest_mode of the test's name"): """
        test_resize_upsample_sizes_nearest_ceil_half_pixel test_resize_upsample_sizes_nearest_floor_align_corners
        test_resize_upsample_sizes_nearest_round_prefer_ceil_asymmetric""",
    ("1.7.0", "the values are sorted, although sorted=0"): "test_unique_not_sorted_without_axis",
    ("1.8.0", "new parameters equal the old ones"): "test_momentum test_momentum_multiple test_nesterov_momentum",
    ("1.9.0", "the tensor is not at the front"): "test_sequence_insert_at_front",
    ("1.10.0", "the model says SAME_LOWER, the data SAME_UPPER"): "test_convtranspose_autopad_same",
    ("1.14.0", "one sum is 14 in place of 24"): "test_col2im_pads",
    ("1.17.0", "numbers of 4 bits are stored as numbers that these cannot hold"): """
        test_cast_INT4_to_FLOAT test_cast_INT4_to_FLOAT16 test_cast_INT4_to_INT8 test_dequantizelinear_int4
        test_quantizelinear_int4""",
    ("1.18.0", "means of windows beyond the padding count places outside of it"): """
        test_averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True""",
    ("1.19.0", "bfloat16 numbers are stored as uint16"): """
        test_cast_BFLOAT16_to_FLOAT test_cast_FLOAT_to_BFLOAT16 test_castlike_BFLOAT16_to_FLOAT
        test_castlike_BFLOAT16_to_FLOAT_expanded test_castlike_FLOAT_to_BFLOAT16 test_castlike_FLOAT_to_BFLOAT16_expanded""",
    ("1.19.0", "casts of NaN give 6; later -0"): "test_cast_FLOAT16_to_FLOAT4E2M1 test_cast_FLOAT_to_FLOAT4E2M1",
    ("1.19.0", "casts of numbers out of range, which the text leaves open, saturate; later they wrap"): """
        test_cast_FLOAT16_to_INT4 test_cast_FLOAT16_to_UINT4 test_cast_FLOAT_to_INT4 test_cast_FLOAT_to_UINT4""",
    ("1.19.0", "inputs of rank 3 are reshaped to heads without a transpose"): """
        test_attention_3d test_attention_3d_attn_mask test_attention_3d_causal test_attention_3d_diff_heads_sizes
        test_attention_3d_diff_heads_sizes_attn_mask test_attention_3d_diff_heads_sizes_causal
        test_attention_3d_diff_heads_sizes_scaled test_attention_3d_diff_heads_sizes_softcap
        test_attention_3d_diff_heads_with_past_and_present test_attention_3d_scaled test_attention_3d_softcap
        test_attention_3d_with_past_and_present test_attention_3d_with_past_and_present_qk_matmul
        test_attention_3d_with_past_and_present_qk_matmul_softmax""",
    ("1.19.1", "a query's head takes another group's keys"): """
        test_attention_3d_gqa test_attention_3d_gqa_attn_mask test_attention_3d_gqa_causal test_attention_3d_gqa_scaled
        test_attention_3d_gqa_softcap test_attention_3d_gqa_with_past_and_present test_attention_4d_gqa
        test_attention_4d_gqa_attn_mask test_attention_4d_gqa_causal test_attention_4d_gqa_scaled test_attention_4d_gqa_softcap
        test_attention_4d_gqa_with_past_and_present test_attention_4d_gqa_with_past_and_present_fp16""",
    ("1.19.1", "the caches are as wide as the head in place of rotary_embedding_dim"): """
        test_rotary_embedding_no_position_ids_rotary_dim test_rotary_embedding_with_interleaved_rotary_dim
        test_rotary_embedding_with_rotary_dim""",
    ("1.21.0", "0 divided by a norm of 0 is NaN"): "test_l2normalization_axis_0",
    ("1.22.0", "the model has no epsilon, the data one of 0.01"): "test_adam_multiple",
    ("1.22.0", "the model's qk_matmul_output_mode is not the one of the test's name"): """
        test_attention_3d_with_past_and_present_qk_matmul_bias test_attention_3d_with_past_and_present_qk_matmul_softcap
        test_attention_4d_with_past_and_present_qk_matmul_bias test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask
        test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal
        test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask
        test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal test_attention_4d_with_qk_matmul_bias
        test_attention_4d_with_qk_matmul_softcap""",
    ("1.22.0", "numbers below the range wrap in place of saturating"): """
        test_qlinearmatmul_2D_int8_float16 test_qlinearmatmul_2D_int8_float32 test_qlinearmatmul_3D_int8_float16
        test_qlinearmatmul_3D_int8_float32""",
}
# (The first release without tests, why it has them no more): the tests. No op of a later opset does the same.
WITHDRAWN = {
    ("1.4.0", "the experimental op ConstantFill"): """
        test_operator_lstm test_operator_rnn test_operator_rnn_single_layer""",
    ("1.5.0", "the experimental op DynamicSlice"): """
        test_dynamic_slice test_dynamic_slice_default_axes test_dynamic_slice_end_out_of_bounds test_dynamic_slice_neg
        test_dynamic_slice_start_out_of_bounds""",
}
# Beside those of conformance_test, in all releases that have them.
UNSUPPORTED = REASONS | {"test_gradient_of": "a training session makes gradients; there is no kernel for the Gradient op"}


def number(release):
    return tuple(map(int, release.split(".")))


def the_wheel(release, python):
    folder = pathlib.Path(os.environ.get("CAESURA_PREFIX", "~/.cache/caesura")).expanduser() / "onnx-wheels"
    if not list(folder.glob(f"onnx-{release}-*.whl")):
        platforms = [f"--platform={name}_x86_64" for name in ("manylinux2014", "manylinux_2_28")]
        done = subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", *platforms,
                               f"--python-version={python}", f"--dest={folder}", f"onnx=={release}"], capture_output=True,
                              text=True, check=False, env=os.environ | {"PIP_CONSTRAINT": os.devnull})
        assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob(f"onnx-{release}-*.whl"))


class Releases:
    """Runs the tests of all releases, the oldest first. Returns what `caesura conformance` reports for each test."""

    def __init__(self):
        self.results = {}  # release -> test -> reason (empty: it passed)
        self.kinds = collections.Counter()  # folder in the wheel -> tests
        self.runs = 0  # of tests whose data no earlier release had
        self.lines = []  # a line for each release
        self._seen = {}  # test, names, checksums and sizes of its files -> reason

    def run(self, release, wheel):
        tests = collections.defaultdict(list)
        with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
            for file in archive.infolist():
                if match := FILE.fullmatch(file.filename):
                    tests[match[1], match[2]].append((match[3], file))
            keys = {test: (test, *sorted((name, file.CRC, file.file_size) for name, file in files))
                    for test, files in tests.items()}
            new = {name: keys[kind, name] for kind, name in tests if keys[kind, name] not in self._seen}
            for name, (test, *_) in new.items():
                for path, file in tests[test]:
                    target = pathlib.Path(folder, name, path)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(file))
            if new:
                done = subprocess.run([COMMAND, "conformance", folder, "--quiet", "--json", "-"], capture_output=True, text=True,
                                      check=False)
                assert done.returncode == 0, done.stdout + done.stderr  # 1: a test crashed
                self._seen |= {new[name]: reason for name, reason in json.loads(done.stdout).items()}
        self.runs += len(new)
        self.kinds.update(kind for kind, _ in tests)
        self.results[release] = {test[1]: self._seen[key] for test, key in keys.items()}
        assert len(self.results[release]) == len(tests)  # no two folders have a test of one name
        passed = sum(not reason for reason in self.results[release].values())
        self.lines.append(f"{release}: {passed} of {len(tests)} pass, {len(new)} have new data")

    def failures(self):
        return {(release, test) for release, tests in self.results.items() for test, reason in tests.items() if reason}

    def before(self, release, tests):
        """(earlier release, test) for each of the tests that there is."""
        return {(earlier, test) for earlier in self.results if number(earlier) < number(release)
                for test in tests.split() if test in self.results[earlier]}


@pytest.fixture(scope="module")
def releases():
    if not os.environ.get("CAESURA_LONG"):
        pytest.skip("CAESURA_LONG=1 downloads 0.4 GB and runs the tests of 32 releases")
    done = Releases()
    for python, names in RELEASES.items():
        for release in names.split():
            done.run(release, the_wheel(release, python))
    return done


def test_no_test_is_left_out(releases, capsys):
    with capsys.disabled():
        print("", *releases.lines, f"{sum(releases.kinds.values())} tests, {releases.runs} with data of their own", sep="\n")
    assert releases.kinds == TESTS


def test_every_failure_is_named(releases):
    known = set().union(*(releases.before(release, tests) for (release, _), tests in (CORRECTED | WITHDRAWN).items()))
    known |= {(release, test) for release, test in releases.failures() if any(part in test for part in UNSUPPORTED)}
    assert releases.failures() == known


@pytest.mark.parametrize("release,reason", CORRECTED)
def test_corrected_tests_pass_with_the_data_of_that_release(releases, release, reason):
    tests = CORRECTED[release, reason].split()
    assert {test: releases.results[release][test] for test in tests} == dict.fromkeys(tests, "")
    assert {test for _, test in releases.before(release, " ".join(tests))} == set(tests)


@pytest.mark.parametrize("release,reason", WITHDRAWN)
def test_withdrawn_tests_are_in_no_later_release(releases, release, reason):
    later = {test for name, tests in releases.results.items() if number(name) >= number(release) for test in tests}
    assert not later & set(WITHDRAWN[release, reason].split())


def test_a_wrong_test_of_a_wheel_is_found(tmp_path):
    """The short form: the second of three wheels has a wrong test; the third one has the first one's."""
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 13]> g (float[2] x) => (float[2] y) { y = Relu (x) }')
    for release, wanted in ("1.2.2", [0, 1]), ("1.2.3", [0, 2]), ("1.3.0", [0, 1]):
        with zipfile.ZipFile(tmp_path / f"{release}.whl", "w") as archive:
            folder = "onnx/backend/test/data/node/test_relu"
            archive.writestr(f"{folder}/model.onnx", model.SerializeToString())
            for name, values in ("input_0", [-1, 1]), ("output_0", wanted):
                tensor = onnx.numpy_helper.from_array(np.float32(values))
                archive.writestr(f"{folder}/test_data_set_0/{name}.pb", tensor.SerializeToString())
    releases = Releases()
    for path in sorted(tmp_path.glob("*.whl")):
        releases.run(path.stem, path)
    assert releases.lines == ["1.2.2: 1 of 1 pass, 1 have new data", "1.2.3: 0 of 1 pass, 1 have new data",
                              "1.3.0: 1 of 1 pass, 0 have new data"]
    assert releases.failures() == {("1.2.3", "test_relu")} and releases.runs == 2
    assert releases.before("1.3.0", "test_relu test_none") == {("1.2.2", "test_relu"), ("1.2.3", "test_relu")}
    assert "1 of 2 differ" in releases.results["1.2.3"]["test_relu"]
