// SPDX-License-Identifier: Apache-2.0
// The updates of optimizers in ONNX's operators: the rules of update_rules.h, operation by
// operation. Numbers that all elements share are worked out here as far as they are known, and in
// float64 in the graph otherwise.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/ops/op_bodies.h"

namespace caesura::gradient {
namespace {

constexpr int kFirst = 3;  // inputs before the parameters

// A number that all elements share: known, or a float64 scalar of the graph.
class Shared {
 public:
  Shared(double known) : known_(known) {}
  explicit Shared(Expr value) : value_(value) {}
  bool Is(double number) const { return !value_ && known_ == number; }
  bool IsAbove(double number) const { return !value_ && known_ > number; }
  // In the dtype of `like`.
  Expr In(Expr like) const { return value_ ? Cast(value_, like.dtype()) : Number(known_, like); }
  bool is_known() const { return !value_; }
  double known() const { return known_; }
  Expr value() const { return value_; }

 private:
  double known_ = 0;
  Expr value_;
};

template <typename F>
Shared Calculate(const char* op, const Shared& a, const Shared& b, F known) {
  if (a.is_known() && b.is_known()) return known(a.known(), b.known());
  const Expr like = a.is_known() ? b.value() : a.value();
  return Shared(Op(op, {a.In(like), b.In(like)}));
}
Shared operator+(const Shared& a, const Shared& b) {
  return Calculate("Add", a, b, [](double x, double y) { return x + y; });
}
Shared operator-(const Shared& a, const Shared& b) {
  return Calculate("Sub", a, b, [](double x, double y) { return x - y; });
}
Shared operator*(const Shared& a, const Shared& b) {
  if (a.Is(1)) return b;
  if (b.Is(1)) return a;
  return Calculate("Mul", a, b, [](double x, double y) { return x * y; });
}
Shared operator/(const Shared& a, const Shared& b) {
  return Calculate("Div", a, b, [](double x, double y) { return x / y; });
}
Shared Power(const Shared& a, const Shared& b) {
  return Calculate("Pow", a, b, [](double x, double y) { return std::pow(x, y); });
}
Shared Root(const Shared& a) {
  return a.is_known() ? Shared(std::sqrt(a.known())) : Shared(Sqrt(a.value()));
}

// a + weight (b - a), from the nearer end as torch.lerp does; from a where the weight is fed.
Expr Lerp(Expr a, Expr b, const Shared& weight) {
  if (weight.is_known() && weight.known() >= 0.5) return b - (b - a) * (1 - weight).In(a);
  return a + weight.In(a) * (b - a);
}

// One parameter, its gradient and its states, in the type that is computed in.
struct Element {
  Expr p, g;
  std::vector<Expr> states;
  std::vector<Shared> scalars;
};

class Update {
 public:
  explicit Update(OpBody& b) : b_(b) {}

  void Write() {
    const auto count = static_cast<int>(b_.IntAttr("count", 0));
    if (count < 1 || (b_.input_count() - kFirst) % count != 0)
      return b_.Refuse("has no count of parameters that fits its inputs");
    ReadShared();
    const int states = (b_.input_count() - kFirst) / count - 2;
    for (int i = 0; i < count; ++i) WriteOne(i, count, states);
  }

 private:
  bool IsSet(const char* name) const { return b_.IntAttr(name, 0) != 0; }
  bool Is(const char* op_type) const { return b_.node().Is(op_type, kCaesuraDomain); }

  std::optional<int64_t> PlaceOf(const std::string& name) const {
    const auto fed = b_.Attr<std::vector<std::string>>("fed", {});
    const auto found = std::find(fed.begin(), fed.end(), name);
    if (found == fed.end()) return std::nullopt;
    return b_.IntAttr("first", 0) + (found - fed.begin());
  }
  Shared Fed(int64_t place) const {
    return Shared(Cast(Gather(b_.input(0), Int(place, b_.input(0)), 0), DType::kFloat64));
  }
  // A coefficient: fed, or written in the node.
  Shared Of(const char* name) {
    if (const auto place = PlaceOf(name)) return Fed(*place);
    if (const Tensor* exact = b_.node().FindAttr<Tensor>(name)) return *exact->data<double>();
    if (const float* rounded = b_.node().FindAttr<float>(name)) return *rounded;
    b_.Refuse(std::string("has no coefficient '") + name + "'");
    return 0;
  }

