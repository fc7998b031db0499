# SPDX-License-Identifier: Apache-2.0
"""Every source file obeys the include order, has a licence line, and keeps to the limits of lines and length."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Inside of a room (core/CMakeLists.txt), which the compiler does not see: each folder may include these of core.
CLOSED = {
    "core/kernels": ["core/kernels", "core/base", "core/tensor", "core/graph"],
    "core/providers/openvino": ["core/plugin"],  # a plug-in: C headers only
}
LINE, FILE = 140, 500  # hard limits: columns, lines of one file. The style asks for 120 columns; tables may need more.


def sources():
    listed = subprocess.run(["git", "ls-files", "*.cc", "*.cuh", "*.h", "*.py", "*.sh"], cwd=ROOT, capture_output=True, text=True,
                            check=False).stdout.split()
    if not listed:  # a release archive
        listed = [str(p.relative_to(ROOT)) for ext in ("cc", "cuh", "h", "py", "sh") for p in ROOT.rglob(f"*.{ext}")
                  if not str(p.relative_to(ROOT)).startswith("build")]
    return [path for path in listed if (ROOT / path).exists()]


def included(path):
    return re.findall(r'^#include "([a-z_]+/[^"]+)"', (ROOT / path).read_text(), re.M)


def test_families_of_ops_include_no_other():
    wrong, count = [], 0
    for path in (p for p in sources() if p.startswith("core/ops/") and p.count("/") == 3):
        family = path.rsplit("/", 1)[0]
        for target in included(path):
            count += 1
            if target.startswith("core/ops/") and target.count("/") == 3 and not target.startswith(family + "/"):
                wrong.append(f"{path} includes {target}")
    assert count > 500, "the families' sources were not found"
    assert not wrong, "\n".join(wrong)


def test_closed_folders_include_little():
    wrong = []
    for path in (p for p in sources() if p.endswith((".cc", ".h"))):
        folder = next((f for f in CLOSED if path.startswith(f + "/") and not path.startswith("core/kernels/cuda/")), None)
        for target in included(path) if folder else ():
            cuda = target.startswith("core/kernels/cuda/")
            if target.startswith("core/") and (cuda or not target.startswith((folder, *(f"{a}/" for a in CLOSED[folder])))):
                wrong.append(f"{path} includes {target}")
    assert not wrong, "\n".join(wrong)


def test_every_file_names_its_licence():
    assert not [path for path in sources()
                if "SPDX-License-Identifier: Apache-2.0" not in (ROOT / path).read_text()[:200]]


def test_lines_and_files_are_short():
    wrong = []
    for path in sources():
        lines = (ROOT / path).read_text().splitlines()
        wrong += [f"{path}:{i}: {len(line)} columns" for i, line in enumerate(lines, 1) if len(line) > LINE]
        if len(lines) > FILE:
            wrong.append(f"{path}: {len(lines)} lines")
    assert not wrong, "\n".join(wrong)


def test_comments_have_subjects():
    """At most so many comments begin with a clause in place of a subject, or say "behind" and "in the run"."""
    headless, words = [], []
    for path in (p for p in sources() if p.endswith((".cc", ".cuh", ".h"))):
        goes_on = False  # the line before is of the same comment
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            comment = re.search(r"(?<!:)(?://|/\*)\s?(.*)", line)
            whole_line = line.lstrip().startswith(("//", "/*"))
            if comment and not (goes_on and whole_line) and re.match(r"(What|Whose?|Whether|How|Of|Those)\b", comment[1]):
                headless.append(f"{path}:{number}: {comment[1]}")
            if comment and re.search(r"\b(behind|in the run)\b", comment[1]):
                words.append(f"{path}:{number}: {comment[1]}")
            goes_on = comment is not None
    assert len(headless) <= 2, "\n".join(headless)
    assert len(words) <= 4, "\n".join(words)


# Public headers and passes without a test source of their name, and where their promises are tested.
TESTED_ELSEWHERE = {
    "core/cuda/cuda_options.h": "tests/core/providers/cuda/cuda_provider_test.cc",
    "core/execute/run_options.h": "tests/core/session/session_test.cc",
    "core/kernels/kernel.h": "tests/core/kernels/kernel_registry_test.cc",
    "core/ops/collectives": "tests/training/step/gradient_reduction_test.cc",
    "core/plugin/caesura_op.h": "tests/core/plugin/test_ops.c",  # a plug-in, which plugin_op_test.cc loads
    "core/plugin/caesura_op.hpp": "tests/core/plugin/test_ops_cpp17.cc",
    "core/plugin/caesura_plugin.h": "tests/core/plugin/plugin_library_test.cc",
    "core/plugin/caesura_provider.h": "tests/core/plugin/test_provider.c",
    "core/providers/cpu_provider.h": "tests/core/session/session_test.cc",
    "core/providers/execution_provider.h": "tests/core/providers/counting_provider_test.cc",
    "graph_transforms/order/collective_order.cc": "tests/training/step/gradient_reduction_test.cc",
    "graph_transforms/order/update_placement.cc": "tests/training/step/parameter_placement_test.cc",
    "torch_bridge/c10d_communicator.h": "tests/torch_bridge/rank_checks.cc",  # for ranks in tests/python/ranks
    "torch_bridge/torch_stream.h": "tests/torch_bridge/cuda_torch_module_test.cc",
    "training/session/training_options.h": "tests/training/session/option_table_test.cc",
    "training/step/step_options.h": "tests/training/step/step_program_test.cc",
}


def test_tests_are_found_by_name():
    """Each pass, family of kernels and public header has a test source of its name."""
    wanted = {}
    for header in (ROOT / "cmake/public_headers.txt").read_text().split("\n"):
        if header and not header.startswith("#"):
            wanted[header] = [TESTED_ELSEWHERE.get(header, f"tests/{header.rpartition('.')[0]}_test.cc")]
    for path in sources():
        folder, _, name = path.rpartition("/")
        if name.endswith(".cc") and not path.startswith("tests/") and ": public Pass {" in (ROOT / path).read_text():
            wanted[path] = [TESTED_ELSEWHERE.get(path, f"tests/{folder}/{name[:-3]}_test.cc")]
        if folder.startswith("core/ops/") and name.endswith(".cc") and not name.startswith(("ops", "cuda_")):
            family = folder.rpartition("/")[2]
            wanted[folder] = [f"tests/core/ops/{family}_test.cc", f"tests/core/ops/gradients/{family}_grad_test.cc",
                              TESTED_ELSEWHERE.get(folder, f"tests/core/ops/gradients/{family}_test.cc")]
    missing = [f"{path}: no {' or '.join(tests)}" for path, tests in wanted.items()
               if not any((ROOT / test).exists() for test in tests)]
    assert not missing, "\n".join(missing)


# Functions whose REQUIRES is checked in another one: that they call, or that implements them.
CHECKED_IN = {
    ("core/kernels/walks/strided_copy.h", "Run"): ("core/kernels/walks/strided_copy.cc", "RunTyped"),
    ("core/onnx/model_writer.h", "WriteModel"): ("core/onnx/tensor_proto.cc", "TensorToFileBytes"),
    ("core/providers/write_gate.h", "OpenGate"): ("core/cuda/cuda_device.cc", "OpenGate"),
    ("training/step/gradient_reduction.h", "Buckets"): ("training/step/gradient_reduction.cc", "BytesOf"),
    ("training/files/checkpoint.h", "SaveCheckpoint"): ("core/files/safetensors.cc", "WriteSafetensors"),
    ("torch_bridge/kernel_library.h", "TorchProviderFunction"): ("torch_bridge/kernel_library.cc", "CaesuraTorchProvider"),
    ("torch_bridge/kernel_library.h", "TorchCommunicatorFunction"): ("torch_bridge/kernel_library.cc", "CaesuraTorchCommunicator"),
    ("torch_bridge/kernel_library.h", "TorchStreamFunction"): ("torch_bridge/kernel_library.cc", "CaesuraTorchStream"),
    ("torch_bridge/kernel_library.h", "TorchMemoryFunction"): ("torch_bridge/kernel_library.cc", "CaesuraTorchMemory"),
}


def required(path):
    """The names of the functions (or classes) of a header that have a REQUIRES, each with its declaration's paragraph."""
    lines = (ROOT / path).read_text().splitlines()
    for number, line in enumerate(lines):
        if "REQUIRES" not in line:
            continue
        start = next(i for i in range(number + 1, len(lines)) if not lines[i].lstrip().startswith(("//", "template")))
        end = next(i for i in range(start, len(lines)) if not lines[i])
        paragraph = "\n".join(lines[start:end])
        yield re.search(r"(?:class|struct|using) (\w+)|(\w+|operator\W+)\(", paragraph), paragraph


def test_what_is_required_is_asserted():
    """Each REQUIRES of a header has an assert in the function, where that is defined."""
    assert "-DCAESURA_ASSERTS=ON" in (ROOT / "tests/run.sh").read_text(), "the tests' build has no asserts"
    bodies, missing, count = {}, [], 0
    for path in (p for p in sources() if p.endswith((".cc", ".h"))):
        for body in re.split(r"\n(?=[^\s}#/)])", (ROOT / path).read_text()):
            for name in re.findall(r"(\w+)\(", body.split("{")[0]):
                bodies.setdefault(name, []).append((path, body))
    for path in (p for p in sources() if p.endswith(".h") and not p.startswith("tests/")):
        for match, paragraph in required(path):
            count += 1
            name = match[1] or match[2]
            where, name = CHECKED_IN.get((path, name), (path.removesuffix("/" + path.rsplit("/", 1)[1]) + "/", name))
            found = [body for source, body in bodies.get(name, []) if source.startswith(where)]
            if "assert(" not in paragraph and not any("assert(" in body for body in found):
                missing.append(f"{path}: {name}")
    assert count > 50, "the REQUIRES of the headers were not found"
    assert not missing, "\n".join(missing)
