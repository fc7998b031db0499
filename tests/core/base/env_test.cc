// SPDX-License-Identifier: Apache-2.0
#include "core/base/env.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace caesura {
namespace {

class LaunchedRanks : public ::testing::Test {
 protected:
  LaunchedRanks() { Clear(); }
  ~LaunchedRanks() override { Clear(); }

  static void Clear() {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"})
      unsetenv(name);
  }
};

TEST_F(LaunchedRanks, OneWithoutALauncher) { EXPECT_EQ(env::LaunchedRanks(), 1); }

TEST_F(LaunchedRanks, OfSrun) {
  setenv("SLURM_STEP_NUM_TASKS", "3", 1);
  EXPECT_EQ(env::LaunchedRanks(), 3);
}

TEST_F(LaunchedRanks, ABatchScriptIsOneProcess) {
  setenv("SLURM_NTASKS", "3", 1);
  EXPECT_EQ(env::LaunchedRanks(), 1);
}

// mpirun starts its daemons by srun, one a node; the ranks inherit their variables.
TEST_F(LaunchedRanks, OfMpirunWithinSlurm) {
  setenv("SLURM_STEP_NUM_TASKS", "2", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "8", 1);
  EXPECT_EQ(env::LaunchedRanks(), 8);
}

}  // namespace
}  // namespace caesura
