# SPDX-License-Identifier: Apache-2.0
"""The statements that programs.py draws programs from: FEATURES, one function each.

A function takes the Draft, in which it finds variables (pick) and makes parts of the module (part). It returns the text of
a statement, a Statement, or None if it has none for these variables. `@feature(weight)` adds it to the table, under its
name. PLACES tells where a statement stands: in the forward, between the calls, or after a call.

Helpers are functions and classes that statements name; a program holds those that it names.
"""

import dataclasses
import math

HELPERS = {}  # name to source
FEATURES = {"forward": {}, "before": {}, "after": {}}  # place to {name: (weight, function)}


@dataclasses.dataclass
class Statement:
    """feature: what it is counted as. text: its line, or the first line of a block. body: the statements of a block. call:
    the number of the call that it stands before or after."""
    feature: str
    text: str
    body: list | None = None
    call: int | None = None

    def lines(self, indent):
        return [" " * indent + self.text, *(line for s in self.body or () for line in s.lines(indent + 4))]

    def all(self):
        yield self
        for statement in self.body or ():
            yield from statement.all()


def feature(weight, place="forward"):
    def add(function):
        FEATURES[place][function.__name__.rstrip("_")] = weight, function
        return function
    return add


def helper(name, source):
    HELPERS[name] = source.strip("\n")


# --- values -----------------------------------------------------------------------------------------------------

@feature(5)
def elementwise(d):
    v = d.pick()
    return d.new(d.rng.choice([f"{v}.sin()", f"torch.tanh({v})", f"{v} * 0.5", f"{v}.sigmoid() + 0.1", f"F.gelu({v})", f"1 - {v}",
                               f"F.relu({v})", f"{v}.clamp(-0.5, 0.75)", f"{v} * {v}", f"torch.where({v} > 0, {v}, {v} * 0.1)",
                               f"{v}.softmax(-1)", f"{v}.cumsum(0)", f"{v}.abs() + 0.25", f"F.softplus({v})"]))


@feature(5)
def binary(d):
    a, b = d.pick(), d.pick()
    if not d.broadcast(a, b):
        b = f"{b}.mean()"
    return d.new(f"{a} {d.rng.choice('+-**')} {b}")


@feature(3)
def parameter(d):
    v = d.pick()
    w = d.parameter(d.rng.choice([d.shape_of(v), d.shape_of(v)[-1:]]))
    return d.new(d.rng.choice([f"{v} * {w}", f"{v} + {w}", f"{v} + {w}.view(-1).mean()", f"{w}.sin()"]))


@feature(3)
def linear(d):
    v = d.pick(least=1)
    n = d.shape_of(v)[-1]
    return d.new(f"{d.part('linear', f'nn.Linear({n}, {d.rng.choice([n, n, 2])})', lambda m: m.in_features == n)}({v})")


@feature(2)
def reduced(d):
    v = d.pick(least=1)
    return d.new(d.rng.choice([f"{v}.sum(0)", f"{v}.mean(-1, keepdim=True)", f"{v}.amax(0)", f"{v}.sum()", f"{v}.max(-1)[0]",
                               f"{v}.std(-1, correction=0)" if d.shape_of(v)[-1] > 1 else f"{v}.sum(-1)", f"{v}.norm()"]))


@feature(1)
def copied(d):
    v = d.pick()
    return d.new(d.rng.choice([f"{v}.clone()", f"{v}.contiguous()", f"{v}.detach().clone()", f"torch.stack([{v}, {v} * 2])",
                               f"torch.cat([{v}, {v}.sin()])" if d.shape_of(v) else f"{v}.clone()", f"{v}.to({v}.dtype)",
                               f"{v}.repeat(2)"]))


@feature(1)
def integers(d):
    v = d.pick(least=1)
    return d.new(d.rng.choice([f"({v} > 0) ** True", f"({v} > 0).sum(0)", f"{v}.argmax(-1)", f"({v} * 3).long()", f"({v} > 0) & ({v} < 1)",
                               f"{v}.sort(-1)[1]"]), floating=False)


@feature(3)
def mixed(d):
    """A value of integers or bools beside floats."""
    whole = d.pick(floating=False)
    v = d.pick()
    return whole and d.broadcast(whole, v) and d.new(f"{v} * {whole}")


# --- views ------------------------------------------------------------------------------------------------------

