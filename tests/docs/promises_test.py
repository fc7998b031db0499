# SPDX-License-Identifier: Apache-2.0
"""The promises of the pages about ranks and wrap, each with the test that holds it."""

import functools
import pathlib
import re

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
RANKS, FRONTENDS = "tests/python/ranks", "tests/python/frontends"
INTEGRATIONS = "tests/python/integrations/integrations_test.py"
STEP, AGREE, DIFFER = f"{RANKS}/step_ranks_test.py", f"{RANKS}/rank_agreement_test.py", f"{RANKS}/rank_differences_test.py"
USES, REFUSE = f"{RANKS}/rank_uses_test.py", f"{RANKS}/rank_refusals_test.py"
PARALLEL, DDP, MPI = f"{RANKS}/parallel_step_test.py", f"{RANKS}/ranks_test.py", "tests/training/command/mpirun_test.py"
CUDA, NORMS = "tests/python/cuda/cuda_ranks_test.py", "tests/python/capture/sync_batch_norm_test.py"
TWICE = "tests/python/rewrites"
WRAP, CALLS, FUSE = f"{FRONTENDS}/wrap_test.py", f"{FRONTENDS}/wrap_calls_test.py", f"{FRONTENDS}/fuse_test.py"

# By page in docs/: words of it, as they stand there, and a test: "Suite.Name" of C++, or "file::function" of Python.
PROMISES = {
    "guides/step_ranks.md": [
        ("have the same bits after each step", f"{STEP}::as_eager"),
        ("`ranks=caesura.Ranks(group)` names another", f"{AGREE}::members"),
        ("that process trains by itself", f"{STEP}::_compiled_alone"),
        ("the losses of 20 steps are those of two ranks on CPUs", f"{CUDA}::as_on_cpus"),
        ("Beside a group of NCCL's, which has no tensors of the host, the first step makes one of Gloo's", f"{CUDA}::beside_nccl"),
        ("Two ranks with one GPU are refused", f"{CUDA}::with_one_gpu"),
        ("So are `shard` and modules of `parallelize_module` there", f"{CUDA}::with_divided_state"),
        ("the run is the same at any number of ranks, up to the rounding of sums", f"{MPI}::test_ranks_do_what_one_process_does"),
        ("A checkpoint of four ranks goes on with one or two", f"{MPI}::test_a_run_goes_on_with_another_number_of_ranks"),
        ("More ranks than GPUs, `--shard` and `--logical-shards` are refused then", "tests/training/command/cuda_test.py"),
        ("If a rank runs out of batches before others, all ranks raise `StepRefused` at once", f"{REFUSE}::batches_end"),
        ("Nothing has changed by that call", f"{REFUSE}::batches_end"),
        ("If its process ends, they raise a `RankFailure` at once", f"{REFUSE}::loop_ends"),
        ("If it waits elsewhere, they raise it at the time-out, and it says of which rank", f"{REFUSE}::loop_ends"),
        ("each token counts alike, on whatever rank it is", f"{STEP}::tokens"),
        ("and refuses others and `accumulation_steps`", f"{STEP}::tokens"),
        ("A rank whose batch has no token adds nothing. If no rank has one, the loss is NaN and the gradients are zero",
         f"{USES}::no_tokens"),
        ("gradients are exchanged in bfloat16, which halves the bytes", f"{STEP}::compressed"),
        ("is off by up to 2^-8 of the sum of the ranks' absolute values", "Ranks.ExchangeGradientsInBFloat16"),
        ("It is refused with `shard` and `logical_shards`", "Ranks.OptionsThatDoNotFitAreRefused"),
        ("Then parameters, losses of updates and dropout have the same bits at any N", "OrderedRanks.HaveTheBitsOfOne"),
        ("Any number of ranks goes on from a checkpoint", "OrderedRanks.GoOnFromTheCheckpointOfAnotherNumber"),
        ("a K that is not N times a power of two", "OrderedRanks.AnyNumberTimesAPowerOfTwo"),
        ("`regroup` with another number of ranks is refused, too: save, and go on", "OrderedRanks.AnotherNumberOfRanksOrShardsIsRefused"),
        ("They have the same bits where the communicator sums in the same order", "Shards.GiveTheBitsOfUndividedState"),
        ("Clipping and a scaled loss go by the sum of all parts' norms", "Shards.ClippingAndAScaledLoss"),
        ("is known before the first step: `session.memory(feeds)`", "Shards.MemoryIsToldBeforeTheFirstStepAndKept"),
        ("`shard=2`, ZeRO's second stage, divides these, too", "Shards.DividedAccumulators"),
        ("each rank learns whether it is there", "Shards.AFileThatCannotBeWrittenIsAnErrorOnAllRanks"),
        ("so any number of ranks restores it, with or without `shard=1`", "Shards.AnyNumberOfRanksReadsACheckpoint"),
        ("`step.gather_state()`, which all ranks call, puts them there", f"{STEP}::divided"),
        ("place of another one of its name is refused", f"{AGREE}::other_divided"),
        ("reading or setting it is refused", "Shards.StateOfOneParameterIsNowhere"),
        ("but `regroup` with fewer ranks is refused", "Shards.FewerRanksNeedTheCheckpoint"),
        ("`regroup` with the same ranks goes on if all have done the same updates", "ShardFaults.ACollectiveThatFails"),
        ("`undo=True` also rolls back steps that fail after the agreement", "SimulatedRuns.EachRankIsOldOrNewAndGoesOn"),
        ("Adafactor, ASGD, Lamb, Muon and NAdam are refused", "Shards.OptionsThatDoNotFitAreRefused"),
        ("which `compile_step` refuses", f"{DDP}::sharded"),
        ("A loss of a rank's own part is refused", f"{PARALLEL}::refusals"),
        ("these parameters keep the same bits on all ranks", f"{PARALLEL}::as_eager"),
        ("stays in `optimizer.state`, as DTensors placed like their parameters", f"{PARALLEL}::goes_on"),
        ("sums, averages, gathers, scatters and equal all-to-alls of the step's ranks", f"{PARALLEL}::other_exchanges"),
        ("It refuses these by name: device meshes of more than one dim", f"{PARALLEL}::refusals"),
        ("`Save` and `Regroup` refuse such sessions", "RankPartsFailure.NeitherSavedNorRegrouped"),
        ("A step happens on all ranks or on none", "SimulatedRuns.EachRankIsOldOrNewAndGoesOn"),
        ("makes the step of the others fail with `caesura.RankFailure`", f"{STEP}::test_a_lost_rank_is_an_error"),
        ("Nothing has changed on them", "RankFacts.RefusedStepsChangeNothing"),
        ("two ranks whose link was cut, or was too slow", f"{RANKS}/rank_link_test.py::test_a_step_over_a_changed_link_happens_on_no_rank"),
        ("`regroup` takes parameters, optimizer state and position from the rank that has done the most updates",
         "Regroup.ARankThatIsBehindTakesWhatOthersHaveDone"),
        ("Numbers that arrive torn, changed or in the place of another rank's are a `RankFailure`", "DamagedWords.InAStep"),
        ("gradients take three buckets, however large the model is", "EarlyRanks.TakeThreeBucketsOfGradients"),
        ("Losses and parameters have the bits of `commit=\"late\"`", "EarlyRanks.GiveTheBitsOfLateCommit"),
        ("The error names them, no rank continues", "EarlyRanks.ALostStepSaysTheWayBack"),
        ("need all gradients before an update, so they are refused; so are `shard`", "EarlyRanks.OptionsThatDoNotFitAreRefused"),
        ("Optimizers that PyTorch has to step are refused", f"{STEP}::refusals"),
        ("all ranks stop before the next step", "Ranks.ASuspensionIsAgreed"),
    ],
    "concepts/ranks.md": [
        ("each bucket is summed over the ranks right after its last gradient", "Ranks.BucketsAreStartedEarlyAndNeedNoCopies"),
        ("in the order in which they are ready", "GradientReduction.BucketsAreFilledAsGradientsAreReady"),
        ("nothing is copied into it", "Ranks.BucketsAreStartedEarlyAndNeedNoCopies"),
        ("only the last micro-step of an update exchanges anything", "Ranks.OptionsOfAStep"),
        ("go by the summed gradients, so that all ranks decide alike", "Shards.OneRanksOverflowSkipsTheUpdateOnAll"),
        ("a NaN on one rank is refused by all", "Ranks.OneRanksNaNIsRefusedByAll"),
        ("are those of rank 0 after each step", "Ranks.StatisticsAreThoseOfRankZero"),
        ("or each rank's own with `Ranks(broadcast_buffers=False)`", f"{AGREE}::statistics"),
        ("`SyncBatchNorm` normalizes by the batches of all ranks, on CPUs too", f"{NORMS}::as_ddp"),
        ("Such a step takes no `shard`, no `mean_over=\"tokens\"` and no `regroup`", f"{NORMS}::limits"),
        ("**Dropout** draws other masks on each rank", f"{STEP}::masks"),
        ("**Heads that take turns and parts that are thawed later** train", f"{DIFFER}::counts"),
        ("**Sizes that depend on values**", f"{DIFFER}::sizes_of_values"),
        ("[Ranks may take other heads](#calls-that-use-other-parameters) in one call", f"{USES}::plain"),
        ("What one rank does not use is zero in the mean", f"{USES}::plain"),
        ("What no rank uses in an update stays as it is, with its optimizer state and its count", f"{USES}::plain"),
        ("Where updates accumulate, what any micro-step uses counts", f"{USES}::accumulation"),
        ("Clipping goes by the norm of the gradients that are used", f"{USES}::options"),
        ("This holds with `shard`, too", f"{USES}::shards"),
        ("a bucket that no rank uses is not exchanged", "RankUses.WhatNoRankUsesStaysWithItsState"),
        ("Running statistics that only some programs write to are rank 0's", f"{USES}::norms"),
        ("Ranks may have **other sequence lengths**", f"{DIFFER}::second_step"),
        ("The gradient is the mean over ranks, whatever the number of tokens of each", "RankPrograms.DoWhatOneProcessDoesOrAreRefused"),
        ("all ranks take the tensors of rank 0: parameters, frozen ones, buffers", f"{AGREE}::frozen"),
        ("and the optimizer's state with its counts", f"{AGREE}::state"),
        ("A `TrainingSession` takes them from the rank with the most updates", "RankGroupTest.JoinTakesWhatTheFurthestRankHas"),
        ("What comes later is taken when a step first reads it: another head", f"{AGREE}::later_head"),
        ("`Ranks(broadcast_buffers=False)` leaves buffers each rank's own", f"{AGREE}::frozen"),
        ("A process group's members take these among themselves", f"{AGREE}::members"),
        ("| modules: names, classes, `extra_repr()`, training or evaluation, the code of their forward", f"{AGREE}::options"),
        ("| the model's ops but for sizes", "RankFacts.OfModelsAndOptions"),
        ("| parameters and buffers: names, shapes, dtypes, `requires_grad`", f"{AGREE}::options"),
        ("| options, the optimizer's groups and their rates, betas, decay and so on", f"{AGREE}::later"),
        ("| the gradients that each bucket has, by their parameters", "RankPrograms.DoWhatOneProcessDoesOrAreRefused"),
        ("| the numbers of micro-steps and of updates, and the loss scale", "Ranks.WhoseStepsDifferAreRefusedAndGoOn"),
        ("| values of parameters and optimizer state", f"{AGREE}::later"),
        ("on one rank is noticed in the next update, however few elements it changes", f"{AGREE}::writes"),
        ("Writes on all ranks alike train on", f"{AGREE}::writes"),
        ("Options that are a rank's own affair may differ", "RankPrograms.DoWhatOneProcessDoesOrAreRefused"),
        ("are known before the first bucket is sent", "RunCollectives.CompareWordsBeforeTheFirstCollective"),
        ("All raise one error, which says what differs and between which ranks", f"{AGREE}::refusals"),
        ("The next call compares again, and trains once nothing differs", f"{AGREE}::refusals"),
        ("A session raises a `ValueError` likewise", "Ranks.WhoseStepsDifferAreRefusedAndGoOn"),
        ("the others raise `StepRefused` with its words at once", f"{REFUSE}::alone"),
        ("Where one rank alone refuses a call of `compile_step` (a graph break, a hook)", f"{REFUSE}::alone_in_a_capture"),
        ("Wrong input is an error on its rank only", f"{REFUSE}::alone"),
        ("the first call of the others raises its words likewise", f"{REFUSE}::unmade"),
        ("The rank does not wait for them, unless they have begun", f"{REFUSE}::unmade"),
        ("`save()` and `gather_state()` with divided state are calls of all ranks", f"{REFUSE}::calls"),
        ("`save()` refuses such a step", f"{USES}::plain"),
    ],
    "guides/ranks.md": [
        ("A wrapped module trains on many ranks as its original does", f"{DDP}::around_wrap"),
        ("it returns DDP around the wrapped module, with the same reducer", f"{DDP}::around_ddp"),
        ("`torch.compile(parallel, backend=\"caesura\")`, or DDP around the compiled module", f"{DDP}::under_compile"),
        ("the wrapped module, or the callback, as on one rank", f"{RANKS}/ranks_loops_test.py::test_two_ranks"),
        ("Trainer, Accelerate, Lightning, Ray", f"{RANKS}/ray_test.py::test_two_workers"),
        ("Communication hooks, `no_sync`", f"{DDP}::hooks"),
        ("`find_unused_parameters`, `static_graph`, `gradient_as_bucket_view`", f"{DDP}::options"),
        ("`ZeroRedundancyOptimizer` work as with eager modules", f"{DDP}::sharded_optimizer"),
        ("DDP sends a full bucket while the rest is computed", f"{DDP}::overlap"),
        ("at least 1 MiB of them", "tests/python/frontends/backward_parts_test.py"),
        ("so that a hook may update the parameter at once", "tests/python/frontends/backward_parts_test.py"),
        ("Layers may be wrapped before `fully_shard` or after it", f"{DDP}::sharded"),
        ("returns the module itself where `fully_shard` has been called before", f"{DDP}::sharded"),
        ("`compile_step` refuses such modules", f"{DDP}::sharded"),
        ("`caesura.wrap` takes modules of PyTorch's `parallelize_module`", f"{DDP}::tensor_parallel"),
        ("count as no fallback", f"{DDP}::tensor_parallel"),
    ],
    "guides/wrap.md": [
        ("returns a module of the same class that shares everything with the original", f"{WRAP}::test_a_wrapped_module_is_its_original"),
        ("`state_dict()` has the original's names", f"{WRAP}::test_state_dict_goes_through_a_file"),
        ("Its forward and backward run in caesura", f"{WRAP}::test_activations"),
        ("with one `FallbackWarning` per cause", f"{WRAP}::test_fallback_is_loud_once_and_right"),
        ("`caesura.strict()` forbids them", f"{WRAP}::test_strict_forbids_fallback"),
        ("A graph break splits the module", f"{CALLS}::test_a_graph_break_in_the_middle"),
        ("stay in caesura's kernels, any number of times", f"{TWICE}/create_graph_test.py::test_third_derivatives"),
        ("which reads what the forward has saved", f"{TWICE}/create_graph_test.py::test_the_forwards_own_dropout_mask"),
        ("One backward then passes over the forward once", f"{TWICE}/second_derivatives_test.py::test_many_gradients_of_one_call"),
        ("Forwards that take gradients themselves are captured whole", f"{TWICE}/create_graph_test.py::test_within_the_forward"),
        ("schedulers, hooks, `state_dict()` and GradScaler work as before", f"{FUSE}::test_closures_hooks_and_schedulers"),
        ("the parameters are PyTorch's own up to rounding", f"{FUSE}::test_steps_are_eagers"),
        ("have PyTorch's own step, with one warning", f"{FUSE}::test_leaves_to_pytorch_what_it_does_not_take"),
        ("for the first and the last there are callbacks, which fuse the optimizer", f"{INTEGRATIONS}::lightning_callback"),
        ("`torch.compile(module, backend=\"caesura\")` uses the same kernels", f"{WRAP}::test_backend_by_name"),
        ("a cache on disk", "tests/python/cache/call_cache_test.py::test_processes_share_the_folder"),
    ],
    "concepts/capture.md": [
        ("`wrap` accepts graph breaks: the parts around them run here", f"{CALLS}::test_a_graph_break_in_the_middle"),
        ("`compile_step` refuses them", f"{FRONTENDS}/compile_step_test.py::test_refuses_a_graph_break"),
        ("one `FallbackWarning` per cause says so", f"{WRAP}::test_fallback_is_loud_once_and_right"),
        ("A later process finds it there", "tests/python/cache/call_cache_test.py::test_processes_share_the_folder"),
        ("after its second value no more captures are needed", f"{WRAP}::test_shapes_and_dtypes_change"),
        ("Up to eight kinds of calls", "tests/python/cache/module_cache_test.py"),
    ],
}
# By row of the table of features: the tests of the cells that say "trains", of compile_step and of wrap.
FEATURES = {
    "gradients exchanged while the backward goes on": ("Ranks.BucketsAreStartedEarlyAndNeedNoCopies", f"{DDP}::overlap"),
    "optimizer state divided": (f"{STEP}::divided", f"{DDP}::sharded_optimizer"),
    "gradients divided": (f"{USES}::shards", None),
    "parameters divided": (None, f"{DDP}::sharded"),
    "tensor and sequence parallel (DTensor)": (f"{PARALLEL}::as_eager", f"{DDP}::tensor_parallel"),
    "accumulation": (f"{USES}::accumulation", f"{DDP}::around_wrap"),
    "clipping by the norm of all gradients": (f"{STEP}::as_eager", f"{RANKS}/ranks_loops_test.py::accelerate"),
    "parameters that some ranks do not use": (f"{USES}::plain", f"{DDP}::options"),
    "other lengths on each rank": (f"{STEP}::lengths", None),
    "batch norm over all ranks": (f"{NORMS}::as_ddp", None),
    "running statistics of rank 0, or each rank's own": (f"{AGREE}::statistics", None),
    "mean over the tokens of all ranks": (f"{STEP}::tokens", None),
    "gradients exchanged in 16 bits": (f"{STEP}::compressed", f"{DDP}::hooks"),
    "float16 with a scaled loss, decided alike on all ranks": (f"{USES}::options", None),
    "a lost rank: the others go on without a restart": (f"{STEP}::test_survivors_go_on",
                                                        f"{RANKS}/torchft_test.py::test_a_lost_replica_comes_back"),
    "a step that a lost rank interrupts changes nothing": (f"{STEP}::test_a_lost_rank_is_an_error", None),
    "ranks that differ are told in what, before the update": (f"{AGREE}::options", None),
    "one rank's refusal is told to the others": (f"{REFUSE}::alone", None),
    "checkpoints for any number of ranks": (f"{RANKS}/step_programs_test.py", None),
    "NCCL": (f"{CUDA}::as_on_cpus", None),
}
# A section that only points to other pages, or lists what is refused by other tests.
WITHOUT = {"Limits"}


