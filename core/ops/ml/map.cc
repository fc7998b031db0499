// SPDX-License-Identifier: Apache-2.0
// Maps (domain ai.onnx.ml): ZipMap makes them of a classifier's scores, CastMap and DictVectorizer
// make them tensors.
#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "core/base/status_macros.h"
#include "core/kernels/cast_string.h"
#include "core/ops/ml/scores.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/convert.h"

namespace caesura {
namespace {

// The type that the graph gives input 0, which must be a map.
Result<ValueType> MapTypeOf(const KernelInfo& info) {
  const Value* input = info.node().input(0);
  if (input == nullptr || input->type().kind != ValueType::Kind::kMap || !input->type().element) {
    return info.Invalid("expected a map, got " +
                        (input == nullptr ? "nothing" : input->type().ToString()));
  }
  return input->type();
}

// The entries of input 0; an empty map may be of any type.
Result<RuntimeValue::MapEntries> EntriesOf(const KernelContext& context, const ValueType& type,
                                           const std::string& label) {
  const RuntimeValue value = context.InputValue(0);
  if (!value.is_map() ||
      (value.map().keys.elements() > 0 && (value.map().keys.dtype() != type.key ||
                                           value.map().values.dtype() != type.element->dtype))) {
    return InvalidArgument(label + " expected a " + type.ToString() + ", got " + value.Describe());
  }
  return value.map();
}

// --- ZipMap ---

template <typename T>
bool AreDistinct(const std::vector<T>& labels) {
  return std::unordered_set<T>(labels.begin(), labels.end()).size() == labels.size();
}

// A sequence of one map a row, from class label to score. The maps share their keys and one copy of
// the scores.
Status CreateZipMap(KernelInfo& info) {
  ASSIGN_OR_RETURN(const ClassLabels labels,
                   ClassLabels::Of(info, "classlabels_int64s", "classlabels_strings"));
  if (!AreDistinct(labels.ints) || !AreDistinct(labels.strings))
    return info.Invalid("class labels must be distinct");
  ASSIGN_OR_RETURN(const FeatureRows x, FeatureRowsOf(info, 0));
  if (x.columns != labels.size()) {
    return info.Invalid("expected " + std::to_string(labels.size()) +
                        " scores a row, one a class label, got shape " +
                        info.InputShape(0).ToString());
  }
  const Shape row{x.columns};
  const Tensor keys = labels.dtype() == DType::kString ? Tensor::Of(row, labels.strings)
                                                       : Tensor::Of(row, labels.ints);
  info.SetOutputSizedInCompute(0);
  info.SetCompute([rows = x.rows, row, keys](KernelContext& context) -> Status {
    ASSIGN_OR_RETURN(const Tensor scores, Tensor::Allocate(DType::kFloat32, Shape{rows, row[0]}));
    CopyElements(DType::kFloat32, context.Input<float>(0), scores.raw(), scores.elements());
    std::vector<RuntimeValue> maps;
    maps.reserve(rows);
    for (int64_t r = 0; r < rows; ++r) {
      const size_t offset = static_cast<size_t>(r * row[0]) * sizeof(float);
      maps.push_back(
          RuntimeValue::Map(keys, Tensor(DType::kFloat32, row, scores.buffer(), offset)));
    }
    context.SetOutputValue(0, RuntimeValue::Sequence(std::move(maps)));
    return {};
  });
  return {};
}

// --- DictVectorizer ---

// y[i] is the value of key vocabulary[i], or zero. The specification calls the result 1-D;
// exporters and onnxruntime mean [1, n]: one row of features.
template <typename Key>
Status CreateVectorizer(KernelInfo& info, const ValueType& type,
                        const std::vector<Key>& vocabulary) {
  std::unordered_map<Key, int64_t> place;
  for (size_t i = 0; i < vocabulary.size(); ++i)
    place.emplace(vocabulary[i], static_cast<int64_t>(i));
  if (place.size() != vocabulary.size())
    return info.Invalid("the entries of the vocabulary must be distinct");
  const DType dtype = type.element->dtype;
  const int64_t width = static_cast<int64_t>(vocabulary.size());
  info.SetOutput(0, dtype, Shape{1, width});
  info.SetCompute(
      [=, place = std::move(place), label = info.node().Label()](KernelContext& context) -> Status {
        ASSIGN_OR_RETURN(const RuntimeValue::MapEntries entries, EntriesOf(context, type, label));
        DispatchDType<float, double, int64_t, std::string>(dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          T* y = context.Output<T>(0);
          std::fill_n(y, width, T());
          for (int64_t i = 0; i < entries.keys.elements(); ++i) {
            const auto found = place.find(entries.keys.data<Key>()[i]);
            if (found != place.end()) y[found->second] = entries.values.data<T>()[i];
          }
        });
        return {};
      });
  return {};
}

Status CreateDictVectorizer(KernelInfo& info) {
  ASSIGN_OR_RETURN(const ValueType type, MapTypeOf(info));
  ASSIGN_OR_RETURN(const ClassLabels vocabulary,
                   ClassLabels::Of(info, "int64_vocabulary", "string_vocabulary"));
  const DTypeSet values = {DType::kFloat32, DType::kFloat64, DType::kInt64, DType::kString};
  if (vocabulary.dtype() != type.key || !values.Contains(type.element->dtype)) {
    return info.Invalid(std::string("expected a map from ") + DTypeName(vocabulary.dtype()) +
                        ", as the vocabulary is, got " + type.ToString());
  }
  if (type.key == DType::kString) return CreateVectorizer(info, type, vocabulary.strings);
  return CreateVectorizer(info, type, vocabulary.ints);
}

// --- CastMap ---

// Cast's rules. False where a string is no number.
template <typename From, typename To>
bool CastElement(const From& from, To* to) {
  if constexpr (std::is_same_v<From, To>) *to = from;
  else if constexpr (std::is_same_v<From, std::string>) return ParseElement(from, to);
  else if constexpr (std::is_same_v<To, std::string>) *to = FormatElement(from);
  else *to = ConvertElement<To>(from);
  return true;
}

// Values in ascending order of their keys (DENSE), or each at its key's place in a row of max_map
// (SPARSE).
template <typename From, typename To>
Status CastEntries(const RuntimeValue::MapEntries& entries, bool sparse, int64_t width,
                   const std::string& label, To* row) {
  const int64_t count = entries.keys.elements();
  const int64_t* keys = entries.keys.data<int64_t>();
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  if (!sparse)
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return keys[a] < keys[b]; });
  std::fill_n(row, width, To());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = sparse ? keys[i] : i;
    if (at < 0 || at >= width) {
      return InvalidArgument(label +
                             " expected keys from 0 to max_map - 1 = " + std::to_string(width - 1) +
                             " in a sparse map, got " + std::to_string(at));
    }
    const From& value = entries.values.data<From>()[order[i]];
    if (CastElement(value, &row[at])) continue;
    if constexpr (std::is_same_v<From, std::string>)
      return InvalidArgument(label + " '" + value + "' is no number");
  }
  return {};
}

