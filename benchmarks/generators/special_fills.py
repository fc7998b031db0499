# SPDX-License-Identifier: Apache-2.0
"""Draws special inputs for operator samples: zeros, ties, small integers, infinities, NaN, denormals, other sizes."""

import math
import random

import torch

VALUES = ("zeros", "ties", "small integers", "infinities", "NaN", "denormals")
SIZES = ("empty", "of size 1")


def fills_of(tensors, count, place):
    """`count` fills of a sample's tensors: (kind, tensors), each kind at most once. place: a text that says which sample and seed
    it is; the same text gives the same fills. Sparse tensors stay as they are."""
    if any(t.layout != torch.strided for t in tensors):
        yield "", tensors
        return
    kinds = random.Random(place).sample(VALUES + SIZES, count)
    for kind in kinds:
        drawn = random.Random(f"{place}/{kind}")
        made = _resized(tensors, int(kind == "of size 1"), drawn) if kind in SIZES else _filled(tensors, kind, drawn)
        if made is not None:
            yield kind, made


def _resized(tensors, size, drawn):
    """The tensors with one of their sizes replaced, in all of them alike so that they still fit; None if there is no other size."""
    sizes = sorted({s for t in tensors for s in t.shape if s > size})
    if not sizes:
        return None
    old = drawn.choice(sizes)
    made = []
    for t in tensors:
        for axis in range(t.dim()):
            t = t.narrow(axis, 0, size) if t.shape[axis] == old else t
        made.append(t.detach().clone())
    return made


def _filled(tensors, kind, drawn):
    """Copies with special numbers in some or all places: of floating tensors; of integers and bools, other orders of their own."""
    generator = torch.Generator().manual_seed(drawn.getrandbits(40))
    floats = [i for i, t in enumerate(tensors) if (t.is_floating_point() or t.is_complex()) and t.numel()]
    chosen = {i for i in floats if drawn.random() < 0.75} or set(drawn.sample(floats, min(len(floats), 1)))
    if not chosen:
        return None
    made = [t.detach().clone() for t in tensors]
    for i, t in enumerate(made):
        if i in chosen:
            parts = torch.view_as_real(t) if t.is_complex() else t
            share = drawn.choice((0.1, 0.3, 0.6, 1.0))
            places = torch.rand(parts.shape, generator=generator) < share
            if not places.any():  # one at least
                places.view(-1)[drawn.randrange(parts.numel())] = True
            parts.copy_(torch.where(places, _numbers(kind, parts, generator), parts))
        elif kind == "ties" and i not in floats and t.numel():
            t.copy_(t.flatten()[torch.randint(t.numel(), t.shape, generator=generator)])
    return made


def _numbers(kind, like, generator):
    def of(*numbers):
        choices = torch.tensor(numbers, dtype=like.dtype)
        return choices[torch.randint(len(numbers), like.shape, generator=generator)]

    if kind == "zeros":
        return of(0.0, -0.0)
    if kind == "ties":
        own = like.flatten()[torch.randint(like.numel(), (2,), generator=generator)]
        return of(*own.tolist())
    if kind == "small integers":
        return of(-3, -2, -1, 0, 1, 2, 3)
    if kind == "infinities":
        return of(math.inf, -math.inf)
    if kind == "NaN":
        return of(math.nan)
    least = torch.finfo(like.dtype).smallest_normal
    # So small that the inverse of each is infinite by far: at the bound the order of factors decides.
    return of(least / 2**10, -least / 2**10, least / 2**20, -least / 2**20)
