# SPDX-License-Identifier: Apache-2.0
"""More of the statements of program_features.py: autograd's states, and parts of modules."""

from generators.program_features import feature, helper

# --- autograd's states ------------------------------------------------------------------------------------------

@feature(4)
def detached(d):
    v = d.pick()
    return d.new(d.rng.choice([f"{v}.detach()", f"{v}.data", f"{v}.detach()", f"{v}.detach().requires_grad_()" if d.rng.random() < 0.1 else
                               f"{v}.data * 2", f"{v}.detach() + {v}"]))


@feature(1)
def detached_in_place(d):
    v = d.pick(written=True)
    return f"{v}.detach_()" if d.rng.random() < 0.7 else f"{v}.requires_grad_()"


@feature(5)
def no_grad(d):
    return d.block("with torch.no_grad():")


@feature(3)
def enable_grad(d):
    return d.block("with torch.enable_grad():")


@feature(0.3)
def inference_mode(d):
    return d.block("with torch.inference_mode():")


@feature(0.7)
def set_grad(d):
    return d.block("with torch.set_grad_enabled(self.training):")


helper("without_gradients", """
@torch.no_grad()
def without_gradients(function, *given):
    return function(*given)
""")


@feature(1)
def no_grad_function(d):
    v = d.pick()
    return d.new(d.rng.choice([f"without_gradients(torch.sin, {v})", f"without_gradients(torch.Tensor.mul_, {d.pick(written=True)}, 0.5)",
                               f"without_gradients(lambda t: t.view(-1), {v})"]))


helper("Halves", """
class Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 0.5

    @staticmethod
    def backward(ctx, dy):
        x, = ctx.saved_tensors
        return dy * x.cos()
""")
helper("Nothing", """
class Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, dz):
        return None, dz * 2
""")
helper("Split", """
class Split(torch.autograd.Function):
    @staticmethod
    def forward(x, k):
        return x * k, x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.k = inputs[1]
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, dy, dz):
        return dy * ctx.k + dz * ctx.saved_tensors[0], None
""")
helper("Marks", """
class Marks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y, z = x * 2, (x > 0).to(x.dtype)
        ctx.mark_non_differentiable(z)
        return y, z

    @staticmethod
    def backward(ctx, dy, dz):
        return dy.clamp(-0.5, 0.5)
""")


@feature(2)
def function(d):
    v = d.pick()
    u = d.pick(shape=d.shape_of(v))
    return d.rng.choice([f"{d.fresh()} = Halves.apply({v})", f"{d.fresh()} = Nothing.apply({v}, {u})",
                         f"{d.fresh()}, {d.fresh()} = Split.apply({v}, 3)", f"{d.fresh()}, {d.fresh()} = Marks.apply({v})"])


@feature(0.7)
def derivative(d):
    v = d.pick(needs_grad=True)
    return v and d.new(f"torch.autograd.grad(({v} * {v}).sin().sum(), {v}, create_graph={d.rng.random() < 0.7})[0]")


@feature(0.25)
def derivative_of_parameter(d):
    w = d.parameter(d.shape_of(d.pick(least=1))[-1:])
    d.extra(f"v{d.free} = ({w} * {w}).sin()")  # by which a graph before a break hands out a result to differentiate
    v = f"v{d.free - 1}"
    if d.rng.random() < 0.5:
        d.extra("torch._dynamo.graph_break()")
    return d.new(f"torch.autograd.grad({v}.square().sum(), {w}, create_graph=True)[0]")


@feature(1)
def checkpointed(d):
    v = d.pick()
    return d.new(f"torch.utils.checkpoint.checkpoint(lambda t: (t * t).sin(), {v}, use_reentrant=False)")


@feature(0.7)
def tensor_hook(d):
    """Not of views: eager loses their hooks where their memory is written to later (findings/view_loses_its_hook.sh)."""
    v = d.pick(needs_grad=True)
    return v and not d.tensor(v)._is_view() and f"{v}.register_hook(lambda g: g * 2)"


helper("cond", """
def cond(predicate, then, otherwise, given):
    if torch.compiler.is_dynamo_compiling():
        return torch.cond(predicate, then, otherwise, given)
    return (then if predicate else otherwise)(*given)
""")
helper("while_loop", """
def while_loop(goes_on, step, given):
    if torch.compiler.is_dynamo_compiling():
        found = torch._higher_order_ops.while_loop(goes_on, step, given)
        return tuple(t.clone() for t in found)  # PyTorch's results (2.13) are views, whose own views under no_grad require no gradient
    while goes_on(*given):
        given = step(*given)
    return given
""")


@feature(0.8)
def conditional(d):
    v = d.pick()
    w = d.parameter(d.shape_of(v)[-1:])
    return d.new(d.rng.choice([f"cond({v}.sum() > 0.1, lambda t: t.sin(), lambda t: t * 2, ({v},))",
                               f"cond({v}.mean() < 0.1, lambda t, w: t * w, lambda t, w: t + w, ({v}, {w}))"]))


