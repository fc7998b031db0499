# SPDX-License-Identifier: Apache-2.0
"""Functions and methods of Python's standard library, read from its sources: the texts that the recipes train on."""

import ast
import pathlib
import sysconfig
from typing import NamedTuple

_LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip"}


class Function(NamedTuple):
    """A function that has a docstring."""

    package: str    # the module's first name
    signature: str  # def name(arguments):
    code: str       # the whole function without its docstring
    sentence: str   # the docstring's first paragraph


def read():
    """Returns (to train on, held out): lists of Function. Every fifth package is held out; each sentence is there once."""
    folder, found = pathlib.Path(sysconfig.get_paths()["stdlib"]), {}
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder)
        if _LEFT_OUT.isdisjoint(place.parts):
            for function in _functions(place.parts[0].removesuffix(".py"), path.read_bytes()):
                found.setdefault(function.sentence, function)
    held_out = set(sorted({function.package for function in found.values()})[::5])
    return ([f for f in found.values() if f.package not in held_out], [f for f in found.values() if f.package in held_out])


def _functions(package, source):
    lines, scopes = source.decode("utf-8", "replace").splitlines(), [ast.parse(source)]
    for scope in scopes:  # grows: the module, then its classes
        for node in scope.body:
            if isinstance(node, ast.ClassDef):
                scopes.append(node)
            text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
            sentence = " ".join((text or "").partition("\n\n")[0].split())
            if len(sentence) >= 30:
                head, body = lines[node.lineno - 1:node.body[0].lineno - 1], lines[node.body[0].end_lineno:node.end_lineno]
                yield Function(package, " ".join(" ".join(head).split()), "\n".join(head + body), sentence)
