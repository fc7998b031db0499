# SPDX-License-Identifier: Apache-2.0
"""Every public name documents its purpose, arguments, results and errors, has an example, and is on a page."""

import importlib
import inspect
import operator
import pathlib
import re

import pytest

import caesura

TOP = pathlib.Path(__file__).resolve().parents[2]
# Names that raise nothing of their own.
NEVER_RAISE = {"Error", "ExecutionMode", "ExecutionOrder", "FallbackWarning", "GraphOptimizationLevel", "ModelMetadata", "NodeArg",
               "OnnxOutputs", "Plan", "RankFailure", "Stats", "StepRefused", "StrictError", "Suspended",
               "get_available_providers", "get_device", "stats"}
NAMES = [*caesura.__all__, *(f"onnxruntime.{name}" for name in caesura.onnxruntime.__all__),
         *(f"typing.{name}" for name in ("ForwardRun", "Plan", "Stats")),
         *(f"integrations.accelerate.{name}" for name in ("AcceleratedStep", "compile_step")),
         *(f"integrations.lightning.{name}" for name in ("CaesuraCallback", "CaesuraDDPStrategy", "CaesuraStrategy")),
         *(f"integrations.transformers.{name}" for name in ("CaesuraCallback", "CaesuraMixin", "CaesuraTrainer"))]


def own_methods(item):
    """Yields (name, object) of the public methods and properties that a caesura class defines."""
    for name in dir(item):
        for base in item.__mro__:
            if name in vars(base) and not name.startswith("_"):
                member = vars(base)[name]
                of_ours = base.__module__.startswith("caesura") and not issubclass(base, int)
                if of_ours and (callable(member) or isinstance(member, (property, staticmethod))):
                    yield name, member
                break


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_documented(name):
    item = operator.attrgetter(name)(caesura)
    text = inspect.getdoc(item) or ""
    wanted = [r"^Example::$"]
    if name.rpartition(".")[2] not in NEVER_RAISE:
        wanted.append(r"^Raises:$")
    if inspect.isfunction(item):
        takes = [p for p in inspect.signature(item).parameters.values() if p.kind != p.VAR_KEYWORD]
        wanted += [r"^Args:$"] * bool(takes)
        wanted += [r"^Returns:$"] * (inspect.signature(item).return_annotation is not None)
        missing = [p.name for p in takes if not re.search(rf"^ +\**{p.name}: ", text, re.M)]
        assert not missing, f"arguments without a line: {missing}"
    elif inspect.isclass(item) and "__init__" in vars(item) and inspect.isfunction(item.__init__) and "Args:" in text:
        missing = [p for p in list(inspect.signature(item.__init__).parameters)[1:] if not re.search(rf"^ +\**{p}: ", text, re.M)]
        assert not missing, f"arguments without a line: {missing}"
    assert [pattern for pattern in wanted if not re.search(pattern, text, re.M)] == []
    if inspect.isclass(item):
        assert [m for m, member in own_methods(item) if not inspect.getdoc(member)] == []


def functions_of(item):
    """Yields (name, function) of a public function, or of a class's constructor, methods and properties."""
    if inspect.isclass(item):
        for name, member in [("__init__", vars(item).get("__init__")), *own_methods(item)]:
            parts = (member.fget, member.fset) if isinstance(member, property) else (getattr(member, "__func__", member),)
            yield from ((name, part) for part in map(inspect.unwrap, filter(None, parts)) if inspect.isfunction(part))
    elif callable(item):
        yield item.__name__, inspect.unwrap(item)


@pytest.mark.parametrize("name", [*NAMES, *(f"optim.{name}" for name in caesura.optim.__all__), "backend.backend", "ortmodule.ORTModule"])
def test_every_parameter_and_result_has_a_type(name):
    importlib.import_module(f"caesura.{name.partition('.')[0]}" if name.startswith(("backend", "ortmodule")) else "caesura")
    missing = []
    for of, function in functions_of(operator.attrgetter(name)(caesura)):
        signature = inspect.signature(function)
        missing += [f"{of}({p.name})" for p in signature.parameters.values()
                    if p.annotation is p.empty and p.name not in ("self", "cls")]
        missing += [f"{of}()"] * (signature.return_annotation is inspect.Signature.empty)
    assert missing == []


def test_every_public_name_is_on_the_reference_page():
    page = (TOP / "docs" / "reference" / "python.md").read_text()
    assert [name for name in NAMES if not re.search(rf":: (caesura\.)?{re.escape(name)}\b", page)] == []


def test_every_environment_variable_is_on_its_page():
    read = set(re.findall(r'"(CAESURA_[A-Z_]+)"', (TOP / "core" / "base" / "env.cc").read_text())) - {"CAESURA_"}
    page = (TOP / "docs" / "reference" / "environment.md").read_text()
    assert read and [name for name in sorted(read) if f"`{name}`" not in page] == []
