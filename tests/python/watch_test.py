# SPDX-License-Identifier: Apache-2.0
"""_core.Watch: each thing that it watches counts as changed once it is, and again as unchanged for a new watch."""

import collections
import types

import pytest

from caesura import _core


def functions():
    class Base:
        pass

    class Derived(Base):
        def method(self):
            return 1

    def function(a=1, *, b=2):
        return a + b

    def enclosing():
        held = []
        return lambda: held

    return Base, Derived, function, enclosing()


BASE, DERIVED, FUNCTION, CLOSURE = functions()
OTHER = (lambda a=1, *, b=2: a - b).__code__
CELL, EMPTY = CLOSURE.__closure__[0], types.CellType()
LIST, DICT = [[], []], {"a": [], "b": []}


class Object:
    pass


OBJECT = Object()
RETURNED = [3]
CHANGES = {
    "an attribute of a class": (lambda w: w.class_(DERIVED), lambda: setattr(DERIVED, "method", len)),
    "a new attribute of a class": (lambda w: w.class_(DERIVED), lambda: setattr(DERIVED, "more", 1)),
    "an attribute of a base": (lambda w: w.class_(DERIVED), lambda: setattr(BASE, "more", 1)),
    "a function's code": (lambda w: w.function(FUNCTION), lambda: setattr(FUNCTION, "__code__", OTHER)),
    "a function's defaults": (lambda w: w.function(FUNCTION), lambda: setattr(FUNCTION, "__defaults__", (3,))),
    "no defaults": (lambda w: w.function(FUNCTION), lambda: setattr(FUNCTION, "__defaults__", None)),
    "a function's defaults of keywords": (lambda w: w.function(FUNCTION), lambda: setattr(FUNCTION, "__kwdefaults__", {"b": 3})),
    "a cell": (lambda w: w.cell(CELL), lambda: setattr(CELL, "cell_contents", [])),
    "a cell that becomes empty": (lambda w: w.cell(CELL), lambda: delattr(CELL, "cell_contents")),
    "a cell that was empty": (lambda w: w.cell(EMPTY), lambda: setattr(EMPTY, "cell_contents", None)),
    "an element": (lambda w: w.elements(LIST), lambda: LIST.__setitem__(0, [])),
    "a list's length": (lambda w: w.elements(LIST), lambda: LIST.append(1)),
    "a value of a dict": (lambda w: w.item(DICT, "a", DICT["a"]), lambda: DICT.__setitem__("a", [])),
    "a key": (lambda w: w.lacks(DICT, "new"), lambda: DICT.__setitem__("new", 1)),
    "a dict's length": (lambda w: w.length(DICT), lambda: DICT.popitem()),
    "a dict's order": (lambda w: w.whole(DICT), lambda: DICT.update(a=DICT.pop("a"))),
    "an object's class": (lambda w: w.class_of(OBJECT), lambda: setattr(OBJECT, "__class__", type("Other", (Object,), {}))),
    "what a call returns": (lambda w: w.returns(RETURNED.copy, [3]), lambda: RETURNED.append(4)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_seen(what):
    begin, change = CHANGES[what]
    watch = _core.Watch()
    begin(watch)
    assert watch.unchanged() and watch.unchanged()
    change()
    assert not watch.unchanged() and not watch.unchanged()


def test_a_class_that_was_changed_is_watched_anew():
    class Changing:
        pass

    for i in range(20):
        watch = _core.Watch()
        watch.class_(Changing)
        assert watch.unchanged()
        Changing.number = i
        assert not watch.unchanged()


def test_a_class_whose_versions_python_does_not_count_any_more_counts_as_changed():
    """Python 3.13 gives a class a thousand numbers for its versions; the changes after those are told to nobody."""
    class Changing:
        number = 0

    for i in range(3000):
        Changing.number = i
        assert Changing().number == i
    watch = _core.Watch()
    watch.class_(Changing)
    watch.unchanged()
    Changing.number = -1
    assert not watch.unchanged()


GLOBAL = 0


def set_global(value):
    global GLOBAL
    GLOBAL = value


def held_by(kind):
    """A dict that another thing keeps its names or items in, and what sets the one called GLOBAL."""
    if kind == "a module":
        return globals(), set_global
    if kind == "an object":
        held = Object()
        held.GLOBAL = 0
        return vars(held), lambda value: setattr(held, "GLOBAL", value)
    if kind == "an object whose class writes":
        class Writes:
            def __init__(self):
                self.GLOBAL = 0

            def write(self, value):
                self.GLOBAL = value

        held = Writes()
        return vars(held), held.write
    held = collections.OrderedDict(GLOBAL=0) if kind == "an OrderedDict" else {"GLOBAL": 0}
    return held, lambda value: held.__setitem__("GLOBAL", value) if kind == "a dict's method" else held.update(GLOBAL=value)


@pytest.mark.parametrize("kind", ["a module", "an object", "an object whose class writes", "an OrderedDict", "a dict's method", "a dict"])
def test_each_of_many_writes_is_seen(kind):
    """Python writes in another way once it has seen the same write several times."""
    held, write = held_by(kind)
    watches = []
    for i in range(100):
        write(i)
        watch = _core.Watch()
        watch.item(held, "GLOBAL", i)
        assert watch.unchanged() and watch.unchanged()
        watches.append(watch)
        write(i)
        assert watch.unchanged()
        held["other"] = i
        assert watch.unchanged()
        write(-1)
        assert not watch.unchanged()
    write(99)
    assert [w.unchanged() for w in watches] == [False] * 99 + [True]


@pytest.mark.parametrize("change", [
    lambda d: d.clear(), lambda d: d.pop("a"), lambda d: d.popitem(), lambda d: d.setdefault("c", 1), lambda d: d.update(c=1),
    lambda d: d.__delitem__("a"), lambda d: d.__ior__({"a": 2}),
], ids=["clear", "pop", "popitem", "setdefault", "update", "del", "|="])
def test_each_way_to_change_a_dict_is_seen(change):
    held = {"a": [], "b": []}
    watch = _core.Watch()
    watch.whole(held)
    assert watch.unchanged() and watch.unchanged()
    change(held)
    assert not watch.unchanged()


def test_a_dict_at_the_place_of_one_that_is_gone_is_watched_by_itself():
    places = set()
    for i in range(100):
        held = {"a": i}
        places.add(id(held))
        watch = _core.Watch()
        watch.item(held, "a", i)
        assert watch.unchanged() and watch.unchanged()
        held["a"] = -1
        assert not watch.unchanged()
    assert len(places) < 100
