# SPDX-License-Identifier: Apache-2.0
"""Each planted fault of tests/faults still fits the sources, and its tests exist."""

import pathlib
import re
import runpy

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_each_fault_fits_the_sources():
    tool = runpy.run_path(str(ROOT / "tests/faults/run.py"))
    suites = {suite for path in (ROOT / "tests").rglob("*_test.cc")
              for suite in re.findall(r"^(?:TEST|TYPED_TEST)(?:_F|_P)?\((\w+),", path.read_text(), re.M)}
    faults, wrong = tool["read_faults"](), []
    assert [fault.number for fault in faults] == list(range(1, len(faults) + 1))
    for fault in faults:
        try:
            changed = tool["planted"]((ROOT / fault.file).read_text(), fault)
            assert fault.is_python or f"caesura_fault({fault.number})" in changed
        except (OSError, ValueError) as error:
            wrong.append(str(error))
        stage, *tests = fault.tests.split()
        if stage == "python":
            wrong += [f"fault {fault.number}: there is no {path}" for path in tests if "/" in path and not (ROOT / path).exists()]
        else:
            patterns = [re.escape(p.split(".")[0]).replace(r"\*", ".*") for p in tests[1].split(":")]
            wrong += [f"fault {fault.number}: no suite of C++ tests fits {pattern}" for pattern in patterns
                      if not any(re.fullmatch(pattern, name) for suite in suites for name in (suite, f"All/{suite}", f"Rules/{suite}"))]
    assert not wrong, "\n".join(wrong)
