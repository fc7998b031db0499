// SPDX-License-Identifier: Apache-2.0
// Einsum: operands are contracted from left to right. Each contraction is one batched matrix
// product over strided views; a view is copied only where its labels do not fall into rows and
// columns.
#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "core/base/status_macros.h"
#include "core/kernels/adapters/through_float.h"
#include "core/kernels/gemm/gemm.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/walks/strided_copy.h"
#include "core/ops/gemm/einsum_equation.h"

namespace caesura {
namespace {

// Where an operand's bytes are.
struct Place {
  enum class Kind { kInput, kScratch, kOutput } kind = Kind::kInput;
  size_t index = 0;
  char* Address(KernelContext& context) const {
    switch (kind) {
      case Kind::kInput: return const_cast<char*>(context.Input<char>(static_cast<int>(index)));
      case Kind::kScratch: return context.Scratch<char>(index);
      default: return context.Output<char>(0);
    }
  }
};

struct EinsumOperand {
  std::vector<EinsumDim> dims;
  Place place;
  const EinsumDim* Find(int label) const {
    for (const EinsumDim& dim : dims) {
      if (dim.label == label) return &dim;
    }
    return nullptr;
  }
};

// A loop nest: kept dims (outermost first), then summed ones.
struct CopySpec {
  std::vector<EinsumDim> kept, summed;
};

// dst, contiguous over the kept dims, = sum of src over the summed ones.
template <typename T>
void StridedSum(const CopySpec& s, const void* src, void* dst) {
  const T* x = static_cast<const T*>(src);
  T* y = static_cast<T*>(dst);
  const size_t kept = s.kept.size(), rank = kept + s.summed.size();
  std::vector<EinsumDim> dims = s.kept;
  dims.insert(dims.end(), s.summed.begin(), s.summed.end());
  int64_t outputs = 1, terms = 1;
  for (size_t d = 0; d < rank; ++d) (d < kept ? outputs : terms) *= dims[d].size;
  // Blocks of the last kept dim are summed side by side.
  constexpr int64_t kBlock = 64;
  const int64_t columns = kept == 0 ? 1 : dims[kept - 1].size,
                step = kept == 0 ? 0 : dims[kept - 1].stride;
  std::vector<int64_t> index(rank, 0);
  int64_t offset = 0;
  auto advance = [&](size_t first, size_t last) {  // odometer over dims [first, last)
    for (size_t d = last; d-- > first;) {
      offset += dims[d].stride;
      if (++index[d] < dims[d].size) return;
      offset -= dims[d].size * dims[d].stride;
      index[d] = 0;
    }
  };
  for (int64_t i = 0; i < outputs; i += columns) {
    for (int64_t j = 0; j < columns; j += kBlock) {
      const int64_t count = std::min(kBlock, columns - j);
      Accumulator<T> sums[kBlock] = {};
      for (int64_t t = 0; t < terms; ++t) {
        const T* from = x + offset + j * step;
        for (int64_t c = 0; c < count; ++c) sums[c] += from[c * step];
        advance(kept, rank);
      }
      for (int64_t c = 0; c < count; ++c) y[i + j + c] = static_cast<T>(sums[c]);
    }
    if (kept > 0) advance(0, kept - 1);
  }
}

using CopyFunction = void (*)(const CopySpec&, const void*, void*);

// One thing that the compute function does: a copy from `a`, or a product of `a` and `b`.
struct EinsumPart {
  bool is_copy;
  CopySpec copy;
  std::optional<StridedCopy> move;  // in place of `copy`, where that sums nothing
  Gemm gemm;
  Place a, b, to;
};

int64_t CountOf(const std::vector<EinsumDim>& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1},
                         [](int64_t n, const EinsumDim& d) { return n * d.size; });
}

// The one stride that walks `dims` in order, if there is one; 1 for no dims.
bool CommonStride(const std::vector<EinsumDim>& dims, int64_t* stride) {
  *stride = 1;
  int64_t next = -1;
  for (size_t d = dims.size(); d-- > 0;) {
    if (dims[d].size == 1) continue;
    if (dims[d].stride <= 0 || (next >= 0 && dims[d].stride != next)) return false;
    if (next < 0) *stride = dims[d].stride;
    next = dims[d].stride * dims[d].size;
  }
  return true;
}

// Builds the steps of one node.
class Compiler {
 public:
  Compiler(KernelInfo& info, EinsumEquation equation)
      : info_(info), equation_(std::move(equation)) {}

  Result<std::vector<EinsumPart>> Compile() {
    EinsumOperand current{equation_.operands[0], {Place::Kind::kInput, 0}};
    for (size_t i = 1; i < equation_.operands.size(); ++i) {
      ASSIGN_OR_RETURN(current,
                       Contract(current, {equation_.operands[i], {Place::Kind::kInput, i}}, i + 1));
    }
    if (current.place.kind != Place::Kind::kOutput) {
      std::vector<EinsumDim> kept;
      for (const EinsumDim& out : equation_.output) {
        const EinsumDim* dim = current.Find(out.label);
        kept.push_back({out.label, out.size, dim->size == 1 ? 0 : dim->stride});
      }
      Copy(current, kept, {Place::Kind::kOutput, 0});
    }
    return std::move(steps_);
  }

