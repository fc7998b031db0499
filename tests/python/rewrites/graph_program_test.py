# SPDX-License-Identifier: Apache-2.0
"""A captured graph is cut into programs and calls; only views whose memory is visible outside need a call."""

import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import caesura  # noqa: E402

from caesura.rewrites import fx_meta  # noqa: E402
from caesura.runtime.graph_executor import GraphProgram, RunStep  # noqa: E402


def steps(function, *arguments):
    """Returns the graph's steps: "program" or a call's name. Results must equal the function's."""
    program = GraphProgram(make_fx(function)(*arguments))
    for got, expected in zip(program(*arguments), function(*arguments)):
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()
    return ["program" if isinstance(step, RunStep) else step.target._schema.name.removeprefix("aten::")
            for step, _ in program.steps]


X, W = torch.randn(4, 8), torch.randn(8, 8)


def test_a_reshape_that_nobody_else_sees_through_is_the_programs():
    assert steps(lambda x, w: [torch.sum(x @ w, 0, keepdim=True).view(8)], X, W) == ["program"]
    assert steps(lambda x, w: [(x @ w).view(2, 16).unsqueeze(0)], X, W) == ["program"]


def test_a_reshape_of_what_is_a_result_too_shares_its_elements():
    def function(x, w):
        y = x @ w
        return [y, y.view(32)]

    assert steps(function, X, W) == ["program", "reshape"]
    graph = make_fx(function)(X, W)
    for inference in (False, True):
        with torch.inference_mode(inference):
            y, flat = GraphProgram(graph)(X, W)
        assert y.data_ptr() == flat.data_ptr()


def test_a_transposed_result_is_a_view():
    assert steps(lambda x, w: [(x @ w).t()], X, W) == ["program", "t"]
    assert steps(lambda x, w: [(x @ w).t().unsqueeze(0)], X, W) == ["program", "t", "unsqueeze"]


def attend(q):
    """Returns an attention's result and its merged heads. They share memory in PyTorch; ours is stored by head."""
    q = q.transpose(1, 2)
    y = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)[0]
    return [y, y.transpose(1, 2).view(2, 8, 32)]


def test_a_reshape_that_needs_a_copy_is_the_programs():
    q = torch.randn(2, 8, 4, 8)
    program = GraphProgram(make_fx(attend)(q))
    assert [isinstance(step, RunStep) for step, _ in program.steps] == [True]
    for got, expected in zip(program(q), attend(q)):
        torch.testing.assert_close(got, expected)


def test_transposed_twice_is_not_transposed():
    assert steps(lambda x, w: [(x @ w).t().t()], X, W) == ["program"]
    assert steps(lambda x, w: [(x @ w).t().t(), (x @ w).t()], X, W) == ["program", "t"]


def test_a_view_from_before_a_call_is_made_in_the_program_that_reads_it():
    def function(x, w):
        y = torch.linalg.matrix_exp(x @ w)  # a call that no program runs
        return [y @ w.t()[:, 2:]]

    x = torch.randn(8, 8) / 8
    assert steps(function, x, W / 8) == ["program", "linalg_matrix_exp", "program"]
    program = GraphProgram(make_fx(function)(x, W / 8))
    last = program.steps[-1][0]
    assert {n.op for n in last.reads} == {"placeholder", "call_function"} and len(last.reads) == 2


def test_rows_without_any_finite_score_have_no_shares():
    scores = torch.randn(3, 5)
    scores[1] = -torch.inf
    scores[2, 1:] = -torch.inf
    assert steps(lambda x: [torch._safe_softmax(x, -1)], scores) == ["program"]
    assert steps(lambda x: [torch._safe_softmax(x, 0)], scores.t().contiguous()) == ["program"]
    assert steps(lambda x: [torch._safe_softmax(x, 0)], torch.tensor(2.0)) == ["program"]


