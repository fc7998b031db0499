// SPDX-License-Identifier: Apache-2.0
// Maps between categories (domain ai.onnx.ml): LabelEncoder, CategoryMapper, OneHotEncoder.
#include <cmath>
#include <unordered_map>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/ml/scores.h"

namespace caesura {
namespace {

// From a key to its place in a list. Of equal keys the last one counts; NaN equals NaN.
class KeyIndex {
 public:
  static constexpr int64_t kMissing = -1;

  void Add(const std::string& key, int64_t place) { strings_[key] = place; }
  void Add(int64_t key, int64_t place) { ints_[key] = place; }
  void Add(double key, int64_t place) {
    if (std::isnan(key)) nan_ = place;
    else floats_[key] = place;
  }
  int64_t Find(const std::string& key) const { return Look(strings_, key); }
  int64_t Find(int64_t key) const { return Look(ints_, key); }
  int64_t Find(double key) const { return std::isnan(key) ? nan_ : Look(floats_, key); }

  // Calls fn(i, place) for each element of input 0.
  template <typename Fn>
  void FindAll(const KernelContext& context, DType dtype, int64_t count, Fn&& fn) const {
    const auto look = [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T* x = context.Input<T>(0);
      for (int64_t i = 0; i < count; ++i) {
        if constexpr (std::is_same_v<T, std::string>) fn(i, Find(x[i]));
        else if constexpr (std::is_floating_point_v<T>) fn(i, Find(static_cast<double>(x[i])));
        else fn(i, Find(static_cast<int64_t>(x[i])));
      }
    };
    DispatchDType<std::string, int64_t, float, double, int32_t, int16_t>(dtype, look);
  }

