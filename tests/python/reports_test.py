# SPDX-License-Identifier: Apache-2.0
"""Parts of caesura that are not used are told of once, with what to do; stats() lists them, and strict() forbids them."""

import re
import warnings

import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402
from caesura import reports, torch_kernels  # noqa: E402
from caesura.frontends import wrap  # noqa: E402
from caesura.runtime import gpu, step_fast_path  # noqa: E402


@pytest.fixture(name="nothing_lost")
def _nothing_lost(monkeypatch):
    """Nothing was told of so far; the library that calls PyTorch is looked for again, before and after the test."""
    monkeypatch.setattr(reports.RECORD, "lost", {})
    monkeypatch.setattr(reports.RECORD, "detours", {})
    cached = (torch_kernels.load, torch_kernels.misfit, torch_kernels.plugin_folder)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


MINOR = ".".join(torch.__version__.split(".")[:2])


def with_library(folder, release=None):
    """A package's folder: with no library, or with one that says which release it was built with and cannot be opened."""
    if release is not None:
        library = folder / f"torch{MINOR}" / "libcaesura_torch.so"
        library.parent.mkdir()
        library.write_bytes(f"\0was built with PyTorch {release}\0".encode())
    return folder


@pytest.mark.parametrize(("change", "told"), [
    (lambda patch, folder: patch.setattr(torch_kernels, "_FOLDER", with_library(folder)), "was not built"),
    (lambda patch, folder: patch.setattr(torch_kernels, "_FOLDER", with_library(folder, "2.12.1")),
     r"was built with PyTorch 2\.12\.1; this is"),
    (lambda patch, folder: patch.setattr(torch, "__version__", "9.9.0"), r"was built with PyTorch 2\..*; this is PyTorch 9.9.0"),
], ids=["missing", "cannot be opened", "another release"])
@pytest.mark.skipif(not torch_kernels.built(), reason="libcaesura_torch was not built")
def test_a_library_that_is_not_used_is_told_of_once(tmp_path, monkeypatch, nothing_lost, change, told):
    change(monkeypatch, tmp_path)
    module, x = caesura.wrap(torch.nn.Linear(3, 2)), torch.randn(4, 3, requires_grad=True)
    with pytest.warns(caesura.FallbackWarning, match=told) as warned:
        module(x).sum().backward()
        caesura.wrap(torch.nn.Linear(3, 2))(x).sum().backward()
    assert len(warned) == 1 and warned[0].filename == __file__
    assert "not used: the library of calls in PyTorch: " in str(caesura.stats())
    caesura.reports.reset()
    assert caesura.stats().lost and re.match(f"not loaded: .*{told}", torch_kernels.state())
    with caesura.strict(), pytest.raises(caesura.StrictError, match=told):
        caesura.wrap(torch.nn.Linear(3, 2))(x)


@pytest.mark.skipif(not torch_kernels.built(), reason="libcaesura_torch was not built")
def test_of_several_libraries_the_one_of_this_minor_release_is_loaded(tmp_path, monkeypatch, nothing_lost):
    for minor in ("2.1", MINOR, "9.10"):
        (tmp_path / f"torch{minor}").mkdir()
        (tmp_path / f"torch{minor}" / "libcaesura_torch.so").write_bytes(b"was built with PyTorch %s.0" % minor.encode())
    library = tmp_path / f"torch{MINOR}" / "libcaesura_torch.so"
    library.unlink()
    library.symlink_to((torch_kernels._FOLDER / f"torch{MINOR}" / library.name).resolve())
    monkeypatch.setattr(torch_kernels, "_FOLDER", tmp_path)
    assert torch_kernels.load() and torch_kernels.plugin_folder() == str(library.parent)
    assert torch_kernels.state().startswith(f"loaded, built with PyTorch {MINOR}.")
    torch_kernels.load.cache_clear()
    monkeypatch.setattr(torch, "__version__", f"{MINOR}.99+cu130")  # any patch release
    assert torch_kernels.load()
    torch_kernels.load.cache_clear()
    monkeypatch.setattr(torch, "__version__", "9.9.1")
    with pytest.raises(NotImplementedError, match=rf"was built with PyTorch 2\.1\.0, {MINOR}\.\d+, 9\.10\.0; this is PyTorch 9\.9\.1"):
        torch_kernels.load()


@pytest.mark.skipif(not torch_kernels.built(), reason="libcaesura_torch was not built")
def test_the_library_that_fits_is_named(nothing_lost):
    assert re.fullmatch(rf"loaded, built with PyTorch {MINOR}\.\d+; this is PyTorch {MINOR}\..*", torch_kernels.state())


