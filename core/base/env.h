// SPDX-License-Identifier: Apache-2.0
// The only reader of the process environment. Each switch that the library honours is a function
// here.
#ifndef CAESURA_CORE_BASE_ENV_H_
#define CAESURA_CORE_BASE_ENV_H_

#include <cstddef>
#include <string>
#include <vector>

namespace caesura::env {

// CAESURA_DISABLE_PASSES: names of graph passes to skip, separated by commas.
std::vector<std::string> DisabledPasses();

// CAESURA_VERBOSE: 0 (default) warnings only, 1 decisions (placement, fallbacks), 2 everything.
int Verbosity();

// CAESURA_NUM_THREADS: threads a kernel may use; 0 or unset means what OpenMP would take.
int NumThreads();

// CAESURA_MAX_ISA: "x86-64", "x86-64-v3" or "x86-64-v4": kernels go no wider, to see on a new
// machine what an older one does. Unset or anything else: as wide as the machine goes.
std::string MaxIsa();

// CAESURA_AGGRESSIVE_CPU_FALLBACK: "on", "off", "seed" or "forward"
// (graph_transforms/shapes/cpu_fallback.h); empty where unset.
std::string AggressiveCpuFallback();

// CAESURA_PLUGIN_PATH: folders in which plug-ins are looked for by name, separated by colons
// (core/plugin).
std::vector<std::string> PluginPath();

// CAESURA_PROGRAM_CACHE: the folder of captured programs and compiled kernels, or "off". Unset:
// caesura/programs in XDG_CACHE_HOME, or in ~/.cache; empty where there is no home either.
std::string ProgramCache();
// CAESURA_PROGRAM_CACHE_MEGABYTES: how large it may become; 256 where unset.
int ProgramCacheMegabytes();

// CAESURA_PYTHON: the Python interpreter that the command asks about packages and peers; "python3"
// where unset.
std::string Python();

// The number of ranks that the launcher of this process has started: OMPI_COMM_WORLD_SIZE under
// Open MPI's mpirun, else SLURM_STEP_NUM_TASKS under SLURM's srun; 1 without a launcher. A batch
// script, which is one process, has SLURM_NTASKS, too: that is not read.
int LaunchedRanks();

// "NAME=VALUE" of all set variables that change how caesura runs: CAESURA_*, OMP_*, GOMP_*,
// ONEDNN_*, DNNL_*.
std::vector<std::string> SetVariables();

// As many bytes as this process can ever hold: memory and swap of the machine, or the limit of its
// address space (ulimit -v), as it was when this was first asked.
size_t MemoryBytes();

}  // namespace caesura::env

#endif  // CAESURA_CORE_BASE_ENV_H_