 private:
  template <typename Map, typename Key>
  static int64_t Look(const Map& map, const Key& key) {
    auto it = map.find(key);
    return it == map.end() ? kMissing : it->second;
  }
  std::unordered_map<std::string, int64_t> strings_;
  std::unordered_map<int64_t, int64_t> ints_;
  std::unordered_map<double, int64_t> floats_;
  int64_t nan_ = kMissing;
};

// The attribute <stem>_strings, _int64s, _floats or _tensor as a 1-D tensor; undefined when none is
// there.
Result<Tensor> ListAttribute(const KernelInfo& info, const std::string& stem) {
  std::vector<Tensor> found;
  const Node& node = info.node();
  auto take = [&](const auto* values) {
    if (values != nullptr)
      found.push_back(Tensor::Of(Shape{static_cast<int64_t>(values->size())}, *values));
  };
  take(node.FindAttr<std::vector<std::string>>(stem + "_strings"));
  take(node.FindAttr<std::vector<int64_t>>(stem + "_int64s"));
  take(node.FindAttr<std::vector<float>>(stem + "_floats"));
  if (const Tensor* tensor = node.FindAttr<Tensor>(stem + "_tensor")) found.push_back(*tensor);
  if (found.size() > 1) return info.Invalid("has more than one " + stem + "_* attribute");
  return found.empty() ? Tensor() : found[0];
}

Result<KeyIndex> IndexOf(const KernelInfo& info, const Tensor& keys) {
  KeyIndex index;
  const auto add = [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < keys.elements(); ++i) {
      const T& key = keys.data<T>()[i];
      if constexpr (std::is_same_v<T, std::string>) index.Add(key, i);
      else if constexpr (std::is_floating_point_v<T>) index.Add(static_cast<double>(key), i);
      else index.Add(static_cast<int64_t>(key), i);
    }
  };
  if (!DispatchDType<std::string, int64_t, float, double, int32_t, int16_t>(keys.dtype(), add)) {
    return info.Invalid(std::string("cannot have keys of ") + DTypeName(keys.dtype()));
  }
  return index;
}

// One element of `dtype`: default_tensor, or the default_* attribute of the type, or what the
// specification says.
Result<Tensor> DefaultValue(const KernelInfo& info, DType dtype) {
  if (const Tensor* given = info.node().FindAttr<Tensor>("default_tensor")) {
    if (given->dtype() != dtype || given->elements() != 1) {
      return info.Invalid(std::string("default_tensor must be one element of ") + DTypeName(dtype));
    }
    return *given;
  }
  switch (dtype) {
    case DType::kString: return Tensor::Scalar(info.Attr<std::string>("default_string", "_Unused"));
    case DType::kInt64: return Tensor::Scalar(info.Attr<int64_t>("default_int64", -1));
    case DType::kInt32: return Tensor::Scalar<int32_t>(-1);
    case DType::kInt16: return Tensor::Scalar<int16_t>(-1);
    case DType::kFloat32: return Tensor::Scalar(info.Attr<float>("default_float", -0.0f));
    case DType::kFloat64: return Tensor::Scalar<double>(-0.0);
    default: return info.Invalid(std::string("cannot map to ") + DTypeName(dtype));
  }
}

Status CreateMapping(KernelInfo& info, const Tensor& keys, const Tensor& values,
                     const Tensor& fallback) {
  if (keys.elements() != values.elements()) {
    return info.Invalid("has " + std::to_string(keys.elements()) + " keys and " +
                        std::to_string(values.elements()) + " values");
  }
  const DType dtype = info.InputDType(0);
  if (keys.dtype() != dtype) {
    return info.Invalid(std::string("has keys of ") + DTypeName(keys.dtype()) +
                        " for an input of " + DTypeName(dtype));
  }
  ASSIGN_OR_RETURN(KeyIndex index, IndexOf(info, keys));
  const int64_t count = info.InputShape(0).elements();
  info.SetOutput(0, values.dtype(), info.InputShape(0));
  info.SetCompute(
      [index = std::move(index), values, fallback, dtype, count](KernelContext& context) {
        DispatchStorage(values.dtype(), [&](auto tag) {
          using T = typename decltype(tag)::type;
          T* y = context.Output<T>(0);
          index.FindAll(context, dtype, count, [&](int64_t i, int64_t place) {
            y[i] = place == KeyIndex::kMissing ? *fallback.data<T>() : values.data<T>()[place];
          });
        });
      });
  return {};
}

Status CreateLabelEncoder(KernelInfo& info) {
  ASSIGN_OR_RETURN(const Tensor keys, ListAttribute(info, "keys"));
  ASSIGN_OR_RETURN(const Tensor values, ListAttribute(info, "values"));
  if (!keys.defined() || !values.defined())
    return info.Invalid("needs a keys_* and a values_* attribute");
  ASSIGN_OR_RETURN(const Tensor fallback, DefaultValue(info, values.dtype()));
  return CreateMapping(info, keys, values, fallback);
}

// Between the strings `names` and the integers `numbers`, in the direction that the input asks for.
Status CreateStringMapping(KernelInfo& info, const std::vector<std::string>& names,
                           const std::vector<int64_t>& numbers) {
  const Tensor strings = Tensor::Of(Shape{static_cast<int64_t>(names.size())}, names);
  const Tensor ints = Tensor::Of(Shape{static_cast<int64_t>(numbers.size())}, numbers);
  const bool from_strings = info.InputDType(0) == DType::kString;
  const Tensor& values = from_strings ? ints : strings;
  ASSIGN_OR_RETURN(const Tensor fallback, DefaultValue(info, values.dtype()));
  return CreateMapping(info, from_strings ? strings : ints, values, fallback);
}

// Version 1: a class is its number in classes_strings.
Status CreateFirstLabelEncoder(KernelInfo& info) {
  const auto names = info.Attr<std::vector<std::string>>("classes_strings", {});
  std::vector<int64_t> numbers(names.size());
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int64_t>(i);
  return CreateStringMapping(info, names, numbers);
}

Status CreateCategoryMapper(KernelInfo& info) {
  return CreateStringMapping(info, info.Attr<std::vector<std::string>>("cats_strings", {}),
                             info.Attr<std::vector<int64_t>>("cats_int64s", {}));
}

// Numbers are cut to integers first; what no int64 holds is no category.
int64_t FindCategory(const KeyIndex& index, double value) {
  if (!(std::fabs(value) < 9.2e18)) return KeyIndex::kMissing;
  return index.Find(static_cast<int64_t>(value));
}
int64_t FindCategory(const KeyIndex& index, int64_t value) { return index.Find(value); }
int64_t FindCategory(const KeyIndex& index, int32_t value) { return index.Find(int64_t{value}); }
int64_t FindCategory(const KeyIndex& index, const std::string& value) { return index.Find(value); }

Status CreateOneHotEncoder(KernelInfo& info) {
  ASSIGN_OR_RETURN(const Tensor categories, ListAttribute(info, "cats"));
  const DType dtype = info.InputDType(0);
  if (!categories.defined() ||
      (categories.dtype() == DType::kString) != (dtype == DType::kString)) {
    return info.Invalid("needs cats_strings for strings, otherwise cats_int64s");
  }
  if (categories.dtype() == DType::kFloat32)
    return info.Invalid("categories are strings or integers");
  ASSIGN_OR_RETURN(KeyIndex index, IndexOf(info, categories));
  const int64_t width = categories.elements();
  const int64_t count = info.InputShape(0).elements();
  const bool zeros = info.Attr<int64_t>("zeros", 1) != 0;
  std::vector<int64_t> dims = info.InputShape(0).dims();
  dims.push_back(width);
  auto shape = CheckedShape(std::move(dims), DType::kFloat32);
  if (!shape.ok()) return info.Invalid(shape.status().message());
  info.SetOutput(0, DType::kFloat32, *shape);
  info.SetCompute(
      [=, index = std::move(index), label = info.node().Label()](KernelContext& context) -> Status {
        float* y = context.Output<float>(0);
        std::fill_n(y, count * width, 0.0f);
        bool missing = false;
        DispatchDType<std::string, int64_t, int32_t, float, double>(dtype, [&](auto tag) {
          const auto* x = context.Input<typename decltype(tag)::type>(0);
          for (int64_t i = 0; i < count; ++i) {
            const int64_t place = FindCategory(index, x[i]);
            if (place == KeyIndex::kMissing) missing = true;
            else y[i * width + place] = 1.0f;
          }
        });
        if (missing && !zeros)
          return InvalidArgument(label + " met a value that is no category, and zeros is 0");
        return Status();
      });
  return {};
}

}  // namespace

void RegisterLabel(KernelRegistry& registry) {
  const DTypeSet names = {DType::kString, DType::kInt64};
  const DTypeSet categories = kMlFeatureTypes | DTypeSet{DType::kString};
  const DTypeSet keys = categories | DTypeSet{DType::kInt16};
  const struct {
    const char* op_type;
    int since, until;
    DTypeSet types;
    KernelFactory create;
  } kernels[] = {
      {"LabelEncoder", 2, INT_MAX, keys, CreateLabelEncoder},
      {"LabelEncoder", 1, 1, names, CreateFirstLabelEncoder},
      {"CategoryMapper", 1, INT_MAX, names, CreateCategoryMapper},
      {"OneHotEncoder", 1, INT_MAX, categories, CreateOneHotEncoder},
  };
  for (const auto& kernel : kernels) {
    registry.Add({.op_type = kernel.op_type,
                  .domain = kMlDomain,
                  .since = kernel.since,
                  .until = kernel.until,
                  .types = kernel.types,
                  .create = kernel.create});
  }
}

}  // namespace caesura
