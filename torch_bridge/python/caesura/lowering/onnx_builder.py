# SPDX-License-Identifier: Apache-2.0
"""Builds ONNX graphs: nodes, constants, and the shapes that SymInts stand for."""

import functools
import operator
from dataclasses import dataclass, field

import onnx
import torch
from onnx import TensorProto, helper

from caesura.capture.compat import TracingContext, guard_or_false
from caesura.dtypes import NUMBERS
from caesura.lowering.registry import Refused

OPSET = 23
DOMAIN = "ai.caesura"
SOURCE = "ai.caesura.source"  # the key under which a node names the user's line
PHASE = "ai.caesura.phase"  # and the part of a training step that it belongs to; none: the forward

# Up to bfloat16: a captured graph has no kernels for the later ones.
ONNX_TYPES = {getattr(torch, name): number for name, number in NUMBERS.items() if number <= TensorProto.BFLOAT16}


def onnx_type(dtype: torch.dtype) -> int:
    if dtype not in ONNX_TYPES:
        raise Refused(f"{dtype} has no kernels")
    return ONNX_TYPES[dtype]


@dataclass(frozen=True, eq=False)
class Scalar:
    """A number that the capture knows by a symbol (a SymInt or SymFloat): the name of an int64 or float64 scalar in the graph,
    and the symbol. A rule passes it on as an input where the op takes one.

    A rule that uses it as a number (an attribute, arithmetic, an index) gets the value that it has in this call, and the
    capture is from then on one for this value: another value is captured anew. A comparison is guarded as such.
    """
    name: str
    symbol: object

    def number(self):
        symbol = self.symbol
        if isinstance(symbol, (torch.SymInt, torch.SymFloat)):
            if not symbol.node.expr.is_number and TracingContext.try_get() is None:  # nobody would notice another value
                raise Refused("a number that changes, where the op takes a fixed one")
            symbol = int(symbol) if isinstance(symbol, torch.SymInt) else float(symbol)
        return symbol

    def __eq__(self, other):
        return guard_or_false(self.symbol == (other.symbol if isinstance(other, Scalar) else other))

    def __hash__(self):
        return hash(self.name)

    def __bool__(self):
        return self != 0

    def __index__(self):
        return operator.index(self.number())

    def __int__(self):
        return int(self.number())

    def __float__(self):
        return float(self.number())

    @property
    def dtype(self):
        return torch.float64 if isinstance(self.symbol, (torch.SymFloat, float)) else torch.int64


def _of_numbers(function):
    return lambda *values: function(*map(number, values))


def _compared(compare):
    return lambda a, b: bool(compare(a.symbol, b.symbol if isinstance(b, Scalar) else b))


def _reversed(function):
    return lambda a, b: function(number(b), number(a))


for _name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow"):
    setattr(Scalar, f"__{_name}__", _of_numbers(getattr(operator, _name)))
    setattr(Scalar, f"__r{_name}__", _reversed(getattr(operator, _name)))
for _name in ("neg", "abs"):
    setattr(Scalar, f"__{_name}__", _of_numbers(getattr(operator, _name)))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Scalar, f"__{_name}__", _compared(getattr(operator, _name)))


