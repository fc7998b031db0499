// SPDX-License-Identifier: Apache-2.0
// core/cuda/nccl.h and NVIDIA's own header say the same of NCCL's interface.
#include "core/cuda/nccl.h"

#include <gtest/gtest.h>

#include <nccl.h>

namespace caesura::nccl {
namespace {

TEST(Nccl, HasTheNumbersOfItsHeader) {
  EXPECT_EQ(int{kSuccess}, int{ncclSuccess});
  EXPECT_EQ(int{kInvalidArgument}, int{ncclInvalidArgument});
  EXPECT_EQ(int{kInvalidUsage}, int{ncclInvalidUsage});
  EXPECT_EQ(int{kInProgress}, int{ncclInProgress});
  EXPECT_EQ(int{kInt8}, int{ncclInt8});
  EXPECT_EQ(int{kUint8}, int{ncclUint8});
  EXPECT_EQ(int{kInt32}, int{ncclInt32});
  EXPECT_EQ(int{kUint32}, int{ncclUint32});
  EXPECT_EQ(int{kInt64}, int{ncclInt64});
  EXPECT_EQ(int{kUint64}, int{ncclUint64});
  EXPECT_EQ(int{kFloat16}, int{ncclFloat16});
  EXPECT_EQ(int{kFloat32}, int{ncclFloat32});
  EXPECT_EQ(int{kFloat64}, int{ncclFloat64});
  EXPECT_EQ(int{kBfloat16}, int{ncclBfloat16});
  EXPECT_EQ(int{kSum}, int{ncclSum});
  EXPECT_EQ(int{kMax}, int{ncclMax});
  EXPECT_EQ(int{kMin}, int{ncclMin});
}

TEST(Nccl, HasTheLayoutOfItsStructs) {
  EXPECT_EQ(sizeof(UniqueId), sizeof(ncclUniqueId));
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const Config ours;
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_EQ(ours.cga_cluster_size, theirs.cgaClusterSize);
  EXPECT_EQ(offsetof(Config, magic), offsetof(ncclConfig_t, magic));
  EXPECT_EQ(offsetof(Config, version), offsetof(ncclConfig_t, version));
  EXPECT_EQ(offsetof(Config, blocking), offsetof(ncclConfig_t, blocking));
  EXPECT_EQ(offsetof(Config, cga_cluster_size), offsetof(ncclConfig_t, cgaClusterSize));
  EXPECT_EQ(sizeof(Config), offsetof(ncclConfig_t, minCTAs));
}

}  // namespace
}  // namespace caesura::nccl