@feature(0.3)
def loop(d):
    v = d.pick()
    return f"_, {d.fresh()} = while_loop(lambda i, t: i < 2, lambda i, t: (i + 1, t * 0.5 + 0.1), (torch.tensor(0), {v}))"


# --- parts of modules -------------------------------------------------------------------------------------------

@feature(4)
def norm(d):
    """Normalizes by a module that has been called before, or a new one."""
    v = d.pick(least=2)
    if v is None:
        return None
    shape = d.shape_of(v)
    n, kinds = shape[1], ["BatchNorm1d(%d)", "BatchNorm1d(%d, affine=False)", "LayerNorm", "GroupNorm(1, %d)",
                          "BatchNorm1d(%d, momentum=None)", "BatchNorm1d(%d, track_running_stats=False)"]
    kinds += ["InstanceNorm1d(%d, track_running_stats=True)", "InstanceNorm1d(%d, affine=True, track_running_stats=True)"]
    kind = d.rng.choice(kinds if len(shape) == 3 else kinds[:6])
    text = f"nn.LayerNorm({shape[-1]})" if kind == "LayerNorm" else f"nn.{kind % n}"
    size = shape[-1] if kind == "LayerNorm" else n
    return d.new(f"{d.part('norm', text, lambda m: size == getattr(m, 'num_features', None))}({v})")


@feature(1.5)
def statistics(d):
    norms = [name for name in d.parts("norm") if getattr(d.tensor(name), "running_mean", None) is not None]
    if not norms:
        return None
    of = d.rng.choice(norms)
    return d.rng.choice([f"{of}.running_mean.mul_(0.5)", d.new(f"{of}.running_var * 2"), d.new(f"{of}.running_mean"),
                         d.block("with torch.no_grad():", [f"{of}.running_var.add_(0.25)"])])


@feature(1)
def reparametrized(d):
    v = d.pick(least=1)
    n = d.shape_of(v)[-1]
    if d.rng.random() < 0.3:
        g = d.parameter((n,))
        return d.new(f"{v} * torch._weight_norm({d.parameter((n,))}, {g})")
    kind = d.rng.choice(["spectral_norm", "weight_norm"])
    return d.new(f"{d.part('normed', f'nn.utils.parametrizations.{kind}(nn.Linear({n}, 2))', lambda m: m.in_features == n)}({v})")


@feature(4)
def buffer(d):
    b = d.buffer()
    v = d.pick()
    value = v if d.shape_of(v) == d.shape_of(b) else f"{v}.mean()"
    texts = [f"{b}.mul_(0.9)", d.new(f"{b} * {v}" if d.broadcast(b, v) else f"{b} + {v}.mean()"), f"{b} = {b} * 0.9 + {value}.detach()",
             d.block("with torch.no_grad():", [f"{b}.mul_(0.9).add_({value}, alpha=0.1)"]), f"{b}.copy_({value}.detach())",
             f"{b}.lerp_({b} + {value}.detach(), 0.5)", d.new(f"{b}.view(-1)"), f"{b}.data.add_(1)", f"{b}.add_({value})"]
    return d.rng.choice(texts)


@feature(1)
def counter(d):
    b = d.part("count", "torch.zeros((), dtype=torch.long)", lambda m: True, buffer=True)
    return d.rng.choice([f"{b} += 1", f"{b}.add_(2)", d.new(f"{d.pick()} * {b}")])


@feature(1.5)
def attribute(d):
    a = d.part("seen", "None", lambda m: True)
    v = d.pick()
    return d.rng.choice([f"{a} = {v}.detach()", f"{a} = {v}.detach().clone()", d.new(f"{v} if {a} is None else {v} + {a}.mean()")])


@feature(1)
def setting(d):
    """Reads a number that may change between calls."""
    return d.new(f"{d.pick()} * {d.part('scale', '0.5', lambda m: True)}")


@feature(1)
def embedding(d):
    table = d.part("embedding", f"nn.Embedding(4, 3, sparse={d.rng.random() < 0.4})", lambda m: d.rng.random() < 0.8)
    whole = d.rng.choice(["torch.tensor([0, 2, 2])", f"({d.pick()} > 0).long()"])
    return d.new(f"{table}({whole})")


@feature(1)
def tied(d):
    """One parameter in two modules."""
    v = d.pick(least=1)
    n = d.shape_of(v)[-1]
    if d.rng.random() < 0.5:
        return d.new(f"{d.part('tied', f'Tied({n})', lambda m: m.first.in_features == n)}({v})")
    made = f"nn.Embedding(4, {n}, sparse={d.rng.random() < 0.3})"
    table = d.part("table", made, lambda m: m.embedding_dim == n)
    return d.new(f"F.linear({v}, {table}.weight) + {table}(torch.tensor([1]))")


helper("Tied", """
class Tied(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.first, self.last = nn.Linear(n, n), nn.Linear(n, n)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.first(x).tanh())
""")


@feature(0.2)
def bag(d):
    w = d.parameter((4, 2))
    mode = d.rng.choice(["sum", "mean"])
    return d.new(f"F.embedding_bag(torch.tensor([0, 2, 1, 2]), {w} * 2, torch.tensor([0, 2]), mode='{mode}')")
