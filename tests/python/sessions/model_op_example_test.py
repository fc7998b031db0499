# SPDX-License-Identifier: Apache-2.0
"""A short model-op example: gradients through OpenVINO's and LibTorch's models equal the plain net's."""

import pathlib
import shutil
import subprocess
import sys

import pytest

EXAMPLE = pathlib.Path(__file__).parents[3] / "examples" / "model_op"
PROGRAM, COMMAND = shutil.which("train_around"), shutil.which("caesura")
pytestmark = pytest.mark.skipif(PROGRAM is None or COMMAND is None, reason="the example is not built")


@pytest.fixture(scope="module", name="folder")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("around")
    subprocess.run([sys.executable, EXAMPLE / "export_around.py", folder], check=True, timeout=300)
    return folder


@pytest.mark.parametrize("runtime", ["openvino", "torch"])
def test_layers_around_a_model_train(folder, runtime):
    if not (pathlib.Path(PROGRAM).parents[1] / "lib" / f"libcaesura_runtime_{runtime}.so").exists():
        pytest.skip(f"the {runtime} runtime is not built")
    done = subprocess.run([PROGRAM, folder, runtime, "2"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr  # it checks the gradient and the loss itself
    assert "gradients differ" in done.stdout and "held-out digits" in done.stdout
