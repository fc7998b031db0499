// SPDX-License-Identifier: Apache-2.0
#include "tests/gradients/gradient_case.h"

namespace caesura {

std::vector<GradientCase> IndexingCases() {
  const std::map<std::string, std::vector<double>> places = {{"i", {0, 2, 1, 3, 0, 2}}};
  const std::string scatter = "double[4,3] x, int64[2,3] i, double[2,3] u";
  const std::string scatter_nd = "double[4,3] x, int64[3,1] i, double[3,3] u";
  const std::map<std::string, std::vector<double>> apart = {{"i", {0, 3, -2}}}, twice = {{"i", {0, 3, 0}}};
  return {
      {.name = "Compress", .inputs = "double[3,4] x, bool[3] c", .body = "y = Compress<axis = 0>(x, c)",
       .feeds = {{"c", {1, 0, 1}}}},
      {.name = "CompressFlat", .inputs = "double[2,3] x, bool[5] c", .body = "y = Compress(x, c)",
       .feeds = {{"c", {0, 1, 1, 0, 1}}}},
      {.name = "Gather", .inputs = "double[4,3] x, int64[2,2] i", .body = "y = Gather(x, i)", .feeds = {{"i", {1, 3, 1, -1}}}},
      {.name = "GatherOfWhatOthersRead", .inputs = "double[4,3] x, int64[2,2] i",
       .body = "t = Transpose<perm = [1, 0]>(x) e = Gather(x, i) m = MatMul(e, t) f = Gather(x, i) y = Concat<axis = -1>(m, f)",
       .feeds = {{"i", {1, 3, 1, -1}}}},
      {.name = "GatherAxis", .inputs = "double[2,4] x, int64[3] i", .body = "y = Gather<axis = -1>(x, i)",
       .feeds = {{"i", {3, 0, 0}}}},
      {.name = "GatherScalar", .inputs = "double[4,3] x, int64[] i", .body = "y = Gather(x, i)", .feeds = {{"i", {2}}}},
      {.name = "GatherEmpty", .inputs = "double[4,3] x, int64[0] i", .body = "y = Gather(x, i)", .feeds = {{"i", {}}}},
      {.name = "GatherElements", .inputs = "double[4,3] x, int64[2,3] i", .body = "y = GatherElements<axis = 0>(x, i)",
       .feeds = {{"i", {0, 2, 1, 3, 2, -1}}}},
      {.name = "GatherND", .inputs = "double[3,4,2] x, int64[3,2] i", .body = "y = GatherND(x, i)",
       .feeds = {{"i", {0, 1, 2, 3, 0, 1}}}},
      {.name = "GatherNDBatch", .inputs = "double[2,3,4] x, int64[2,2,1] i", .body = "y = GatherND<batch_dims = 1>(x, i)",
       .feeds = {{"i", {0, 2, 1, 1}}}},
      {.name = "GatherNDBatch2", .inputs = "double[2,2,3] x, int64[2,2,1] i", .body = "y = GatherND<batch_dims = 2>(x, i)",
       .feeds = {{"i", {0, 2, 1, 1}}}},
      {.name = "OneHot", .inputs = "double[2] v, int64[3] i", .body = "y = OneHot(i, d, v)", .feeds = {{"i", {0, 2, -1}}},
       .initializers = "<int64 d = {4}>"},
      {.name = "Range", .inputs = "double[] s, double[] d", .body = "y = Range(s, l, d)",
       .feeds = {{"s", {0.3}}, {"d", {0.7}}}, .initializers = "<double l = {4.0}>"},
      {.name = "ScatterElements", .inputs = scatter, .body = "y = ScatterElements(x, i, u)", .feeds = places},
      {.name = "ScatterElementsAxis", .inputs = "double[2,4] x, int64[2,2] i, double[2,2] u",
       .body = "y = ScatterElements<axis = 1>(x, i, u)", .feeds = {{"i", {1, 3, 0, 2}}}},
      {.name = "ScatterElementsAdd", .inputs = scatter, .body = "y = ScatterElements<reduction = \"add\">(x, i, u)",
       .feeds = {{"i", {0, 2, 1, 0, 0, 2}}}},
      {.name = "ScatterElementsMul", .inputs = scatter, .body = "y = ScatterElements<reduction = \"mul\">(x, i, u)",
       .feeds = {{"i", {0, 2, 1, 0, 0, 2}}}},
      {.name = "ScatterElementsMulZero", .inputs = scatter, .body = "y = ScatterElements<reduction = \"mul\">(x, i, u)",
       .feeds = {{"i", {0, 2, 1, 0, 0, 2}}, {"u", {0, 2, 3, 1.5, 2, 0}}, {"x", {1, 2, 3, 4, 5, 0, 0, 8, 9, 1, 2, 3}}}},
      {.name = "ScatterElementsMax", .inputs = scatter, .body = "y = ScatterElements<reduction = \"max\">(x, i, u)",
       .feeds = {{"i", {0, 2, 1, 0, 0, 2}}}},
      {.name = "ScatterElementsMin", .inputs = scatter, .body = "y = ScatterElements<reduction = \"min\">(x, i, u)",
       .feeds = {{"i", {0, 2, 1, 0, 0, 2}}}},
      {.name = "ScatterND", .inputs = scatter_nd, .body = "y = ScatterND(x, i, u)", .feeds = apart},
      {.name = "ScatterNDAdd", .inputs = scatter_nd, .body = "y = ScatterND<reduction = \"add\">(x, i, u)", .feeds = twice},
      {.name = "ScatterNDMul", .inputs = scatter_nd, .body = "y = ScatterND<reduction = \"mul\">(x, i, u)", .feeds = twice},
      {.name = "ScatterNDMax", .inputs = scatter_nd, .body = "y = ScatterND<reduction = \"max\">(x, i, u)", .feeds = twice},
      {.name = "ScatterNDMin", .inputs = scatter_nd, .body = "y = ScatterND<reduction = \"min\">(x, i, u)", .feeds = twice},
      {.name = "TensorScatter", .inputs = "double[2,5,3] c, double[2,2,3] u, int64[2] w", .body = "y = TensorScatter(c, u, w)",
       .feeds = {{"w", {1, 3}}}},
      {.name = "TensorScatterCircular", .inputs = "double[2,5,3] c, double[2,2,3] u, int64[2] w",
       .body = "y = TensorScatter<mode = \"circular\", axis = 1>(c, u, w)", .feeds = {{"w", {4, 6}}}},
      {.name = "TensorScatterFront", .inputs = "double[2,5,3] c, double[2,2,3] u", .body = "y = TensorScatter(c, u)"},
      {.name = "TopK", .inputs = "double[2,5] x", .body = "y, i = TopK(x, k)", .initializers = "<int64[1] k = {3}>"},
      {.name = "TopKSmallest", .inputs = "double[5,2] x", .body = "y, i = TopK<axis = 0, largest = 0>(x, k)",
       .initializers = "<int64[1] k = {2}>"},
  };
}

}  // namespace caesura