@feature(7)
def view(d):
    v = d.pick(least=1)
    shape = d.shape_of(v)
    made = [f"{v}.view(-1)", f"{v}.reshape(-1)", f"{v}.transpose(0, -1)", f"{v}[0]", f"{v}[..., :1]", f"{v}[1:]", f"{v}.unsqueeze(0)",
            f"{v}.expand(2, *{v}.shape)", f"{v}.narrow(0, 0, 1)", f"{v}.flatten()", f"{v}.movedim(0, -1)", f"{v}.squeeze(0)",
            f"{v}.view_as({v})", f"{v}.unfold(-1, 1, 1)", f"{v}.select(-1, 0)", f"{v}[::2]", f"{v}[None]", f"{v}.chunk(2, -1)[-1]",
            f"{v}.view({v}.shape)", f"{v}.mT" if len(shape) > 1 else f"{v}[:]", f"{v}.diagonal()" if len(shape) > 1 else f"{v}[-1:]",
            f"{v}.permute(*{list(reversed(range(len(shape))))})", f"{v}[:, 0]" if len(shape) > 1 else f"{v}[-1]",
            f"{v}.unfold(0, 2, 1)" if shape[0] > 1 else f"{v}.detach()"]
    return d.new(d.rng.choice(made))


@feature(3)
def parts(d):
    v = d.pick(least=1)
    dim = d.rng.randrange(len(d.shape_of(v)))
    size = d.shape_of(v)[dim]
    if size < 2:
        return None
    names = [d.fresh() for _ in range(size if size < 4 else 2)]
    made = [f"{v}.unbind({dim})" if len(names) == size else f"{v}.chunk(2, {dim})", f"{v}.tensor_split({len(names)}, {dim})",
            f"{v}.split({[1] * (len(names) - 1) + [size - len(names) + 1]}, {dim})"]
    return f"{', '.join(names)} = {d.rng.choice(made)}"


def _overlapping(d, v):
    """The text of a view in which elements share memory. LookupError without one."""
    n = math.prod(d.shape_of(v))
    if n < 3:
        raise LookupError
    return f"{v}.as_strided({d.rng.choice([(n - 1, 2), (2, n - 1)])}, (1, 1))"


@feature(1)
def strided(d):
    v = d.pick(least=1)
    return d.new(_overlapping(d, v) if d.rng.random() < 0.5 else f"{v}.as_strided(({math.prod(d.shape_of(v))},), (1,))")


# --- writes in place --------------------------------------------------------------------------------------------

def _written(d, v):
    """Texts that write to v, of what it may be given."""
    u = d.pick()
    value = u if d.broadcast(u, v) == d.shape_of(v) else f"{u}.mean()"
    texts = [f"{v}.mul_(0.5)", f"{v}.add_({value})", f"{v}.copy_({value})", f"{v} += {value}", f"{v}.zero_()", f"{v}.sigmoid_()",
             f"F.relu({v}, inplace=True)", f"{v}.clamp_(-0.5, 0.75)", f"{v}.fill_(0.25)", f"{v}.neg_().add_({value}, alpha=0.5)",
             f"{v}.masked_fill_({v} > 0, 0.5)", f"{v}.lerp_({value}, 0.5)" if value == u else f"{v}.sub_({value})",
             f"torch.sin({v}, out={v})" if d.rng.random() < 0.1 else f"{v}.sin_()", f"{v} *= {value}", f"{v}.copy_({value} * 2)"]
    if d.shape_of(v):
        texts += [f"{v}[0] = {value if value != u else f'{u}.mean()'}", f"{v}[0].mul_(2)", f"{v}[{v} > 0.5] = 0.5", f"{v}[:1].zero_()",
                  f"{v}.select(-1, 0).copy_({u}.mean())", f"{v}.index_fill_(0, torch.tensor([0]), 0.5)", f"{v}[..., -1:] += 1"]
    return texts


@feature(9)
def write(d):
    v = d.pick(written=True)
    return d.rng.choice(_written(d, v))


@feature(2)
def write_new(d):
    """Writes to a tensor that is made for it."""
    v, u = d.pick(least=1), d.fresh()
    made = d.rng.choice([f"torch.zeros_like({v})", f"{v}.new_ones({v}.shape)",
                         f"torch.zeros({list(d.shape_of(v))}, dtype={v}.dtype).detach()",
                         f"torch.empty_like({v}).fill_(1)"])
    d.extra(f"{u} = {made}")
    return f"{u}[0] = {v}[0]" if d.rng.random() < 0.5 else f"{u}.copy_({v})"


@feature(0.2)
def write_overlapping(d):
    """Writes to a view in which elements share memory."""
    v, u = d.pick(least=1, written=True), d.fresh()
    d.extra(f"{u} = {_overlapping(d, v)}")
    return d.rng.choice([f"{u}.mul_(0.5)", f"{u}[1].add_(1)", f"{u}[0] = {d.pick()}.mean()", f"{u}[:, 1].zero_()"])


