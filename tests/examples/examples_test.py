# SPDX-License-Identifier: Apache-2.0
"""Every example runs as a reader would run it, and its model learns the digits."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("digits", "export_step"))


def run(folder, *command):
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def accuracy(text):
    return float(re.search(r"accuracy ([\d.]+)", text).group(1))


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name, tmp_path):
    text = run(tmp_path, sys.executable, FOLDER / f"{name}.py")
    assert accuracy(text) > (0 if "(untrained)" in text else 0.93)


def test_the_notebook_runs(tmp_path):
    """Returns the notebook's cells as one program, so that no notebook server is needed."""
    cells = json.loads((FOLDER / "five_minutes.ipynb").read_text())["cells"]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")  # results are not kept in the tree
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    (tmp_path / "five_minutes.py").write_text(f"import sys\nsys.path.insert(0, {str(FOLDER)!r})\n"
                                              f"import matplotlib\nmatplotlib.use('Agg')\n{code}\n")
    assert accuracy(run(tmp_path, sys.executable, "five_minutes.py")) > 0.93


@pytest.mark.parametrize("path", [*FOLDER.glob("*.py"), *FOLDER.parent.glob("continue_step/*.cc")], ids=lambda path: path.name)
def test_an_example_is_short(path):
    assert len(path.read_text().splitlines()) <= 60


def test_a_step_leaves_python_and_comes_back(tmp_path):
    program, command = shutil.which("continue_step"), shutil.which("caesura")
    if program is None or command is None:
        pytest.skip("continue_step and caesura are not on PATH (. build/activate, with the examples built)")
    before = accuracy(run(tmp_path, sys.executable, FOLDER / "export_step.py", tmp_path))
    assert "242 updates in all" in run(tmp_path, program, tmp_path)
    after = accuracy(run(tmp_path, sys.executable, FOLDER / "export_step.py", tmp_path, "--back"))
    assert before < after and after > 0.93
