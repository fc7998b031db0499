# SPDX-License-Identifier: Apache-2.0
"""The private parts of PyTorch: in one module (caesura/capture/compat.py), with one message for those that are missing."""

import ast
import pathlib
import re
import sys

import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402
from caesura.capture import compat  # noqa: E402

PACKAGE = pathlib.Path(caesura.__file__).resolve().parent
# Code that Dynamo traces in a module's place, as the module's own code is.
ALLOWED = {("frontends/wrap.py", "_call_impl"), ("capture/polyfills.py", "_check_input_dim"),
           ("capture/sync_batch_norm.py", "_check_input_dim")}


def sources():
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))
            if "bench" not in path.parts}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and len(name) > 1


def own_names(trees) -> set:
    """All that the package itself, or its extension, gives a name to; and what namedtuples have."""
    found = {"_fields"}.union(*map(dir, vars(caesura._core).values()))
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def private_names(tree, own):
    """Yields the (line, name) of each private attribute that a tree reads and the package does not own. Ruff finds imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner, name = ast.unparse(node.value), node.attr
            if re.match(r"(aten|torch\.ops)\b", owner) or owner in sys.stdlib_module_names:
                continue
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            owner, name = "", ast.literal_eval(node.args[1]) if isinstance(node.args[1], ast.Constant) else ""
        else:
            continue
        if is_private(name) and (name not in own or re.match(r"torch\b", owner)):
            yield node.lineno, name


def test_no_other_module_touches_private_names():
    trees = sources()
    own = own_names(tree for path, tree in trees.items() if path != "capture/compat.py")
    found = [f"{path}:{line} {name}" for path, tree in trees.items() if path != "capture/compat.py"
             for line, name in private_names(tree, own) if (path, name) not in ALLOWED]
    assert not found, "\n".join(found)


def test_private_attributes_are_found():
    read = "tensor._version; getattr(x, '_cdata'); torch._foreach_add_(x); torch.ops.aten._softmax.default; aten._to_copy; x.__class__"
    assert [name for _, name in private_names(ast.parse(read), set())] == ["_version", "_cdata", "_foreach_add_"]


def test_all_are_there():
    compat.check()
    for name in compat._PRIVATE:
        assert getattr(compat, name) is not None


def test_no_other_module_holds_a_text_of_pytorchs():
    texts = {text for text, *_ in compat._TEXTS.values()}
    found = [f"{path}:{node.lineno} {text}" for path, tree in sources().items() if path != "capture/compat.py"
             for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
             for text in texts if node.value == text]
    assert not found, "\n".join(found)


def test_texts_and_fields_that_are_gone_are_told_of(monkeypatch):
    metadata = "torch._functorch._aot_autograd.schemas.ViewAndMutationMeta"
    for name, (_, *places) in compat._TEXTS.items():
        monkeypatch.setitem(compat._TEXTS, name, (f"a new {name}", *places))
    monkeypatch.setitem(compat._FIELDS, metadata, ("tokens", "gone"))
    with pytest.raises(ImportError) as told:
        compat.check()
    assert all(f"'a new {name}' in torch." in str(told.value) for name in compat._TEXTS)
    assert f"{metadata}.gone" in str(told.value) and "tokens" not in str(told.value)


def test_missing_names_are_listed_together(monkeypatch):
    monkeypatch.setitem(compat._PRIVATE, "gone", "torch._dynamo.gone")
    monkeypatch.setitem(compat._PRIVATE, "moved", "torch._nowhere.moved")
    monkeypatch.setattr(compat, "_PARTS", (*compat._PARTS, "torch.Tensor._gone"))
    monkeypatch.setattr(torch, "__version__", "9.8.7")
    with pytest.raises(ImportError) as told:
        from caesura.capture.compat import gone  # noqa: F401
    message = str(told.value)
    assert "caesura needs torch._dynamo.gone, torch._nowhere.moved, torch.Tensor._gone, which PyTorch 9.8.7 does not have" in message
    assert f"with PyTorch {compat.SEEN[0]}" in message and "pip install 'torch>=" in message


def test_a_newer_release_is_told_of(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "99.0.1+cpu")
    with pytest.warns(RuntimeWarning, match="was not yet tried with PyTorch 99.0.1") as told:
        compat.check()
    assert told[0].filename == __file__


def test_this_minor_version_was_seen():
    assert compat._release(torch.__version__) in map(compat._release, compat.SEEN)


def test_one_range_of_releases():
    """The releases that were seen are the same everywhere."""
    top = pathlib.Path(__file__).resolve().parents[3]
    first, last = (".".join(map(str, compat._release(compat.SEEN[i]))) for i in (0, -1))
    major, minor = compat._release(compat.SEEN[-1])
    assert f'torch = ["torch>={first},<{major}.{minor + 1}"]' in (top / "pyproject.toml").read_text()
    assert f"torch_minimum={first} " in (top / "cmake" / "setup.sh").read_text()
    assert f"torches=({' '.join(compat.SEEN)})" in (top / "cmake" / "wheel.sh").read_text()
    for page in ("README.md", "docs/install.md", "VERSIONING.md"):
        assert re.search(rf"PyTorch\s{first}\sto\s{last}", (top / page).read_text()), page