def number(value):
    """`value` with numbers in place of Scalars, also within a list or tuple."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(number, value))
    return value.number() if isinstance(value, Scalar) else value


@dataclass(frozen=True)
class Tensor:
    """A tensor of the graph: its name, dtype and shape (ints and SymInts)."""
    name: str
    dtype: torch.dtype
    shape: tuple

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass
class Writer:
    """Collects the nodes of one graph. `origin` holds what results were made from: of Reshape the first tensor of a chain
    and the last one, of Transpose the tensor and the permutation, of Expand the tensor."""
    nodes: list = field(default_factory=list)
    initializers: list = field(default_factory=list)
    stated: list = field(default_factory=list)  # results whose dtype and shape no schema gives
    left_statistics: set = field(default_factory=set)  # FX's batch norms whose running statistics a training session updates
    origin: dict = field(default_factory=dict)
    _constants: dict = field(default_factory=dict)
    _known: dict = field(default_factory=dict)  # SymInt's expression to the scalar that holds its value
    _seen: dict = field(default_factory=dict)  # SymInt's expression to (tensor, axis) that has that size
    _count: int = 0
    source: str = ""
    phase: str = ""

    # --- nodes ---
    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"

    def begin_at(self, other: "Writer") -> None:
        """Makes later names differ from all names that `other` has given."""
        self._count = max(self._count, other._count)

    def op(self, op_type: str, inputs, outputs: int = 1, domain: str = "", **attributes):
        """Writes a node; gives the output's name, or a list of names where `outputs` is not 1.

        An input may be a Tensor, a Scalar, a name or None. Attributes that are None are left out.
        """
        made = [self.fresh(op_type.lower()) for _ in range(outputs)]
        self.node(op_type, inputs, made, domain, **attributes)
        return made[0] if outputs == 1 else made

    def node(self, op_type: str, inputs, outputs, domain: str = "", **attributes) -> None:
        """Writes a node whose outputs have these names, "" for absent ones."""
        attributes = {k: number(v) for k, v in attributes.items() if v is not None}
        names = [self.name(i) for i in inputs]
        self.add(helper.make_node(op_type, names, outputs, name=outputs[0], domain=domain, **attributes))

    def add(self, node: onnx.NodeProto) -> None:
        """Takes a node that is written, as one of the line that `source` names and of `phase`."""
        for key, value in ((SOURCE, self.source), (PHASE, self.phase)):
            if value:
                node.metadata_props.add(key=key, value=value)
        self.nodes.append(node)

    def stop(self, values, released) -> None:
        """Writes a yield that hands out `values` and releases the inputs `released`."""
        names = [self.name(v) for v in released]
        self.add(helper.make_node("YieldOp", [self.name(v) for v in values], [], name=self.fresh("yield"), domain=DOMAIN,
                                  released_inputs=names or None))

    def make(self, op_type: str, inputs, dtype: torch.dtype, shape, **attributes) -> Tensor:
        return Tensor(self.op(op_type, inputs, **attributes), dtype, tuple(shape))

    def name(self, value) -> str:
        if value is None:
            return ""
        return value if isinstance(value, str) else value.name

    # --- constants ---
    def constant(self, value, dtype: torch.dtype = torch.int64) -> Tensor:
        """A constant of the graph from a number, a list or a tensor; equal small ones are shared. A Scalar is an input."""
        if isinstance(value, Scalar):
            return self.cast(self.scalar(value), dtype)
        value = number(value)
        tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=dtype)
        tensor = tensor.detach().cpu().contiguous()
        raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        key = (tensor.dtype, tuple(tensor.shape), raw) if len(raw) <= 1024 else None
        if key is None or key not in self._constants:
            name = self.fresh("constant")
            self.initializers.append(helper.make_tensor(name, onnx_type(tensor.dtype), list(tensor.shape), raw, raw=True))
            made = Tensor(name, tensor.dtype, tuple(tensor.shape))
            if key is None:
                return made
            self._constants[key] = made
        return self._constants[key]

    def full(self, value, dtype: torch.dtype, shape) -> Tensor:
        """A tensor of `shape` that holds `value` everywhere."""
        if isinstance(value, Scalar):
            return self.make("Expand", [self.constant(value, dtype), self.ints(shape)], dtype, shape)
        fill = torch.full((1,), value, dtype=dtype)
        made = helper.make_tensor("value", onnx_type(dtype), [1], fill.view(torch.uint8).numpy().tobytes(), raw=True)
        return self.make("ConstantOfShape", [self.ints(shape)], dtype, shape, value=made)

    # --- shapes ---
    def ints(self, values) -> Tensor:
        """An int64 vector of ints, SymInts of tensors' shapes, and Scalars."""
        values = list(values)
        if all(isinstance(v, int) for v in values):
            return self.constant(torch.tensor(values, dtype=torch.int64))
        parts = [self.constant([v]) if isinstance(v, int) else self.op("Unsqueeze", [self.scalar(v), self.constant([0])])
                 for v in values]
        return Tensor(self.op("Concat", parts, axis=0), torch.int64, (len(values),))

    def scalar(self, value) -> Tensor:
        """A scalar: an int64, or a float64 for a Scalar that is one."""
        if isinstance(value, int):
            return self.constant(value)
        if isinstance(value, Scalar):
            return Tensor(value.name, value.dtype, ())
        return Tensor(self._size(value.node.expr), torch.int64, ())

    def _size(self, size) -> str:
        """The name of a size that is known, or a sum or product of such."""
        if size.is_number:
            return self.constant(int(size)).name
        if size not in self._known:
            if size in self._seen:
                return self._read_off(size, *self._seen[size])
            if not (size.is_Add or size.is_Mul):
                raise Refused(f"the size {size} is known only at run time")
            op = "Add" if size.is_Add else "Mul"
            self._known[size] = functools.reduce(lambda a, b: self.op(op, [a, b]), map(self._size, size.args))
        return self._known[size]

    def know(self, symbol, name: str) -> None:
        """Records that `name` holds the value of this SymInt."""
        self._known.setdefault(symbol.node.expr, name)

    def know_shape(self, tensor: Tensor) -> None:
        """The sizes of `tensor`, products of symbols too, can be read off it; they are where somebody needs them."""
        for axis, dim in enumerate(tensor.shape):
            size = expression(dim)
            if not isinstance(size, int) and not size.is_number:
                self._seen.setdefault(size, (tensor, axis))

    def _read_off(self, size, tensor: Tensor, axis: int) -> str:
        self._known[size] = self.size_of(tensor, axis).name
        return self._known[size]

    def size_of(self, tensor: Tensor, axis: int) -> Tensor:
        """The tensor's size along an axis, an int64 scalar."""
        dims = self.op("Shape", [tensor], start=axis, end=axis + 1)
        return Tensor(self.op("Squeeze", [dims, self.constant([0])]), torch.int64, ())

    def given_size(self, size) -> Tensor:
        """A size as the first tensors tell it that have it: the graph's inputs."""
        if size in self._seen and size.is_Symbol:
            return self.size_of(*self._seen[size])
        if size.is_Add or size.is_Mul:
            parts = [self.given_size(part) for part in size.args]
            op = "Add" if size.is_Add else "Mul"
            return functools.reduce(lambda a, b: Tensor(self.op(op, [a, b]), torch.int64, ()), parts)
        return Tensor(self._size(size), torch.int64, ())

    # --- dtypes ---
    def cast(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        if tensor.dtype == dtype:
            return tensor
        return self.make("Cast", [tensor], dtype, tensor.shape, to=onnx_type(dtype))

    # --- what most families need ---
    def reshape(self, tensor: Tensor, shape) -> Tensor:
        """`tensor` in another shape. A chain of reshapes starts from its first tensor, or from the one after a
        transpose (a copy)."""
        shape, given = tuple(shape), tensor
        kind, source, _ = self.origin.get(tensor.name, (None, None, None))
        if kind == "Reshape" and (same_shape(source.shape, shape) or self.origin.get(source.name, (None,))[0] != "Transpose"):
            tensor = source
        if same_shape(tensor.shape, shape):
            return tensor
        made = self.make("Reshape", [tensor, self.ints(shape)], tensor.dtype, shape, allowzero=1)
        self.origin[made.name] = ("Reshape", tensor, given)
        return made

    def transpose(self, tensor: Tensor, permutation) -> Tensor:
        """Axes in the order of `permutation`; transposes of transposes become one, or none."""
        permutation = tuple(permutation)
        kind, source, earlier = self.origin.get(tensor.name, (None, None, None))
        if kind == "Transpose":
            tensor, permutation = source, tuple(earlier[p] for p in permutation)
        if permutation == tuple(range(tensor.rank)):
            return tensor
        made = self.make("Transpose", [tensor], tensor.dtype, [tensor.shape[p] for p in permutation], perm=permutation)
        self.origin[made.name] = ("Transpose", tensor, permutation)
        return made

    def rows_of(self, tensor: Tensor):
        """The tensor that was flattened into the matrix `tensor`, keeping its last axis; None if there is none."""
        kind, *earlier = self.origin.get(tensor.name, (None, None, None))
        if kind != "Reshape" or tensor.rank != 2:
            return None
        return next((e for e in earlier if e.rank > 2 and same_dim(e.shape[-1], tensor.shape[-1])), None)


def same_dim(a, b) -> bool:
    """True if two sizes are known to be equal; adds no guard."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return expression(a) == expression(b)


def expression(dim):
    if isinstance(dim, Scalar):
        dim = dim.symbol
    return dim if isinstance(dim, int) else dim.node.expr


def same_shape(a, b) -> bool:
    return len(a) == len(b) and all(same_dim(x, y) for x, y in zip(a, b))


def positive(axis: int, rank: int) -> int:
    return axis + max(rank, 1) if axis < 0 else axis


def with_bodies(nodes):
    """ONNX nodes, and those in the graphs that they have as attributes."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from with_bodies(attribute.g.node)


def make_model(writer: Writer, inputs, outputs) -> onnx.ModelProto:
    """The graph as a model. `inputs`: Tensors and Scalars; `outputs`: Tensors."""
    def info(value):
        if isinstance(value, Scalar):
            return helper.make_tensor_value_info(value.name, onnx_type(value.dtype), [])
        dims = [d if isinstance(d, int) else str(d) for d in map(expression, value.shape)]
        return helper.make_tensor_value_info(value.name, onnx_type(value.dtype), dims)
    graph = helper.make_graph(writer.nodes, "captured", [info(v) for v in inputs], [info(v) for v in outputs],
                              writer.initializers, value_info=[info(v) for v in writer.stated])
    domains = dict.fromkeys((DOMAIN, *(node.domain for node in with_bodies(writer.nodes) if node.domain)))
    opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