def test_a_step_that_misses_its_fast_path_is_told_of_once(nothing_lost, monkeypatch):
    monkeypatch.setattr(step_fast_path, "is_plain", lambda code: False)  # as PyTorch 2.15 had it
    monkeypatch.setattr(step_fast_path, "writes_globals", lambda code: True)
    module = torch.nn.Linear(3, 2)
    step = caesura.compile_step(module, torch.nn.functional.mse_loss, torch.optim.SGD(module.parameters(), lr=0.1), dynamic=True)
    x, y = torch.randn(4, 3), torch.randn(4, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", caesura.FallbackWarning)
        for _ in range(9):
            step(x, y)
    ((what, reason), count), = caesura.stats().detours.items()
    assert what == "calls of the step of Linear" and count == 8 and "Dynamo's code" in reason
    before = module.weight.clone()
    with caesura.strict(), pytest.raises(caesura.StrictError, match="fast path of the step of Linear is not used"):
        step(x, y)
    torch.testing.assert_close(module.weight, before, rtol=0, atol=0)
    with pytest.warns(caesura.FallbackWarning, match="fast path of the step of Linear is not used") as warned:
        step(x, y)
        step(x, y)
    assert len(warned) == 1 and warned[0].filename == __file__
    assert "the longer way, 10 times: calls of the step of Linear" in str(caesura.stats())


def test_rare_calls_that_miss_the_fast_path_are_counted_only(nothing_lost):
    module = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    step, batch = caesura.compile_step(module, torch.nn.functional.mse_loss, optimizer), (torch.randn(4, 3), torch.randn(4, 2))
    with caesura.strict():
        for _ in range(12):
            optimizer.load_state_dict(optimizer.state_dict())
            step(*batch)
            step(*batch)
            step(*batch)
    assert not caesura.stats().lost


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_the_difference_of_two_has_what_came_between(nothing_lost, monkeypatch):
    monkeypatch.setattr(reports.RECORD, "fallbacks", {})
    same, x = caesura.wrap(torch.nn.Identity()), torch.randn(3)
    for _ in range(3):
        same(x)
    reports.fall_back([("a", "no kernel", "here"), ("b", "no kernel", "here")])
    before, linear = caesura.stats(), caesura.wrap(torch.nn.Linear(3, 2))
    reports.fall_back([("a", "no kernel", "here"), ("b", "no kernel", "there")])
    for _ in range(4):
        same(x)
    linear(torch.ones(1, 3))
    between = caesura.stats() - before
    assert between.fallbacks == {("b", "no kernel"): {"there"}} and between.eager_calls == 0
    assert between.detours == {("calls of Identity", "nothing in it is captured"): 4}
    assert between.kernel_calls == 1 and between.kernel_seconds > 0
    assert not (before - before).detours


class Kinds(torch.nn.Linear):
    def forward(self, x, kind):
        return super().forward(x) * (kind + 2)


def test_a_module_of_too_many_kinds_of_calls_is_told_of_once(nothing_lost, monkeypatch):
    monkeypatch.setattr(wrap, "_CALLS", 2)
    module, x = caesura.wrap(Kinds(3, 2), dynamic=False), torch.randn(4, 3)
    with caesura.strict():
        for _ in range(10):
            module(x, "a" == "b"), module(x, True)
    assert not caesura.stats().detours
    with pytest.warns(caesura.FallbackWarning, match="fast path of Kinds is not used: its calls are of more than 2 kinds") as warned:
        for i in range(30):  # one of the three kinds finds no room
            module(x, i % 3)
    assert len(warned) == 1 and warned[0].filename == __file__
    assert [count for (what, _), count in caesura.stats().detours.items() if what == "calls of Kinds"] == [9]


def test_a_graph_break_is_told_of_as_such(nothing_lost):
    class Breaks(torch.nn.Linear):
        def forward(self, x):
            torch._dynamo.graph_break()
            return super().forward(x)

    module, x = caesura.wrap(Breaks(3, 2)), torch.randn(4, 3)
    with pytest.warns(caesura.FallbackWarning, match="graph break"):
        for _ in range(12):
            module(x)
    assert not caesura.stats().lost
    assert caesura.stats().detours["calls of Breaks", "a graph break"] == 11


class Views(torch.nn.Module):
    def forward(self, x):
        return x.view(-1), x + 1


def test_what_is_so_by_design_is_counted_only(nothing_lost):
    views, same, x = caesura.wrap(Views()), caesura.wrap(torch.nn.Identity()), torch.randn(3)
    with caesura.strict():
        for _ in range(12):
            views(x), same(x)
    assert "the longer way, 1 times: a graph: PyTorch makes its results" in str(caesura.stats())
    assert caesura.stats().detours["calls of Identity", "nothing in it is captured"] > 10


def test_parts_that_cpp_does_without_are_listed_and_forbidden(nothing_lost, monkeypatch):
    assert not reports._core.lost_parts()
    monkeypatch.setattr(reports._core, "lost_parts", lambda: {"cuDNN": "libcudnn.so.9 is not installed"})
    assert "not used: cuDNN: libcudnn.so.9 is not installed" in str(caesura.stats())
    gpu.open_gpu(torch.device("cpu"))
    with caesura.strict(), pytest.raises(caesura.StrictError, match="cuDNN is not used: libcudnn.so.9 is not installed"):
        gpu.open_gpu(torch.device("cpu"))