  void ReadShared() {
    const auto place = PlaceOf("learning_rate");
    rate_ = place ? Fed(*place) : Shared(Cast(b_.input(0), DType::kFloat64));
    t_ = Shared(Cast(b_.input(1), DType::kFloat64));
    if (const auto offset = PlaceOf("step_offset")) t_ = t_ + Fed(*offset);
    if (b_.HasInput(2)) {
      const Tensor* known = b_.Constant(2);
      scale_ = known != nullptr && known->dtype() == DType::kFloat64
                   ? Shared(*known->data<double>())
                   : Shared(Cast(b_.input(2), DType::kFloat64));
    }
    if (IsSet("skip_infinite")) b_.Refuse("leaves out what no rank uses");
    if (IsSet("skip_nonfinite") && !scale_.is_known())
      skip_ = Op("IsNaN", {scale_.value() - scale_.value()});
    if (IsSet("maximize")) scale_ = scale_ * -1;
  }

  void WriteOne(int i, int count, int states) {
    const auto input = [&](int kind) { return b_.input(kFirst + kind * count + i); };
    const int scalars = Is("NAdamUpdate") ? 1 : Is("AsgdUpdate") ? 2 : 0;
    const DType dtype = input(0).dtype();
    const DType wide = dtype == DType::kFloat64 ? dtype : DType::kFloat32;
    Element e{Cast(input(0), wide), Cast(input(1), wide), {}, {}};
    if (!scale_.Is(1)) e.g = e.g * scale_.In(e.g);
    for (int s = 0; s < states; ++s) {
      if (s < scalars) e.scalars.emplace_back(Cast(input(2 + s), DType::kFloat64));
      else e.states.push_back(Cast(input(2 + s), wide));
    }
    Apply(e);
    const auto leave = [&](int kind, int from, Expr value) {
      value = Cast(value, input(from).dtype());
      b_.SetOutput(kind * count + i, skip_ ? Where(skip_, input(from), value) : value);
    };
    leave(0, 0, e.p);
    for (int s = 0; s < states; ++s)
      leave(1 + s, 2 + s, s < scalars ? e.scalars[s].value() : e.states[s - scalars]);
  }

  void Apply(Element& e) {
    if (Is("SgdUpdate")) return Sgd(e);
    if (Is("AdamUpdate") || Is("AdamWUpdate")) return Adam(e);
    if (Is("LionUpdate")) return Lion(e);
    if (Is("RmspropUpdate")) return Rmsprop(e);
    if (Is("NAdamUpdate")) return NAdam(e);
    if (Is("RAdamUpdate")) return RAdam(e);
    if (Is("AdamaxUpdate")) return Adamax(e);
    if (Is("AdagradUpdate")) return Adagrad(e);
    if (Is("AdadeltaUpdate")) return Adadelta(e);
    if (Is("AsgdUpdate")) return Asgd(e);
    if (Is("RpropUpdate")) return Rprop(e);
    if (Is("LambUpdate")) return Lamb(e);
    b_.Refuse("is no update that is known here");
  }

  // g + decay p; g alone for a decay of 0, whatever p is.
  Expr WithDecay(Expr g, const Shared& decay, Expr p) {
    if (decay.Is(0)) return g;
    const Expr sum = g + decay.In(p) * p;
    return decay.is_known() ? sum : Where(Equal(decay.In(p), Number(0, p)), g, sum);
  }
  // p shrunk by a decay that is no part of the gradient.
  Expr Decayed(Expr p, const Shared& decay) {
    return decay.Is(0) ? p : p * (1 - rate_ * decay).In(p);
  }
  void Moments(Element& e, bool decoupled) {
    const Shared decay = Of("weight_decay");
    if (decoupled) e.p = Decayed(e.p, decay);
    else e.g = WithDecay(e.g, decay, e.p);
    FirstMoment(e);
    SecondMoment(e.states[1], e.g, Of("beta2"));
  }
  void FirstMoment(Element& e) { e.states[0] = Lerp(e.states[0], e.g, 1 - Of("beta1")); }
  static void SecondMoment(Expr& v, Expr g, const Shared& beta) {
    v = beta.In(v) * v + (1 - beta).In(v) * g * g;
  }
  Shared Correction(const char* beta) { return 1 - Power(Of(beta), t_); }

