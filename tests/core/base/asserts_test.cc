// SPDX-License-Identifier: Apache-2.0
// The build of the tests (CAESURA_ASSERTS) has asserts on: in headers, in the library, in kernels,
// and in the standard library.
#include <gtest/gtest.h>

#include <vector>

#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/kernels/simd/small_types.h"

namespace caesura {
namespace {

TEST(Asserts, AreOnWhereTestsAreBuilt) {
#ifndef CAESURA_ASSERTS
  GTEST_SKIP() << "not a build of cmake -DCAESURA_ASSERTS=ON";
#endif
  const Result<int> failed = NotFound("nothing");
  EXPECT_DEATH(static_cast<void>(*failed), "ok");
  size_t end = 0;
  EXPECT_DEATH(NextCodePoint("", &end), "text.size");
  EXPECT_DEATH(DecodeTable(DType::kFloat32), "DTypeSize");
  const std::vector<int> none;
  EXPECT_DEATH(static_cast<void>(none[end]), "");
}

}  // namespace
}  // namespace caesura
