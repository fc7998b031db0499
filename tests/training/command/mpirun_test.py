# SPDX-License-Identifier: Apache-2.0
"""`caesura train` as ranks of one run, under Open MPI's mpirun."""

import os
import shutil
import signal

import numpy as np
import pytest
import safetensors.numpy
from command_test import classifier, pytestmark as needs_command, run, train  # noqa: F401
from snapshot_test import started

pytestmark = [needs_command, pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI's mpirun is not installed")]
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def _arguments(folder, name, *more, batch=24):
    return ["train", folder / "net.onnx", "--data", folder / "data.npz", "--feed", "x=points", "--target", "labels", "--seed", "3",
            "--checkpoint", folder / name, "--lr", "1e-2", "--threads", "1", "--batch", batch, *more]


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_do_what_one_process_does(classifier, ranks):  # noqa: F811
    run(*_arguments(classifier, "one", "--steps", "50", "--accumulate", "2", "--log", classifier / "one.csv"))
    done = run(*_arguments(classifier, "ranks", "--steps", "50", "--accumulate", "2", "--log", classifier / "ranks.csv", "--nproc",
                           ranks, "--bucket-bytes", "100"), **AS_ROOT)
    assert f"; {ranks} ranks" in done.stdout and done.stdout.count("50 updates") == 1
    one, ours = (safetensors.numpy.load_file(classifier / name) for name in ("one", "ranks"))
    assert one.keys() == ours.keys()
    for name in one:
        if name.startswith("parameter"):
            np.testing.assert_allclose(ours[name], one[name], rtol=1e-4, atol=1e-6, err_msg=name)
    losses = [np.genfromtxt(classifier / f"{name}.csv", delimiter=",", skip_header=1)[:, 2] for name in ("one", "ranks")]
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_a_run_goes_on_with_another_number_of_ranks(classifier):  # noqa: F811
    run(*_arguments(classifier, "straight", "--steps", "40"))
    for ranks, steps in ((4, 15), (1, 25), (2, 40)):
        done = run(*_arguments(classifier, "parts", "--steps", steps, "--resume", "--nproc", ranks), **AS_ROOT)
    assert "going on after update 25" in done.stdout
    straight, parts = (safetensors.numpy.load_file(classifier / name) for name in ("straight", "parts"))
    for name in straight:
        if name.startswith("parameter"):
            np.testing.assert_allclose(parts[name], straight[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_run_with_divided_state_goes_on_with_another_number_of_ranks(classifier):  # noqa: F811
    run(*_arguments(classifier, "straight", "--steps", "40", "--clip", "1"))
    for ranks, shard, steps in ((4, 1, 15), (1, 0, 20), (2, 1, 30), (4, 0, 40)):
        done = run(*_arguments(classifier, "parts", "--steps", steps, "--clip", "1", "--resume", "--nproc", ranks, "--shard", shard),
                   **AS_ROOT)
        assert ranks == 1 or f"; {ranks} ranks, each with " in done.stdout
    straight, parts = (safetensors.numpy.load_file(classifier / name) for name in ("straight", "parts"))
    assert straight.keys() == parts.keys()
    for name in straight:
        np.testing.assert_allclose(parts[name], straight[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_ordered_sums_have_the_same_bits_at_any_number_of_ranks(classifier):  # noqa: F811
    common = ("--clip", "1", "--logical-shards", "4")
    run(*_arguments(classifier, "one", "--steps", "40", "--log", classifier / "one.csv", *common))
    for ranks, steps in ((4, 15), (1, 25), (2, 40)):
        run(*_arguments(classifier, "parts", "--steps", steps, "--log", classifier / "parts.csv", "--resume", "--nproc", ranks,
                        *common), **AS_ROOT)
    one, parts = (safetensors.numpy.load_file(classifier / name) for name in ("one", "parts"))
    assert one.keys() == parts.keys()
    assert all(np.array_equal(parts[name], one[name]) for name in one)
    losses = [np.genfromtxt(classifier / f"{name}.csv", delimiter=",", skip_header=1)[:, 2] for name in ("one", "parts")]
    assert len(losses[0]) == 40 and np.array_equal(*losses)
    wrong = run(*_arguments(classifier, "c", "--logical-shards", "5"), expect=1)
    assert "5 logical shards are equal parts of each batch, which 24 examples do not have" in wrong.stderr
    wrong = run(*_arguments(classifier, "c", "--logical-shards", "12", "--nproc", "2"), expect=1, **AS_ROOT)
    assert "expected 2 ranks times a power of two" in wrong.stderr


def test_a_signal_stops_all_ranks_after_one_update(classifier):  # noqa: F811
    with started(*_arguments(classifier, "c", "--steps", "1000000", "--nproc", "2"), env=os.environ | AS_ROOT) as process:
        process.stderr.readline()  # the progress of the first update
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert errors.count("stopped after update") == 2, errors
    with safetensors.safe_open(classifier / "c", "np") as file:
        updates = int(file.metadata()["property/session.updates"].split(":")[1])
    assert errors.count(f"stopped after update {updates};") == 2


def test_a_batch_without_equal_parts(classifier):  # noqa: F811
    wrong = run(*_arguments(classifier, "c", "--steps", "2", "--nproc", "2", batch=25), expect=1, **AS_ROOT)
    assert "2 ranks take equal parts of each batch, which 25 examples do not have" in wrong.stderr