  void Sgd(Element& e) {
    e.g = WithDecay(e.g, Of("weight_decay"), e.p);
    Expr step = e.g;
    if (!e.states.empty()) {
      const Shared momentum = Of("momentum"), dampening = Of("dampening");
      Expr taken = e.g;
      if (!dampening.Is(0)) {
        const Expr later = (1 - dampening).In(e.g), first = Number(1, e.g);
        const Expr t = t_.value();
        taken = Where(Equal(t, Number(1, t)), first, later) * e.g;
      }
      e.states[0] = momentum.In(e.g) * e.states[0] + taken;
      step = IsSet("nesterov") ? e.g + momentum.In(e.g) * e.states[0] : e.states[0];
    }
    e.p = e.p - rate_.In(e.p) * step;
  }
  // With r = sqrt(1 - beta2^t): rate m / (1 - beta1^t) / (sqrt(v) / r + epsilon) with r taken out
  // of the quotient, and s = sqrt(1 - beta2) g, whose factor a product that makes g can take over:
  // fewer passes over the elements than operation by operation.
  void Adam(Element& e) {
    const Shared decay = Of("weight_decay"), beta1 = Of("beta1"), beta2 = Of("beta2");
    const Shared share = Root(1 - beta2), r = Root(Correction("beta2"));
    Expr &m = e.states[0], &v = e.states[1];
    Expr s = e.g * share.In(e.g);
    if (Is("AdamWUpdate")) e.p = Decayed(e.p, decay);
    else s = WithDecay(s, share * decay, e.p);
    m = beta1.In(m) * m + ((1 - beta1) / share).In(m) * s;
    v = beta2.In(v) * v + s * s;
    if (IsSet("amsgrad")) e.states[2] = Op("Max", {e.states[2], v});
    const Expr d = Sqrt(e.states[IsSet("amsgrad") ? 2 : 1]) + (Of("epsilon") * r).In(v);
    e.p = e.p - (rate_ * r / Correction("beta1")).In(v) * m / d;
  }
  void Lion(Element& e) {
    const Shared decay = Of("weight_decay"), beta1 = Of("beta1"), beta2 = Of("beta2");
    Expr& m = e.states[0];
    const Expr direction = beta1.In(m) * m + (1 - beta1).In(m) * e.g;
    const Expr sign = Where(Op("IsNaN", {direction}), direction, Op("Sign", {direction}));
    e.p = Decayed(e.p, decay) - rate_.In(m) * sign;
    m = beta2.In(m) * m + (1 - beta2).In(m) * e.g;
  }
  void Rmsprop(Element& e) {
    const Shared alpha = Of("alpha");
    const bool centered = IsSet("centered");
    e.g = WithDecay(e.g, Of("weight_decay"), e.p);
    SecondMoment(e.states[0], e.g, alpha);
    Expr variance = e.states[0];
    if (centered) {
      e.states[1] = Lerp(e.states[1], e.g, 1 - alpha);
      variance = variance - e.states[1] * e.states[1];
    }
    const Expr d = Sqrt(variance) + Of("epsilon").In(variance);
    if (e.states.size() == 1u + centered) {
      e.p = e.p - rate_.In(e.p) * e.g / d;
      return;
    }
    Expr& buffer = e.states.back();
    buffer = Of("momentum").In(buffer) * buffer + e.g / d;
    e.p = e.p - rate_.In(e.p) * buffer;
  }
  void NAdam(Element& e) {
    const Shared beta1 = Of("beta1"), momentum_decay = Of("momentum_decay");
    const auto mu = [&](const Shared& t) {
      return beta1 * (1 - Shared(0.5) * Power(0.96, t * momentum_decay));
    };
    const Shared now = mu(t_), next = mu(t_ + 1);
    // The state is as wide as it is stored.
    const DType stored = b_.input(kFirst + 2 * static_cast<int>(b_.IntAttr("count", 0))).dtype();
    const Shared product(Cast(Cast((e.scalars[0] * now).value(), stored), DType::kFloat64));
    e.scalars[0] = product;
    Moments(e, IsSet("decoupled_weight_decay"));
    const Expr v = e.states[1];
    const Expr d = Sqrt(v / Correction("beta2").In(v)) + Of("epsilon").In(v);
    e.p = e.p - (rate_ * (1 - now) / (1 - product)).In(v) * e.g / d;
    e.p = e.p - (rate_ * next / (1 - product * next)).In(v) * e.states[0] / d;
  }
  void RAdam(Element& e) {
    Moments(e, IsSet("decoupled_weight_decay"));
    const Shared beta2 = Of("beta2"), power = Power(beta2, t_);
    const Shared most = Shared(2) / (1 - beta2) - 1;
    const Shared length = most - Shared(2) * t_ * power / (1 - power);
    const Shared rectification =
        Root((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length));
    const Expr m = e.states[0], v = e.states[1];
    const Expr step = m / Correction("beta1").In(m) * rate_.In(m);
    const Expr adaptive = Root(1 - power).In(v) / (Sqrt(v) + Of("epsilon").In(v));
    const Expr is_rectified = Greater(length.value(), Number(5, length.value()));
    e.p = e.p - Where(is_rectified, step * adaptive * rectification.In(m), step);
  }
  void Adamax(Element& e) {
    e.g = WithDecay(e.g, Of("weight_decay"), e.p);
    FirstMoment(e);
    Expr& u = e.states[1];
    u = Op("Max", {u * Of("beta2").In(u), Abs(e.g) + Of("epsilon").In(u)});
    e.p = e.p - (rate_ / Correction("beta1")).In(u) * e.states[0] / u;
  }
  void Adagrad(Element& e) {
    e.g = WithDecay(e.g, Of("weight_decay"), e.p);
    e.states[0] = e.states[0] + e.g * e.g;
    const Shared decay = Of("lr_decay");
    const Shared rate = decay.Is(0) ? rate_ : rate_ / (1 + (t_ - 1) * decay);
    e.p = e.p - rate.In(e.p) * e.g / (Sqrt(e.states[0]) + Of("epsilon").In(e.p));
  }
  void Adadelta(Element& e) {
    const Shared rho = Of("rho"), epsilon = Of("epsilon");
    e.g = WithDecay(e.g, Of("weight_decay"), e.p);
    SecondMoment(e.states[0], e.g, rho);
    const Expr d = Sqrt(e.states[1] + epsilon.In(e.p)) / Sqrt(e.states[0] + epsilon.In(e.p)) * e.g;
    SecondMoment(e.states[1], d, rho);
    e.p = e.p - rate_.In(e.p) * d;
  }
  void Asgd(Element& e) {
    const Shared lambd = Of("lambd"), eta = e.scalars[0], mu = e.scalars[1];
    const auto rounded = [&](const Shared& x) {
      return IsSet("float64_rates")
                 ? x
                 : Shared(Cast(Cast(x.value(), DType::kFloat32), DType::kFloat64));
    };
    e.scalars[0] = rounded(rate_ / Power(1 + lambd * rate_ * t_, Of("alpha")));
    const Expr averaged = (t_ - Of("t0")).value();
    e.scalars[1] = rounded(Shared(1) / Shared(Op("Max", {averaged, Number(1, averaged)})));
    e.g = WithDecay(e.g, Of("weight_decay"), e.p);
    e.p = e.p * (1 - lambd * eta).In(e.p);
    e.p = e.p - eta.In(e.p) * e.g;
    Expr& ax = e.states[0];
    const Expr is_last = Equal(mu.value(), Number(1, mu.value()));
    ax = Where(is_last, e.p, ax + (e.p - ax) * mu.In(ax));
  }
  void Rprop(Element& e) {
    Expr &before = e.states[0], &size = e.states[1];
    const Expr kept = e.g * before, zero = Number(0, e.g), is_other = Less(kept, zero);
    const Expr factor = Where(Greater(kept, zero), Of("eta_plus").In(size),
                              Where(is_other, Of("eta_minus").In(size), Number(1, size)));
    size = Op("Min", {Of("step_size_max").In(size),
                      Op("Max", {Of("step_size_min").In(size), size * factor})});
    e.g = Where(is_other, zero, e.g);
    e.p = e.p - Sign(e.g) * size;
    before = e.g;
  }
  // The ratio is 1 where either norm is 0 or that of p is infinite.
  void Lamb(Element& e) {
    FirstMoment(e);
    SecondMoment(e.states[1], e.g, Of("beta2"));
    const DType stored = b_.input(kFirst).dtype();
    const auto as_stored = [&](Expr x) { return Cast(Cast(x, stored), x.dtype()); };
    const Expr m = as_stored(e.states[0]), v = as_stored(e.states[1]);
    const Expr u = WithDecay(
        m / Correction("beta1").In(m) / (Sqrt(v / Correction("beta2").In(v)) + Of("epsilon").In(v)),
        Of("weight_decay"), e.p);
    const auto square = [](Expr x) {
      return Op("ReduceSumSquare", {Cast(x, DType::kFloat64)}, {{"keepdims", int64_t{0}}});
    };
    const Expr of_p = square(e.p), of_u = square(u), zero = Number(0, of_p);
    const Expr is_one = Or(Or(Equal(of_p, zero), Equal(of_u, zero)), Op("IsInf", {of_p}));
    const Shared ratio(Where(is_one, Number(1, of_p), Sqrt(of_p) / Sqrt(of_u)));
    e.p = e.p - (rate_ * ratio).In(u) * u;
  }

  OpBody& b_;
  Shared rate_ = 0, t_ = 0, scale_ = 1;
  Expr skip_;  // null: nothing is skipped
};

}  // namespace

void UpdateBody(OpBody& b) { Update(b).Write(); }

}  // namespace caesura::gradient