 private:
  // Needed by the output or by an operand from `next` on.
  bool IsKept(int label, size_t next) const {
    auto has = [&](const std::vector<EinsumDim>& dims) {
      return std::any_of(dims.begin(), dims.end(),
                         [&](const EinsumDim& d) { return d.label == label; });
    };
    if (has(equation_.output)) return true;
    for (size_t i = next; i < equation_.operands.size(); ++i) {
      if (has(equation_.operands[i])) return true;
    }
    return false;
  }

  size_t OutputPosition(int label) const {
    size_t i = 0;
    while (i < equation_.output.size() && equation_.output[i].label != label) ++i;
    return i;
  }

  Place NewScratch(int64_t count) {
    return {Place::Kind::kScratch, info_.BookScratch(count * DTypeSize(info_.InputDType(0)))};
  }

  // Emits a copy of `from` that keeps `kept` in this order and sums the rest.
  EinsumOperand Copy(const EinsumOperand& from, const std::vector<EinsumDim>& kept, Place to) {
    EinsumPart step{true, {kept, {}}, {}, {}, from.place, {}, to};
    for (const EinsumDim& dim : from.dims) {
      const bool keep = std::any_of(kept.begin(), kept.end(),
                                    [&](const EinsumDim& k) { return k.label == dim.label; });
      if (!keep) step.copy.summed.push_back(dim);
    }
    EinsumOperand out{kept, to};
    SetRowMajor(out.dims);
    if (step.copy.summed.empty()) {
      StridedBox box;
      for (size_t d = 0; d < kept.size(); ++d) {
        box.extents.push_back(kept[d].size);
        box.src_strides.push_back(kept[d].stride);
        box.dst_strides.push_back(out.dims[d].stride);
      }
      Result<StridedCopy> move = StridedCopy::Make(info_, info_.InputDType(0), std::move(box));
      if (move.ok()) step.move = *std::move(move);
    }
    steps_.push_back(std::move(step));
    return out;
  }

  static void SetRowMajor(std::vector<EinsumDim>& dims) {
    int64_t stride = 1;
    for (size_t d = dims.size(); d-- > 0;) {
      dims[d].stride = stride;
      stride *= dims[d].size;
    }
  }

  // The labels of a product, by role.
  struct Roles {
    std::vector<int> batch, rows, columns, inner;
  };

  Roles Classify(const EinsumOperand& a, const EinsumOperand& b, size_t next) const {
    Roles roles;
    for (const EinsumDim& dim : a.dims) {
      const bool kept = IsKept(dim.label, next);
      if (b.Find(dim.label) != nullptr) (kept ? roles.batch : roles.inner).push_back(dim.label);
      else if (kept) roles.rows.push_back(dim.label);
    }
    for (const EinsumDim& dim : b.dims) {
      if (a.Find(dim.label) == nullptr && IsKept(dim.label, next))
        roles.columns.push_back(dim.label);
    }
    auto by_output = [&](int x, int y) { return OutputPosition(x) < OutputPosition(y); };
    for (auto* labels : {&roles.batch, &roles.rows, &roles.columns}) {
      std::stable_sort(labels->begin(), labels->end(), by_output);
    }
    return roles;
  }

  // The dims of `operand` that carry `labels`, in that order. `sizes`: an operand whose dims may be
  // the larger ones.
  static std::vector<EinsumDim> Pick(const EinsumOperand& operand, const std::vector<int>& labels,
                                     const EinsumOperand& sizes) {
    std::vector<EinsumDim> out;
    for (int label : labels) {
      EinsumDim dim = *operand.Find(label);
      const EinsumDim* other = sizes.Find(label);
      if (other != nullptr && dim.size == 1 && other->size != 1) dim = {label, other->size, 0};
      out.push_back(dim);
    }
    return out;
  }