def test_strides_of_a_reshape_are_one():
    assert steps(lambda x: [torch.relu(x.as_strided((2, 1, 16), (16, 7, 1)))], X) == ["program"]
    assert steps(lambda x: [torch.relu(x.as_strided((3, 4), (2, 1)))], X) == ["as_strided", "program"]  # overlaps
    assert steps(lambda x: [torch.relu(x.as_strided((3, 8), (8, 1), 8))], X) == ["as_strided", "program"]
    assert steps(lambda x: [torch.relu(torch.as_strided_scatter(x, x.view(32) + 1, (32,), (1,)))], X) == ["program"]
    assert steps(lambda x, w: [torch.relu(torch.as_strided_scatter(x, w[:2, :4] + 1, (2, 4), (8, 1)))], X, W) == [
        "program", "as_strided_scatter", "program"]


def test_programs_know_the_shapes_behind_ops_of_ours():
    """Rows after an attention are fused in a process without a session, which would have registered the ops."""
    code = """
import onnx.parser, torch
from caesura import _core
model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 23, "ai.caesura": 1]>
    g (float[1,2,8,4] q) => (float[1,2,8,4] y) {
        a, past, present, scores, lse = ai.caesura.AttentionTraining (q, q, q) s = Sigmoid (a) y = Mul (a, s) }''')
print(_core.Program(model.SerializeToString(), 1, None).plan([torch.zeros(1, 2, 8, 4)])[0])
"""
    plan = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"compute \[(\S+)", plan) == ["ai.caesura::AttentionTraining", "ai.caesura::FusedRows"]


class Fills(torch.nn.Module):
    """Makes tensors whose size depends on its input."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x, i):
        n = x.shape[0]
        sums = torch.zeros(n, 4).index_add(0, i, self.layer(x)) + torch.full((n, 1), 2.0)
        return torch.cat([sums, torch.ones(n, 2) * n, x.new_zeros(n + 1, 6)[1:, :2]], 1).amax(1)


def test_tensors_are_made_of_sizes_that_change():
    torch._dynamo.reset()
    caesura.reports.reset()
    module = Fills()
    with caesura.strict():
        wrapped = caesura.wrap(module)
        for n in (3, 5, 2, 7):
            x, i = torch.linspace(-1, 1, 4 * n).view(n, 4), torch.arange(n) * 2 % n
            expected, given = module(x, i), wrapped(x, i)
            torch.testing.assert_close(given, expected)
            wanted, got = (torch.autograd.grad(y.sum(), module.layer.weight)[0] for y in (expected, given))
            torch.testing.assert_close(got, wanted)


class Flattens(torch.nn.Module):
    """Uses sizes that are products and sums of others."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 5)

    def forward(self, x, labels):
        scores = self.layer(x).flatten(0, 1)  # [batch * length, 5]
        counts = torch.zeros(x.shape[0] * x.shape[1] + 3).scatter_add(0, labels.flatten(), scores.sum(1))
        return torch.nn.functional.cross_entropy(scores, labels.flatten()) + counts.square().sum()


def test_sizes_may_be_products_and_sums():
    torch._dynamo.reset()
    caesura.reports.reset()
    module = Flattens()
    wrapped = caesura.wrap(module)
    for batch, length in ((2, 3), (3, 5), (4, 6)):
        x, labels = torch.linspace(-1, 1, batch * length * 4).view(batch, length, 4), torch.arange(batch * length).view(batch, length) % 5
        with caesura.strict():
            expected, given = module(x, labels), wrapped(x, labels)
        torch.testing.assert_close(given, expected)
        wanted, got = (torch.autograd.grad(y, module.layer.weight)[0] for y in (expected, given))
        torch.testing.assert_close(got, wanted)