@feature(5)
def write_past(d):
    """Writes to memory past the gradients."""
    v = d.pick(written=True)
    past = d.rng.choice([f"{v}.detach()", f"{v}.data"])
    u = d.pick()
    value = u if d.broadcast(u, v) == d.shape_of(v) else f"{u}.mean()"
    texts = [f"{past}.mul_(0.5)", f"{past}.copy_({value})", f"{past}.add_({value})", f"{past}.zero_()"]
    if d.shape_of(v):
        texts += [f"{past}[0] = {u}.mean()", f"{past}[0].add_(1)"]
    return d.rng.choice(texts)


@feature(1)
def write_shape(d):
    v = d.pick(least=1, written=True)
    return d.rng.choice([f"{v}.unsqueeze_(0)", f"{v}.squeeze_(0)", f"{v}.transpose_(0, -1)", f"{v}.t_()" if len(d.shape_of(v)) < 3 else
                         f"{v}.swapaxes_(0, -1)"])


@feature(3)
def foreach(d):
    a, b = d.pick(written=True), d.pick(written=True)
    u, w = d.pick(), d.pick()
    if d.rng.random() < 0.3 or d.storage(a) == d.storage(b):  # one reads what another one writes: eager's gradient is of old values
        texts = [f"torch._foreach_add_([{a}, {b}], [{b}, {a}])", f"torch._foreach_mul_([{a}, {b}], 0.5)",
                 f"torch._foreach_add_([{a}, {b}], [{a}, {b}])"]
        texts += [f"torch._foreach_lerp_([{b}, {a}], [{a}, {b}], 0.5)"] if a != b else []
        return d.block("with torch.no_grad():", [d.rng.choice(texts)])
    return d.rng.choice([
        f"torch._foreach_mul_([{a}, {b}], 0.5)", f"torch._foreach_add_([{a}], [{u}])", f"torch._foreach_sin_([{a}])",
        f"torch._foreach_copy_([{a}], [{u}])",
        f"{d.fresh()}, {d.fresh()} = torch._foreach_mul([{u}, {w}], 2.0)", f"{d.fresh()}, {d.fresh()} = torch._foreach_add([{u}, {w}], 1)",
        f"torch._foreach_lerp_([{a}], [{u}], 0.5)"])


# --- numbers ----------------------------------------------------------------------------------------------------

@feature(2)
def random(d):
    v = d.pick(least=1)
    return d.new(d.rng.choice([f"torch.rand({list(d.shape_of(v))}).to({v}.dtype) * {v}", f"F.dropout({v}, 0.0)", f"F.dropout({v}, 1.0)",
                               f"{v} + torch.randn(1).to({v}.dtype)", f"F.dropout({v}, 0.5, False)",
                               f"{v} * torch.bernoulli(torch.full({list(d.shape_of(v))}, 0.5)).to({v}.dtype)"]))


@feature(0.4)
def dropout(d):
    return d.new(f"F.dropout({d.pick()}, 0.5, {d.rng.choice(['True', 'self.training'])})")


@feature(1)
def random_unread(d):
    v = d.pick(least=1)
    return d.rng.choice(["torch.rand(3)", f"torch.bernoulli({v}.sigmoid())", f"torch.randn_like({v})", "torch.rand(2, 2) * 2"])


@feature(1)
def special(d):
    """A function at points where its derivative has more than one definition."""
    k = d.part("points", "nn.Parameter(torch.tensor([0.0, 1.0, -1.0, 0.5, 0.0, 1.0]).to(DTYPE))", lambda m: True)
    t = "torch.tensor([0.0, 0.0, 1.0, 1.0, 0.5, 0.0])"
    return d.new(d.rng.choice([
        f"torch.special.xlogy({k}.abs(), 2 + {k})", f"torch.special.xlogy({k}, {k}.abs() * 0 + {k}.detach() * 0)", f"{k}.sgn() * {k}",
        f"F.kl_div({k}, {t}.to({k}.dtype), reduction='sum')", f"F.kl_div({k}, {k}.abs(), reduction='sum')", f"{k}.clamp(0.5, 0.5)",
        f"{k}.clamp({k}.detach(), {k})", f"torch.special.entr({k}.abs())", f"{k}.clamp(0, 1).logit(1e-3)", f"{k}.max() + {k}.min()",
        f"F.multi_margin_loss({k}.view(3, 2), torch.tensor([0, 1, 0]))", f"{k}.abs().logit()",
        f"F.binary_cross_entropy({k}.sigmoid(), {k}.abs().clamp(0, 1))",
        f"torch.complex({k}, {k} * 0).sgn().real", f"{k}.relu()", f"{k}.amax()",
        f"torch.maximum({k}, {k}.abs())", f"F.hardtanh({k})", f"F.huber_loss({k}, {k} * 0)", f"{k}.norm()", f"({k} * 0).norm()",
        f"{k}.abs().sqrt().clamp(0.5)", f"{k}.pow(2)", f"{k}.prod()", f"{k}.median()", f"{k}.sort()[0]", f"F.dropout({k} / 0, 1.0)",
        f"torch.where({k} > 0, {k}, {k} / 0).max()"]))


