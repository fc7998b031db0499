# SPDX-License-Identifier: Apache-2.0
"""`caesura gradient`, and `caesura train` on what it writes."""

import shutil
import subprocess

import numpy as np
import onnx
import onnx.parser
import pytest

COMMAND = shutil.which("caesura")
pytestmark = pytest.mark.skipif(COMMAND is None, reason="the caesura command is not on PATH (. build/activate)")
STIFFNESS = np.float32([1, 2, 3])


def run(*arguments, expect=0):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == expect, done.stdout + done.stderr
    return done


@pytest.fixture
def springs(tmp_path, monkeypatch):
    """A folder with energy.onnx, an energy of positions with a parameter `stiffness`, and molecules.npz."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    springs (float[N, 3] positions) => (float[N] energies) <float[3] stiffness = {0.5, 0.5, 0.5}, int64[1] last = {1}> {
      squares = Mul (positions, positions) terms = Mul (squares, stiffness) energies = ReduceSum <keepdims = 0> (terms, last) }""")
    onnx.save(model, tmp_path / "energy.onnx")
    positions = np.random.default_rng(0).standard_normal((256, 3)).astype(np.float32)
    np.savez(tmp_path / "molecules.npz", positions=positions, energies=(STIFFNESS * positions**2).sum(1),
             measured=-2 * STIFFNESS * positions)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_writes_a_model_and_prints_its_ends(springs):
    printed = run("gradient", "energy.onnx", "--by", "positions", "--output", "slopes.onnx").stdout
    assert printed.splitlines() == ["input   positions  float32[N, 3]", "input   energies_gradient  float32[N]",
                                    "output  energies  float32[N]", "output  positions_gradient  float32[N, 3]"]
    weights = np.random.default_rng(1).standard_normal(256).astype(np.float32)
    with np.load("molecules.npz") as molecules:
        np.savez("fed.npz", positions=molecules["positions"], energies_gradient=weights)
        expected = weights[:, None] * molecules["positions"]
    run("predict", "slopes.onnx", "--data", "fed.npz", "--output", "slopes.npz")
    with np.load("slopes.npz") as found:
        np.testing.assert_allclose(found["positions_gradient"], expected, rtol=1e-6)


def test_energies_and_forces_train(springs):
    run("gradient", "energy.onnx", "--by", "positions", "--sum", "--scale", "-1", "--name", "forces", "--output", "potential.onnx")
    run("train", "potential.onnx", "--data", "molecules.npz", "--loss", "mse", "--target", "energies", "--also",
        "forces=measured*10", "--lr", "5e-2", "--epochs", "30", "--output", "trained.onnx")
    trained = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load("trained.onnx").graph.initializer}
    np.testing.assert_allclose(trained["stiffness"], STIFFNESS, rtol=0.02)
    wrong = run("train", "potential.onnx", "--data", "molecules.npz", "--loss", "mse", "--target", "energies", "--also", "forces",
                expect=1)
    assert "also: expected PREDICTION=TARGET or PREDICTION=TARGET*WEIGHT, got 'forces'" in wrong.stderr


def test_hessian_products(springs):
    printed = run("gradient", "energy.onnx", "--sum", "--hessian-product", "--output", "curvature.onnx").stdout
    assert "input   positions_direction  float32[N, 3]" in printed
    assert "output  positions_hessian_product  float32[N, 3]" in printed


def test_refused_by_name(springs):
    run("gradient", "energy.onnx", expect=2)
    assert "gradient: by: the model has no input or initializer 'x'; its inputs are 'positions'" in run(
        "gradient", "energy.onnx", "--by", "x", "--output", "none.onnx", expect=1).stderr
    assert not (springs / "none.onnx").exists()