class Halves(torch.nn.Module):
    """Uses a size that no input has and that is no product: it belongs to a value of the program."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)[::2].sin()
        return torch.stack([y, torch.ones(y.shape[0], 4) * y.shape[0]]).sum() + torch.zeros(y.shape[0] // 2 + 1).cos().sum()


def test_sizes_may_be_those_of_results():
    torch._dynamo.reset()
    module = Halves()
    wrapped = caesura.wrap(module)
    for n in (4, 7, 9):
        x = torch.linspace(-1, 1, 4 * n).view(n, 4)
        torch.testing.assert_close(wrapped(x), module(x))


def test_a_call_that_fails_in_company_is_left_alone(monkeypatch):
    from caesura.lowering import Refused, TABLE

    sine, tried = TABLE[torch.ops.aten.sin.default], []

    def only_alone(w, node, x):
        tried.append(len(w.nodes))
        if w.nodes:
            raise Refused("not in company")
        return sine(w, node, x)

    monkeypatch.setitem(TABLE, torch.ops.aten.sin.default, only_alone)
    with pytest.warns(caesura.FallbackWarning, match="aten.sin.default.*not in company"):
        assert steps(lambda x, w: [torch.exp(torch.sin(torch.exp(x @ w)))], X * 0.1, W * 0.1) == ["program", "sin", "program"]
    assert 0 in tried and max(tried) > 0


def test_so_are_the_parts_of_its_results(monkeypatch):
    from caesura.lowering import Refused, TABLE

    split = TABLE[torch.ops.aten.split.Tensor]

    def only_alone(w, node, *arguments):
        if w.nodes:
            raise Refused("not in company")
        return split(w, node, *arguments)

    def function(x, w):
        first, second = torch.exp(x @ w).split(4, 1)
        return [torch.exp(first) * second]

    monkeypatch.setitem(TABLE, torch.ops.aten.split.Tensor, only_alone)
    with pytest.warns(caesura.FallbackWarning, match="aten.split.Tensor.*not in company"):
        (result,) = GraphProgram(make_fx(function)(X * 0.1, W * 0.1))(X * 0.1, W * 0.1)
    torch.testing.assert_close(result, function(X * 0.1, W * 0.1)[0])


def test_a_view_that_waits_for_a_size_is_made_from_a_view_of_before():
    def function(x):
        e = torch.linalg.matrix_exp(x)
        t = (x @ x).t()
        return [t.expand(x.shape[0], x.shape[0], 4), e]

    x = torch.randn(4, 4) * 0.3
    traced = make_fx(function, tracing_mode="symbolic")(x)
    (size,) = traced.graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int)
    (late,) = traced.graph.find_nodes(op="call_function", target=torch.ops.aten.linalg_matrix_exp.default)
    (transposed,) = traced.graph.find_nodes(op="call_function", target=torch.ops.aten.t.default)
    size.args = (late, 0)  # a size of a call's result; its reader runs after the call
    transposed.append(size)
    for got, expected in zip(GraphProgram(traced)(x), function(x), strict=True):
        torch.testing.assert_close(got, expected)


# --- how results lie --------------------------------------------------------------------------------------------

def channels_last(x):
    return torch.nn.functional.conv2d(x.to(memory_format=torch.channels_last), torch.ones(4, 2, 1, 1))


LYING = {
    "channels_last": lambda x, w: channels_last(x.view(1, 2, 4, 4)),
    "a view of such": lambda x, w: channels_last(x.view(1, 2, 4, 4)).permute(0, 2, 3, 1),
    "transposed": lambda x, w: (x @ w).t().relu(),
    "written to by a view": lambda x, w: written(x @ w),
    "by strides": lambda x, w: ((x @ w).t() * 2).as_strided((3, 4), (5, 2), 1),
    "by strides, with gaps": lambda x, w: torch.relu((x @ w).t()).as_strided((4,), (3,)),
    "by strides, of a view": lambda x, w: (x @ w)[:, 1:3].as_strided((2, 3), (8, 2)),
    "by strides, written to": lambda x, w: written((x @ w).t() * 2, lambda v: v.as_strided((2, 2), (1, 3))),
    "by strides, of zeros": lambda x, w: torch.zeros_like(x.t()).as_strided((4,), (3,)).add_(x[:, 0]),
}


def written(x, part=lambda v: v.t()[0]):
    part(x).mul_(5)
    return x


@pytest.mark.parametrize("function", LYING.values(), ids=LYING)
def test_results_lie_as_pytorch_s(function):
    torch._dynamo.reset()
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    found = []
    for run in (function, torch.compile(function, backend="caesura")):
        leaves = [t.clone().requires_grad_() for t in (x, w)]
        y = run(*leaves)
        y.square().sum().backward()
        found.append((y.detach(), *(torch.zeros(()) if t.grad is None else t.grad for t in leaves)))
    for got, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert found[1][0].stride() == found[0][0].stride()


# --- numbers ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64])
def test_quotients_that_round_to_whole_numbers(dtype):
    """Division rounds down as Python's divmod does: 0.7 // 0.1 is 6, although 0.7 / 0.1 is 7."""
    def function(a, b):
        return a % b, torch.div(a, b, rounding_mode="floor"), torch.div(a, b, rounding_mode="trunc"), a // 0.1, a % 0.1, a // -3, 7 % b

    torch._dynamo.reset()
    b = torch.randint(1, 9, (5000,)).to(dtype) if not dtype.is_floating_point else torch.randn(5000).to(dtype)
    a = torch.randint(-50, 50, (5000,)).to(dtype) * b
    if dtype.is_floating_point:
        infinity = float("inf")
        a = torch.cat([a, torch.randn(5000).to(dtype) * 100, torch.tensor([1, -1, 5, infinity, 1, -1, 0]).to(dtype)])
        b = torch.cat([b, torch.randn(5000).to(dtype), torch.tensor([infinity, infinity, -infinity, 2, 0, 0, 0]).to(dtype)])
    for got, expected in zip(torch.compile(function, backend="caesura")(a, b), function(a, b), strict=True):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def beside(function, *arguments):
    torch._dynamo.reset()
    got, expected = torch.compile(function, backend="caesura")(*arguments), function(*arguments)
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_beside_halves_are_not_rounded(dtype):
    """Numbers beside half-precision tensors keep their precision; a loss scale is the main case."""
    def function(t, number):
        return t * 1e5, t / 1e5, t * 1e-8 * 1e8, t / 3.3, t * number, t / number, 3.3 / t, t.sum() * 65536.0, t * 0.1

    beside(function, torch.tensor([1e-3, 0.5, 3.0, 100.0]).to(dtype), torch.tensor(7e4))