@feature(0.4)
def infinite(d):
    m = d.part("mask", "nn.Parameter(torch.tensor([0.0, float('-inf'), 0.0]).to(DTYPE))", lambda m: True)
    return d.new(f"({d.pick()}.mean() * {d.parameter((3,))} + {m}).softmax(-1)")


@feature(0.25)
def nested(d):
    w = d.parameter((4, 2))
    n = f"torch.nested.nested_tensor_from_jagged({w} * 2, torch.tensor([0, 1, 4]))"
    return d.new(d.rng.choice([f"{n}.sin().values()", f"{n}.to_padded_tensor(0.0)", f"({n} * {n}).values()"]))


# --- between the calls ------------------------------------------------------------------------------------------

helper("doubled", """
def doubled(*given):
    result = given[-1]
    return tuple(map(doubled, result)) if isinstance(result, tuple) else result * 2 if result.is_floating_point() else result
""")
helper("halved", """
def halved(module, given):
    return tuple(x * 0.5 if x.is_floating_point() else x for x in given)
""")
helper("tripled", """
def tripled(module, inputs, outputs):
    return tuple(g if g is None else g * 3 for g in inputs)
""")


@feature(5, "before")
def hook(d):
    m = d.rng.choice(["module", *(f"module.{name}" for name in d.submodules())])
    kinds = [f"{m}.register_forward_hook(doubled)", f"{m}.register_forward_pre_hook(halved)"] * 3
    kinds += ["nn.modules.module.register_module_forward_hook(doubled)", "nn.modules.module.register_module_forward_pre_hook(halved)"]
    kinds += [f"{m}.register_full_backward_hook(tripled)"]
    return f"handles.append({d.rng.choice(kinds)})"


@feature(2, "before")
def unhook(d):
    return "handles and handles.pop().remove()"


@feature(2, "before")
def training(d):
    return f"module.train({d.rng.random() < 0.5})"


@feature(2, "before")
def freeze(d):
    return f"{d.outside('parameter')}.requires_grad_({d.rng.random() < 0.3})"


@feature(3, "before")
def outside_write(d):
    p, b = d.outside("parameter"), d.outside("buffer")
    return d.rng.choice([f"{p}.data.mul_(0.5)", f"{p}.data = {p}.data * 0.5", f"{p}.detach().add_(0.1)", f"{p}.data = {p}.data.clone()"] +
                        ([f"{b}.data.mul_(2)", f"{b}.detach().zero_()", f"{b}.data = {b}.data + 1"] if b else []))


@feature(1, "before")
def load(d):
    return "module.load_state_dict({k: v * 0.5 for k, v in module.state_dict().items()})"


@feature(4, "before")
def setting_changed(d):
    return d.parts("scale") and f"module.scale0 = {d.rng.choice([0.25, 2.0, 3])}"


@feature(1, "before")
def rate(d):
    changes = ["optimizer.param_groups[0]['lr'] = 0.5", "optimizer.param_groups[0]['weight_decay'] = 0.1"]
    if d.options["accumulation"] == 1:  # else Adam's error for a state without its maximum is one that eager has at a later call
        changes.append("optimizer.param_groups[0]['amsgrad'] = True")
    return d.rng.choice(changes)


@feature(1, "before")
def parameter_hook(d):
    return d.rng.random() < 0.4 and f"handles.append({d.outside('parameter')}.register_hook(lambda g: g * 2))"


# --- after a call, before its backward --------------------------------------------------------------------------

@feature(3, "after")
def result_written(d):
    """Eager detaches no view in place; a result of ours is one only if something shares its memory."""
    i = d.rng.randrange(len(d.outputs))
    is_view = d.tensor(d.outputs[i])._is_view()
    return f"ys[{i}]" + d.rng.choice([".detach().mul_(2)", ".mul_(2)", ".data.zero_()", ".data.add_(1)" if is_view else ".detach_()"])


@feature(1, "after")
def again(d):
    return f"ys[{d.rng.randrange(len(d.outputs))}] = ys[{d.rng.randrange(len(d.outputs))}] * 2"
