# SPDX-License-Identifier: Apache-2.0
"""The options of training are those of one table: names, defaults, choices, and one sentence for each."""

import inspect
import re
import shutil
import subprocess
import typing

import onnx.parser
import pytest

import caesura
from caesura import _core

ROWS = {row["name"]: row for row in _core.training_options()[0]}
OF_STEPS = {"fed", "join_ranks", "rank_parts", "unbiased_statistics"}  # that compile_step alone sets
TAKERS = [caesura.TrainingSession, caesura.TrainingSession.open, caesura.Ranks, caesura.compile_step]
COMMAND = shutil.which("caesura")


def words(text):
    return re.sub(r"\s+", " ", re.sub(r'["`]', "", text))


def parameters(item):
    function = item.__init__ if inspect.isclass(item) else item
    return {name: p for name, p in inspect.signature(function).parameters.items() if name in ROWS}


def test_each_option_is_taken():
    assert set().union(*map(parameters, TAKERS)) | OF_STEPS == set(ROWS)


@pytest.mark.parametrize("item", TAKERS)
def test_docstrings_begin_with_the_tables_sentence(item):
    text = inspect.getdoc(item)
    for name in parameters(item):
        entry = re.search(rf"^ +{name}: ((?:.*\n)(?: {{8,}}.*\n)*)", text + "\n", re.M)
        sentence = words(ROWS[name]["sentence"])
        assert words(entry[1]).startswith(sentence.removesuffix(".")), f"{name}: {sentence}"


@pytest.mark.parametrize("item", TAKERS)
def test_defaults_are_the_tables(item):
    for name, parameter in parameters(item).items():
        default = [] if parameter.default == () else "" if parameter.default is None else parameter.default
        assert default == ROWS[name]["default"], name


def test_choices_are_the_tables():
    hints = {**inspect.get_annotations(caesura.TrainingSession.__init__), **inspect.get_annotations(caesura.Ranks)}
    literals = {name: next((t for t in typing.get_args(hint) if typing.get_origin(t) is typing.Literal), hint)
                for name, hint in hints.items() if ROWS.get(name, {}).get("choices")}
    assert len(literals) == 6
    for name, literal in literals.items():
        assert typing.get_args(literal) == tuple(filter(None, ROWS[name]["choices"])), name


@pytest.mark.skipif(COMMAND is None, reason="the caesura command is not on PATH (. build/activate)")
def test_the_commands_help_has_the_tables_sentences():
    text = words(subprocess.run([COMMAND, "train", "--help"], capture_output=True, text=True, check=True).stdout)
    spelled = {"clip_norm": "clip", "accumulation_steps": "accumulate"}
    for name, row in ROWS.items():
        flag = f"--{spelled.get(name, name).replace('_', '-')} "
        if flag in text and name != "target":  # the command's is an array of the data
            assert words(row["sentence"]).removesuffix(".") in text, name


def test_two_options_that_do_not_go_together_are_refused_by_name():
    for one, other, among_ranks, reason in _core.training_options()[1]:
        assert {one.split()[0], other.split()[0]} <= set(ROWS) and reason and isinstance(among_ranks, bool)
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        net (float[N, 2] x) => (float[N, 2] y) <float[2, 2] w = {1, 2, 3, 4}> { y = MatMul (x, w) }""")
    with pytest.raises(ValueError, match="commit eager-consume and clip_norm do not go together: the global norm needs all"):
        caesura.TrainingSession(model, commit="eager-consume", clip_norm=1.0)
