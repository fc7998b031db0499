// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/sequence_map.h"

#include <memory>
#include <string>

#include "core/graph/aten_domain.h"
#include "core/gradient/gradient_path.h"

namespace caesura::gradient {
namespace {

bool IsSequence(const ValueType& type) {
  if (type.kind == ValueType::Kind::kOptional && type.element != nullptr)
    return IsSequence(*type.element);
  return type.kind == ValueType::Kind::kSequence;
}

DType ElementDType(const ValueType& type) {
  return type.element == nullptr ? type.dtype : ElementDType(*type.element);
}

}  // namespace

Expr MapSequence(const Exprs& sequences, DType dtype,
                 const std::function<Expr(const Exprs& elements)>& f) {
  NodeWriter& outer = *sequences[0].writer();
  auto body = std::make_shared<Graph>("map", &outer.graph());
  NodeWriter writer(*body, Phase::kBackward, outer.FreshName("map") + "/");
  Value* i = body->AddInput(writer.FreshName("i"), ValueType::Tensor(DType::kInt64, Shape{}));
  Value* go = body->AddInput(writer.FreshName("go"), ValueType::Tensor(DType::kBool, Shape{}));
  Value* done = body->AddInput(writer.FreshName("done"), SequenceOf(dtype));
  Exprs elements;
  for (const Expr& sequence : sequences) {
    Value* element = writer.Add("SequenceAt", {sequence.value(), i})->output(0);
    element->set_type(ValueType::Tensor(ElementDType(sequence.value()->type())));
    elements.emplace_back(element, &writer);
  }
  Node* append = writer.Add("SequenceInsert", {done, f(elements).value()});
  append->output(0)->set_type(SequenceOf(dtype));
  body->AddOutput(writer.Add("Identity", {go})->output(0));
  body->AddOutput(append->output(0));
  const Expr empty =
      Op("SequenceEmpty", {Expr(nullptr, &outer)}, {{"dtype", static_cast<int64_t>(dtype)}});
  empty.value()->set_type(SequenceOf(dtype));
  const Expr mapped =
      Op("Loop", {Op("SequenceLength", {sequences[0]}), Expr(), empty}, {{"body", body}});
  mapped.value()->set_type(SequenceOf(dtype));
  return mapped;
}

Expr ZerosOf(Expr x) {
  if (!IsSequence(x.value()->type())) return ZerosLike(x);
  return MapSequence({x}, ElementDType(x.value()->type()),
                     [](const Exprs& e) { return ZerosLike(e[0]); });
}

Expr SumOf(Expr a, Expr b) {
  if (IsComplex(a.dtype())) {  // only operators of PyTorch calculate with such
    return Op(kAtenOp, {a, b},
              {{"operator", std::string("aten::add")}, {"overload_name", std::string("Tensor")}},
              kAtenDomain);
  }
  if (!IsSequence(a.value()->type())) return a + b;
  return MapSequence({a, b}, ElementDType(a.value()->type()),
                     [](const Exprs& e) { return e[0] + e[1]; });
}

}  // namespace caesura::gradient