// `sparse_width`: max_map, or -1 for a dense row.
template <typename From, typename To>
void SetCastMap(KernelInfo& info, const ValueType& type, int64_t sparse_width) {
  info.SetOutputSizedInCompute(0);
  info.SetCompute([type, sparse_width,
                   label = info.node().Label()](KernelContext& context) -> Status {
    ASSIGN_OR_RETURN(const RuntimeValue::MapEntries entries, EntriesOf(context, type, label));
    const bool sparse = sparse_width >= 0;
    const int64_t width = sparse ? sparse_width : entries.keys.elements();
    ASSIGN_OR_RETURN(const Tensor out, context.AllocateOutput(0, kDTypeOf<To>, Shape{1, width}));
    return CastEntries<From, To>(entries, sparse, width, label, out.data<To>());
  });
}

template <typename From>
Status CreateCastMapFrom(KernelInfo& info, const ValueType& type, int64_t sparse_width) {
  const std::string to = info.Attr<std::string>("cast_to", "TO_FLOAT");
  if (to == "TO_FLOAT") SetCastMap<From, float>(info, type, sparse_width);
  else if (to == "TO_STRING") SetCastMap<From, std::string>(info, type, sparse_width);
  else if (to == "TO_INT64") SetCastMap<From, int64_t>(info, type, sparse_width);
  else return info.Invalid("cast_to must be TO_FLOAT, TO_STRING or TO_INT64, got '" + to + "'");
  return {};
}

Status CreateCastMap(KernelInfo& info) {
  ASSIGN_OR_RETURN(const ValueType type, MapTypeOf(info));
  const std::string form = info.Attr<std::string>("map_form", "DENSE");
  if (form != "DENSE" && form != "SPARSE")
    return info.Invalid("map_form must be DENSE or SPARSE, got '" + form + "'");
  int64_t sparse_width = -1;
  if (form == "SPARSE") {
    sparse_width = info.Attr<int64_t>("max_map", 1);
    const auto shape = CheckedShape({1, sparse_width}, DType::kString);
    if (!shape.ok()) return info.Invalid("max_map: " + shape.status().message());
  }
  const DType value = type.element->dtype;
  if (type.key != DType::kInt64 || (value != DType::kFloat32 && value != DType::kString)) {
    return info.Invalid("expected a map from int64 to float32 or string, got " + type.ToString());
  }
  if (value == DType::kFloat32) return CreateCastMapFrom<float>(info, type, sparse_width);
  return CreateCastMapFrom<std::string>(info, type, sparse_width);
}

}  // namespace

void RegisterMap(KernelRegistry& registry) {
  registry.Add({.op_type = "ZipMap",
                .domain = kMlDomain,
                .types = {DType::kFloat32},
                .create = CreateZipMap});
  registry.Add({.op_type = "CastMap", .domain = kMlDomain, .create = CreateCastMap});
  registry.Add({.op_type = "DictVectorizer", .domain = kMlDomain, .create = CreateDictVectorizer});
}

}  // namespace caesura