def words_of(text):
    return " ".join(text.split())


@functools.cache
def cpp_tests():
    found = set()
    for source in (TOP / "tests").rglob("*.cc"):
        found.update(re.findall(r"^TEST(?:_P|_F)?\((\w+),\s*(\w+)\)", source.read_text(), re.M))
    return {".".join(names) for names in found}


def has_test(name):
    path, _, function = name.partition("::")
    if not path.endswith(".py"):
        return name in cpp_tests()
    begins = f"def {function}(" if function else "def test_"
    return (TOP / path).exists() and f"\n{begins}" in (TOP / path).read_text()


@pytest.mark.parametrize("page", PROMISES)
def test_each_promise_is_on_its_page_and_has_a_test(page):
    text = words_of((TOP / "docs" / page).read_text())
    wrong = [f"the page does not say: {words}" for words, _ in PROMISES[page] if words_of(words) not in text]
    wrong += [f"no test {test}, for: {words}" for words, test in PROMISES[page] if not has_test(test)]
    assert not wrong, "\n".join(wrong)


def test_each_feature_that_trains_has_a_test():
    section = (TOP / "docs" / "reference" / "rank_features.md").read_text().partition("## Features\n")[2].partition("\n## ")[0]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()[2:] if line.startswith("|")]
    trains = {row[0]: tuple(cell.startswith("trains") for cell in row[1:3]) for row in table}
    assert {name: tuple(test is not None for test in tests) for name, tests in FEATURES.items()} == {
        name: cells for name, cells in trains.items() if any(cells)}
    wrong = [test for tests in FEATURES.values() for test in tests if test is not None and not has_test(test)]
    assert not wrong, wrong


@pytest.mark.parametrize("page", PROMISES)
def test_each_section_has_promises(page):
    _, *sections = re.split(r"^## ", (TOP / "docs" / page).read_text(), flags=re.M)
    without = [title for title, _, body in (section.partition("\n") for section in sections)
               if not any(words_of(words) in words_of(body) for words, _ in PROMISES[page])]
    assert set(without) <= WITHOUT, without