def test_truth_of_nothing():
    def function(t):
        none = t[:0]
        return (none.any(), none.all(), (none > 0).any(), t.view(1, 3)[:, :0].any(1), t.any(), t.all(), t.to(torch.uint8).any(),
                t.to(torch.uint8).all(), t.view(3, 1).any(1, keepdim=True), t.view(3, 1).all(0))

    beside(function, torch.tensor([0.0, -3.0, 1.0]))


def test_numbers_that_a_type_does_not_hold():
    def function(t):
        return t == 256, t + 300, t > 2**40, t > -1, t * -1

    for dtype in (torch.uint8, torch.int8, torch.int32):
        beside(function, torch.tensor([0, 100, 127]).to(dtype))


def test_a_place_is_a_line_of_the_users():
    """Not one of PyTorch's or of this package, which a call of the user's has led to, nor of generated code."""
    node = torch.fx.Graph().placeholder("x")
    user, generated = 'File "/home/me/model.py", line 12, in forward', 'File "<eval_with_key>.5", line 3, in forward'
    theirs = [f'File "{module.__file__}", line 7, in inner' for module in (torch.nn.functional, fx_meta)]
    node.meta["stack_trace"] = "\n".join([user, *theirs, generated])
    assert fx_meta.describe(node) == "/home/me/model.py:12 in forward"
    node.meta["stack_trace"] = "\n".join([*theirs, generated])
    assert fx_meta.describe(node).startswith(f"{__file__}:") and fx_meta.describe(node).endswith("in test_a_place_is_a_line_of_the_users")
    node.meta = {}
    assert fx_meta.describe(node) == "x"