  // A view of `operand` as [batch][first][second]: its own bytes where strides allow it, otherwise
  // a copy.
  struct View {
    std::vector<EinsumDim> batch;
    MatrixStrides strides;
    int64_t first_count, second_count;
    Place place;
  };
  View MakeView(const EinsumOperand& operand, const Roles& roles, const std::vector<int>& first,
                const std::vector<int>& second, const EinsumOperand& other) {
    std::vector<EinsumDim> batch = Pick(operand, roles.batch, other),
                           rows = Pick(operand, first, other),
                           columns = Pick(operand, second, other);
    View view{batch, {}, CountOf(rows), CountOf(columns), operand.place};
    const bool all_used = batch.size() + rows.size() + columns.size() == operand.dims.size();
    const bool even =
        CommonStride(rows, &view.strides.row) && CommonStride(columns, &view.strides.col);
    if (all_used && even && (view.strides.row == 1 || view.strides.col == 1)) return view;
    std::vector<EinsumDim> kept = batch;
    kept.insert(kept.end(), rows.begin(), rows.end());
    kept.insert(kept.end(), columns.begin(), columns.end());
    const EinsumOperand copy = Copy(operand, kept, NewScratch(CountOf(kept)));
    view.batch.assign(copy.dims.begin(), copy.dims.begin() + batch.size());
    view.strides = RowMajor(view.second_count);
    view.place = copy.place;
    return view;
  }

  Result<EinsumOperand> Contract(EinsumOperand a, EinsumOperand b, size_t next) {
    Roles roles = Classify(a, b, next);
    if (!roles.rows.empty() && !equation_.output.empty() &&
        roles.rows.back() == equation_.output.back().label) {
      std::swap(a, b);  // so that the output's last label runs along the columns
      roles = Classify(a, b, next);
    }
    const View left = MakeView(a, roles, roles.rows, roles.inner, b);
    const View right = MakeView(b, roles, roles.inner, roles.columns, a);
    EinsumOperand out{left.batch, {}};
    const std::vector<EinsumDim> rows = Pick(a, roles.rows, a), columns = Pick(b, roles.columns, b);
    out.dims.insert(out.dims.end(), rows.begin(), rows.end());
    out.dims.insert(out.dims.end(), columns.begin(), columns.end());
    SetRowMajor(out.dims);
    const bool last = next == equation_.operands.size();
    const bool in_order = std::equal(
        out.dims.begin(), out.dims.end(), equation_.output.begin(), equation_.output.end(),
        [](const EinsumDim& x, const EinsumDim& y) { return x.label == y.label; });
    out.place = last && in_order ? Place{Place::Kind::kOutput, 0} : NewScratch(CountOf(out.dims));
    GemmSpec spec{.dtype = info_.InputDType(0),
                  .m = left.first_count,
                  .n = right.second_count,
                  .k = left.second_count,
                  .a = left.strides,
                  .b = right.strides,
                  .c = RowMajor(right.second_count)};
    for (size_t d = 0; d < left.batch.size(); ++d) {
      spec.batch.push_back(left.batch[d].size);
      spec.a_batch.push_back(left.batch[d].stride);
      spec.b_batch.push_back(right.batch[d].stride);
      spec.c_batch.push_back(out.dims[d].stride);
    }
    ASSIGN_OR_RETURN(Gemm gemm, Gemm::Create(info_, std::move(spec)));
    steps_.push_back({false, {}, {}, std::move(gemm), left.place, right.place, out.place});
    return out;
  }

  KernelInfo& info_;
  EinsumEquation equation_;
  std::vector<EinsumPart> steps_;
};

Status CreateEinsum(KernelInfo& info) {
  std::vector<Shape> shapes;
  for (int i = 0; i < info.input_count(); ++i) {
    if (!info.HasInput(i) || info.InputDType(i) != info.InputDType(0))
      return info.Invalid("inputs of one dtype expected");
    shapes.push_back(info.InputShape(i));
  }
  Result<EinsumEquation> equation =
      ParseEinsumEquation(info.Attr<std::string>("equation", ""), shapes);
  if (!equation.ok()) return info.Invalid(equation.status().message());
  std::vector<int64_t> dims;
  for (const EinsumDim& dim : equation->output) dims.push_back(dim.size);
  info.SetOutput(0, info.InputDType(0), Shape(dims));
  ASSIGN_OR_RETURN(std::vector<EinsumPart> steps, Compiler(info, *std::move(equation)).Compile());
  CopyFunction copy = nullptr;
  DispatchNumeric(info.InputDType(0),
                  [&](auto tag) { copy = StridedSum<typename decltype(tag)::type>; });
  info.SetCompute([copy, steps = std::move(steps)](KernelContext& context) {
    for (const EinsumPart& step : steps) {
      if (step.move) {
        step.move->Run(step.a.Address(context), step.to.Address(context));
      } else if (step.is_copy) {
        copy(step.copy, step.a.Address(context), step.to.Address(context));
      } else {
        RETURN_IF_ERROR(step.gemm.Run(context, step.a.Address(context), step.b.Address(context),
                                      step.to.Address(context)));
      }
    }
    return Status();
  });
  return {};
}

}  // namespace

void RegisterEinsum(KernelRegistry& registry) {
  registry.Add({.op_type = "Einsum", .types = kNumericTypes, .create = CreateEinsum});
  registry.Add({.op_type = "Einsum",
                .types = {DType::kFloat16, DType::kBFloat16},
                .create = ThroughFloat<CreateEinsum>});
}

}  // namespace caesura
