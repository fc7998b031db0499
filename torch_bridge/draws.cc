// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/draws.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "core/ops/random/mersenne_twister.h"

namespace caesura::torch {
namespace {

// Draws into a new tensor of `like`'s sizes, dense in the order of its dims.
using Draw = void (*)(MersenneTwister& twister, double first, double second, at::Tensor& y);

// Draws from the generator; false, with nothing drawn, where its state is none that we know.
bool DrawFrom(at::Generator generator, Draw draw, double first, double second, at::Tensor& y) {
  if (y.numel() == 0) return true;
  auto* const cpu = at::check_generator<at::CPUGeneratorImpl>(generator);
  std::lock_guard<std::mutex> lock(generator.mutex());
  at::mt19937 engine = cpu->engine();
  at::mt19937_data_pod data = engine.data();
  // PyTorch counts the words that are left, and the first one's place; at the beginning, where none
  // are left, the place is 0.
  const int taken = MersenneTwister::kSize + 1 - data.left_;
  if (!engine.is_valid() || (static_cast<int>(data.next_) != taken && data.left_ != 1))
    return false;
  MersenneTwister twister(data.state_, taken);
  draw(twister, first, second, y);
  data.state_ = twister.state();
  data.next_ = static_cast<uint32_t>(twister.taken());
  data.left_ = MersenneTwister::kSize + 1 - twister.taken();
  engine.set_data(data);
  cpu->set_engine(engine);
  return true;
}

void DrawBernoulli(MersenneTwister& twister, double p, double, at::Tensor& y) {
  const auto fill = [&](auto one) {
    twister.FillBernoulli(p, one, y.numel(), static_cast<decltype(one)*>(y.mutable_data_ptr()));
  };
  switch (y.scalar_type()) {  // 1 in each dtype
    case at::kBool: return fill(uint8_t{1});
    case at::kBFloat16: return fill(uint16_t{0x3f80});
    case at::kHalf: return fill(uint16_t{0x3c00});
    case at::kFloat: return fill(uint32_t{0x3f800000});
    default: return fill(uint64_t{0x3ff0000000000000});
  }
}

void DrawUniform(MersenneTwister& twister, double low, double high, at::Tensor& y) {
  if (y.scalar_type() == at::kFloat) {
    return twister.FillUniform(static_cast<float>(low), static_cast<float>(high), y.numel(),
                               y.mutable_data_ptr<float>());
  }
  twister.FillUniform(low, high, y.numel(), y.mutable_data_ptr<double>());
}

// Draws as PyTorch does, after some words were taken: the same numbers, the same state.
template <typename Own>
bool IsPyTorchs(Draw draw, double first, double second, Own own) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    at::Generator ours = at::detail::createCPUGenerator(1),
                  theirs = at::detail::createCPUGenerator(1);
    for (const int64_t count : {5, 2000}) {  // which begin and end within a state
      at::Tensor x = at::empty({count}, dtype), y = at::empty({count}, dtype);
      own(x, theirs);
      if (!DrawFrom(ours, draw, first, second, y) || !at::equal(x, y) ||
          !at::equal(ours.get_state(), theirs.get_state()))
        return false;
    }
  }
  return true;
}

bool Fits(const at::Tensor& like, std::initializer_list<at::ScalarType> dtypes) {
  return like.is_cpu() && like.layout() == at::kStrided && !like.is_meta() &&
         std::find(dtypes.begin(), dtypes.end(), like.scalar_type()) != dtypes.end();
}

at::Generator Given(const std::optional<at::Generator>& generator) {
  return generator && generator->defined() ? *generator : at::detail::getDefaultCPUGenerator();
}

at::Tensor Bernoulli(const at::Tensor& self, double p, std::optional<at::Generator> generator) {
  static const bool is_pytorchs = IsPyTorchs(
      &DrawBernoulli, 0.3, 0, [](at::Tensor& x, auto& from) { x.bernoulli_(0.3, from); });
  if (is_pytorchs && p >= 0 && p <= 1 &&
      Fits(self, {at::kBool, at::kBFloat16, at::kHalf, at::kFloat, at::kDouble})) {
    at::Tensor y = at::empty_like(self, at::MemoryFormat::Contiguous);
    if (DrawFrom(Given(generator), &DrawBernoulli, p, 0, y)) return y;
  }
  return at::bernoulli(self, p, generator);
}

at::Tensor Uniform(const at::Tensor& self, double from, double to,
                   std::optional<at::Generator> generator) {
  static const bool is_pytorchs =
      IsPyTorchs(&DrawUniform, -0.3, 1.1, [](at::Tensor& x, auto& g) { x.uniform_(-0.3, 1.1, g); });
  const bool is_in_range =
      -1e30 <= from && from <= to && to <= 1e30;  // PyTorch refuses some others
  if (is_pytorchs && is_in_range && self.is_contiguous() && Fits(self, {at::kFloat, at::kDouble})) {
    at::Tensor y = at::empty_like(self);
    if (DrawFrom(Given(generator), &DrawUniform, from, to, y)) return y;
  }
  return at::uniform(self, from, to, generator);
}

}  // namespace

void RegisterDraws() {
  static const bool done = [] {
    static ::torch::Library library(::torch::Library::FRAGMENT, "caesura", std::nullopt, __FILE__,
                                    __LINE__);
    const auto define = [](const char* schema, auto* function) {
      library.def(schema, ::torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, function));
    };
    define("bernoulli(Tensor self, float p, *, Generator? generator=None) -> Tensor", &Bernoulli);
    define("uniform(Tensor self, float from=0, float to=1, *, Generator? generator=None) -> Tensor",
           &Uniform);
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace caesura::torch
