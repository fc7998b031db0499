# SPDX-License-Identifier: Apache-2.0
"""_core.Watch: each thing that it watches counts as changed once it is, and again as unchanged for a new watch."""

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
