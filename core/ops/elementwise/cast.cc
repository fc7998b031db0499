// SPDX-License-Identifier: Apache-2.0
// Cast and CastLike between all types, CastAll (ai.caesura), and BitCast. Types that C++ has are
// converted element by element; types of one byte that it lacks (8- and 4-bit floats, integers
// below a byte) are read through a table of 256 values.
#include "core/base/status_macros.h"
#include "core/kernels/cast_string.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/simd/convert.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/simd/small_types.h"
#include "core/kernels/kernel.h"
#include "core/ops/elementwise/cast_all.h"

namespace caesura {
namespace {

// A cast, apart from its types.
struct CastJob {
  DType from;
  DType to;
  int64_t count;
  SmallFloatEncoder encoder;  // where `to` is a small float
};

template <typename Fn>
bool DispatchNative(DType dtype, Fn&& fn) {
  return DispatchNumeric(dtype, fn) || DispatchDType<bool>(dtype, fn);
}

// y[i] = convert(x[i]). `y` may be `x`.
template <typename From, typename To, typename Convert>
void ConvertAll(int threads, int64_t count, const From* x, To* y, const Convert& convert) {
  ParallelFor(threads, count, kParallelGrain, [&](int64_t first, int64_t last) {
    auto loop = [x, y, first, last, &convert] {
#pragma omp simd
      for (int64_t i = first; i < last; ++i) y[i] = convert(x[i]);
    };
    if constexpr (std::is_same_v<Accumulator<From>, float> &&
                  std::is_same_v<Accumulator<To>, float>) {
      OnBestIsa(loop);
    } else {
      loop();
    }
  });
}

template <typename From, typename To, typename Convert>
void SetElementwise(KernelInfo& info, int64_t count, Convert convert) {
  info.SetCompute([count, threads = info.threads(), convert](KernelContext& context) {
    ConvertAll(threads, count, context.Input<From>(0), context.Output<To>(0), convert);
  });
}

void SetCopy(KernelInfo& info, DType dtype, int64_t count) {
  info.SetCompute([dtype, count](KernelContext& context) {
    const void* x = context.Input<void>(0);
    void* y = context.Output<void>(0);
    if (x != y) CopyElements(dtype, x, y, count);
  });
}

// One element of any C++ type as a byte of a small type.
template <typename From>
uint8_t EncodeElement(const SmallFloatEncoder& encoder, From x) {
  if (kSubByteIntegers.Contains(encoder.dtype))
    return WrapSubByte(encoder.dtype, ConvertElement<int64_t>(x));
  if constexpr (std::is_same_v<From, double>) return encoder(RoundToOdd(x));
  return encoder(static_cast<float>(x));
}

void SetFromSmall(KernelInfo& info, const CastJob& job) {
  const std::array<float, 256> values = DecodeTable(job.from);
  auto set = [&](auto tag) {
    using To = typename decltype(tag)::type;
    auto table = std::make_shared<std::array<To, 256>>();
    for (int i = 0; i < 256; ++i) (*table)[i] = ConvertElement<To>(values[i]);
    SetElementwise<uint8_t, To>(info, job.count, [table](uint8_t x) { return (*table)[x]; });
  };
  if (DispatchNative(job.to, set)) return;
  auto table = std::make_shared<std::array<uint8_t, 256>>();
  for (int i = 0; i < 256; ++i) (*table)[i] = EncodeElement(job.encoder, values[i]);
  SetElementwise<uint8_t, uint8_t>(info, job.count, [table](uint8_t x) { return (*table)[x]; });
}

void SetFromNative(KernelInfo& info, const CastJob& job) {
  DispatchNative(job.from, [&](auto from) {
    using From = typename decltype(from)::type;
    auto set = [&](auto to) {
      using To = typename decltype(to)::type;
      SetElementwise<From, To>(info, job.count, [](From x) { return ConvertElement<To>(x); });
    };
    if (DispatchNative(job.to, set)) return;
    SetElementwise<From, uint8_t>(
        info, job.count, [encoder = job.encoder](From x) { return EncodeElement(encoder, x); });
  });
}

// --- strings ---

// The type in which an element is written and read.
template <typename T>
using TextType = std::conditional_t<std::is_same_v<T, bool> || !std::is_integral_v<T>, T,
                                    std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;

void SetToString(KernelInfo& info, const CastJob& job) {
  auto set = [&](auto tag) {
    using From = typename decltype(tag)::type;
    info.SetCompute([count = job.count](KernelContext& context) {
      const From* x = context.Input<From>(0);
      std::string* y = context.Output<std::string>(0);
      for (int64_t i = 0; i < count; ++i) y[i] = FormatElement(static_cast<TextType<From>>(x[i]));
    });
  };
  if (DispatchNative(job.from, set)) return;
  auto texts = std::make_shared<std::array<std::string, 256>>();
  const std::array<float, 256> values = DecodeTable(job.from);
  const bool integer = IsInteger(job.from);
  for (int i = 0; i < 256; ++i) {
    (*texts)[i] =
        integer ? FormatElement(static_cast<int64_t>(values[i])) : FormatElement(values[i]);
  }
  info.SetCompute([count = job.count, texts](KernelContext& context) {
    const uint8_t* x = context.Input<uint8_t>(0);
    std::string* y = context.Output<std::string>(0);
    for (int64_t i = 0; i < count; ++i) y[i] = (*texts)[x[i]];
  });
}

// Reads each string as a Text and stores store(value).
template <typename Text, typename To, typename Store>
void SetParse(KernelInfo& info, const CastJob& job, Store store) {
  info.SetCompute([job, store, label = info.node().Label()](KernelContext& context) {
    const std::string* x = context.Input<std::string>(0);
    To* y = context.Output<To>(0);
    for (int64_t i = 0; i < job.count; ++i) {
      Text value;
      if (!ParseElement(x[i], &value)) {
        return InvalidArgument(label + " element " + std::to_string(i) + ": '" +
                               x[i].substr(0, 40) + "' is no " + DTypeName(job.to));
      }
      y[i] = store(value);
    }
    return Status();
  });
}

void SetFromString(KernelInfo& info, const CastJob& job) {
  auto set = [&](auto tag) {
    using To = typename decltype(tag)::type;
    using Text = std::conditional_t<kIsHalf<To>, float, TextType<To>>;
    SetParse<Text, To>(info, job, [](Text value) { return ConvertElement<To>(value); });
  };
  if (DispatchNative(job.to, set)) return;
  SetParse<double, uint8_t>(
      info, job, [encoder = job.encoder](double v) { return EncodeElement(encoder, v); });
}

// --- factories ---

// A cast to the same type, as a view.
Status SettleNoCast(KernelInfo& info, DType to) {
  if (info.InputDType(0) != to) return info.Refuse("is no view: the type changes");
  info.SetOutput(0, to, info.InputShape(0));
  SetCopy(info, to, info.InputShape(0).elements());
  return {};
}

Status SettleCast(KernelInfo& info, DType to) {
  constexpr DTypeSet kCastTypes =
      kNumericTypes | kSmallTypes | DTypeSet{DType::kBool, DType::kString};
  const DType from = info.InputDType(0);
  if (!kCastTypes.Contains(from) || !kCastTypes.Contains(to) || from == to) {
    return info.Refuse(std::string("does not convert ") + DTypeName(from) + " to " + DTypeName(to));
  }
  const auto rounding = ParseE8M0Rounding(info.Attr<std::string>("round_mode", "up"));
  if (!rounding) return info.Invalid("round_mode: expected up, down or nearest");
  const bool saturate = info.Attr<int64_t>("saturate", 1) != 0;
  const CastJob job{from, to, info.InputShape(0).elements(), {to, saturate, *rounding}};
  info.SetOutput(0, to, info.InputShape(0));
  if (to == DType::kString) {
    SetToString(info, job);
  } else if (from == DType::kString) {
    SetFromString(info, job);
  } else if (kSmallTypes.Contains(from)) {
    SetFromSmall(info, job);
  } else {
    SetFromNative(info, job);
  }
  return {};
}

Status CreateCastAll(KernelInfo& info) {
  ASSIGN_OR_RETURN(const CastAllSpec spec, CastAllSpec::Make(info));
  DispatchFloat(spec.from, [&](auto from) {
    DispatchFloat(spec.to, [&](auto to) {
      using From = typename decltype(from)::type;
      using To = typename decltype(to)::type;
      info.SetCompute([elements = spec.elements, threads = info.threads()](KernelContext& context) {
        for (int i = 0; i < static_cast<int>(elements.size()); ++i) {
          ConvertAll(threads, elements[i], context.Input<From>(i), context.Output<To>(i),
                     [](From x) { return ConvertElement<To>(x); });
        }
      });
    });
  });
  return {};
}

// The attribute `to` as a type; kUndefined for a number that is none of ours.
DType TargetType(const KernelInfo& info) {
  const int64_t to = info.Attr<int64_t>("to", 0);
  return to > 0 && to < kDTypeCount ? static_cast<DType>(to) : DType::kUndefined;
}

template <Status (*settle)(KernelInfo&, DType)>
Status CreateCast(KernelInfo& info) {
  return settle(info, TargetType(info));
}

template <Status (*settle)(KernelInfo&, DType)>
Status CreateCastLike(KernelInfo& info) {
  if (!info.HasInput(1) || !info.input(1).is_tensor)
    return info.Invalid("target_type: expected a tensor");
  return settle(info, info.InputDType(1));
}

// Bool bytes other than 0 and 1 have no meaning, and of integers below a byte only the low bits
// count: such bytes are put in order. All others stay as they are.
bool BitCastChangesBytes(DType to) { return to == DType::kBool || kSubByteIntegers.Contains(to); }

template <bool kView>
Status CreateBitCast(KernelInfo& info) {
  const DType from = info.InputDType(0), to = TargetType(info);
  if (!kFixedTypes.Contains(from) || !kFixedTypes.Contains(to))
    return info.Invalid("expected types of fixed width");
  if (DTypeFileBits(from) != DTypeFileBits(to)) {
    return info.Invalid(std::string("expected types of equal width, got ") + DTypeName(from) +
                        " and " + DTypeName(to));
  }
  if (kView && BitCastChangesBytes(to)) return info.Refuse("is no view: bytes may change");
  const int64_t count = info.InputShape(0).elements();
  info.SetOutput(0, to, info.InputShape(0));
  if (to == DType::kBool) {
    SetElementwise<uint8_t, bool>(info, count, [](uint8_t x) { return x != 0; });
  } else if (kSubByteIntegers.Contains(to)) {
    SetElementwise<uint8_t, uint8_t>(info, count, [to](uint8_t x) { return WrapSubByte(to, x); });
  } else {
    SetCopy(info, to, count);
  }
  return {};
}

}  // namespace

void RegisterCast(KernelRegistry& registry) {
  const std::vector<Alias> view = {View(0, 0)}, in_place = {MayReuse(0, 0)};
  registry.Add({.op_type = "Cast", .aliases = view, .create = CreateCast<SettleNoCast>});
  registry.Add({.op_type = "Cast", .aliases = in_place, .create = CreateCast<SettleCast>});
  registry.Add({.op_type = "CastAll",
                .domain = kCaesuraDomain,
                .types = kFloatTypes,
                .create = CreateCastAll});
  registry.Add({.op_type = "CastLike", .aliases = view, .create = CreateCastLike<SettleNoCast>});
  registry.Add({.op_type = "CastLike", .aliases = in_place, .create = CreateCastLike<SettleCast>});
  registry.Add(
      {.op_type = "BitCast", .types = kFixedTypes, .aliases = view, .create = CreateBitCast<true>});
  registry.Add({.op_type = "BitCast",
                .types = kFixedTypes,
                .aliases = in_place,
                .create = CreateBitCast<false>});
}

}  // namespace caesura
