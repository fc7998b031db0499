// SPDX-License-Identifier: Apache-2.0
#include "training/training_session.h"

#include <nanobind/stl/tuple.h>

#include "core/profile/chrome_trace.h"
#include "torch_bridge/python/bindings.h"

namespace nb = nanobind;

namespace caesura::python {
namespace {

template <typename Owner>
bool Set(Owner& owner, const std::string& key, const std::string& name, double Owner::*member, double value) {
  if (key != name) return false;
  owner.*member = value;
  return true;
}

// Sets one coefficient of an optimizer by its name; false when it has none of that name.
bool SetCoefficient(Sgd& o, const std::string& k, double v) {
  if (k == "nesterov") return o.nesterov = v != 0, true;
  return Set(o, k, "momentum", &Sgd::momentum, v) || Set(o, k, "dampening", &Sgd::dampening, v) ||
         Set(o, k, "weight_decay", &Sgd::weight_decay, v);
}
template <typename AdamLike>
bool SetCoefficient(AdamLike& o, const std::string& k, double v) {
  return Set(o, k, "beta1", &AdamLike::beta1, v) || Set(o, k, "beta2", &AdamLike::beta2, v) ||
         Set(o, k, "epsilon", &AdamLike::epsilon, v) || Set(o, k, "weight_decay", &AdamLike::weight_decay, v);
}
bool SetCoefficient(Lion& o, const std::string& k, double v) {
  return Set(o, k, "beta1", &Lion::beta1, v) || Set(o, k, "beta2", &Lion::beta2, v) ||
         Set(o, k, "weight_decay", &Lion::weight_decay, v);
}
bool SetCoefficient(Rmsprop& o, const std::string& k, double v) {
  if (k == "centered") return o.centered = v != 0, true;
  return Set(o, k, "alpha", &Rmsprop::alpha, v) || Set(o, k, "epsilon", &Rmsprop::epsilon, v) ||
         Set(o, k, "momentum", &Rmsprop::momentum, v) || Set(o, k, "weight_decay", &Rmsprop::weight_decay, v);
}

Optimizer MakeOptimizer(const std::string& name, const std::map<std::string, double>& coefficients) {
  const std::map<std::string, Optimizer> kinds = {{"sgd", Sgd{}},   {"adam", Adam{}}, {"adamw", AdamW{}},
                                                  {"lamb", Lamb{}}, {"lion", Lion{}}, {"rmsprop", Rmsprop{}}};
  auto it = kinds.find(name);
  if (it == kinds.end()) Raise(InvalidArgument("optimizer '" + name + "' is none of sgd, adam, adamw, lamb, lion, rmsprop"));
  Optimizer optimizer = it->second;
  for (const auto& [key, value] : coefficients) {
    const bool known = std::visit(
        [&, &key = key, &value = value](auto& o) {
          if (key == "learning_rate") return o.learning_rate = value, true;
          return SetCoefficient(o, key, value);
        },
        optimizer);
    if (!known) Raise(InvalidArgument("optimizer '" + name + "' has no coefficient '" + key + "'"));
  }
  return optimizer;
}

Loss MakeLoss(const std::string& kind, const std::string& prediction, const std::string& target, int class_axis) {
  const std::map<std::string, Loss::Kind> kinds = {{"cross_entropy", Loss::Kind::kCrossEntropy},
                                                   {"mse", Loss::Kind::kMeanSquaredError},
                                                   {"l1", Loss::Kind::kMeanAbsoluteError},
                                                   {"bce_with_logits", Loss::Kind::kBinaryCrossEntropyLogits},
                                                   {"output", Loss::Kind::kOutput}};
  auto it = kinds.find(kind);
  if (it == kinds.end()) {
    Raise(InvalidArgument("loss '" + kind + "' is none of cross_entropy, mse, l1, bce_with_logits, output"));
  }
  Loss loss{it->second, prediction, target};
  loss.class_axis = class_axis;
  return loss;
}

// The arguments of the Python class, by name.
std::unique_ptr<TrainingSession> Open(nb::object source, nb::dict arguments) {
  auto get = [&](const char* name) { return arguments[name]; };
  TrainingOptions options;
  options.step.loss = MakeLoss(nb::cast<std::string>(get("loss")), nb::cast<std::string>(get("prediction")),
                               nb::cast<std::string>(get("target")), nb::cast<int>(get("class_axis")));
  options.step.optimizer = MakeOptimizer(nb::cast<std::string>(get("optimizer")),
                                         nb::cast<std::map<std::string, double>>(get("coefficients")));
  for (nb::handle item : nb::cast<nb::list>(get("groups"))) {
    const auto [names, scale, decay] = nb::cast<std::tuple<std::vector<std::string>, double, double>>(item);
    options.step.groups.push_back({names, scale, decay});
  }
  options.step.trainable = nb::cast<std::vector<std::string>>(get("trainable"));
  options.step.frozen = nb::cast<std::vector<std::string>>(get("frozen"));
  options.step.clip_norm = nb::cast<double>(get("clip_norm"));
  options.step.accumulation_steps = nb::cast<int>(get("accumulation_steps"));
  options.step.precision = Unwrap(PrecisionByName(nb::cast<std::string>(get("precision"))));
  options.step.keep_gradients = nb::cast<bool>(get("keep_gradients"));
  const auto commit = nb::cast<std::string>(get("commit"));
  if (commit != "late" && commit != "eager-consume") Raise(InvalidArgument("commit is 'late' or 'eager-consume'"));
  options.step.commit = commit == "late" ? CommitMode::kLate : CommitMode::kEagerConsume;
  options.threads = nb::cast<int>(get("threads"));
  options.providers = {CpuProvider()};
  options.memory_budget = nb::cast<size_t>(get("memory_budget"));
  options.seed = nb::cast<uint64_t>(get("seed"));
  return Unwrap(TrainingSession::Create(ReadSource(source), std::move(options)));
}

void Check(const Status& status) {
  if (!status.ok()) Raise(status);
}

}  // namespace

void BindTraining(nb::module_& m) {
  nb::class_<TrainingSession>(m, "Training")
      .def_static("open", &Open)
      .def("step",
           [](TrainingSession& session, nb::dict arrays) {
             const NamedValues feeds = FeedsOf(arrays);
             auto loss = [&] {
               nb::gil_scoped_release release;
               return session.Step(feeds);
             }();
             return Unwrap(std::move(loss));
           })
      .def("profile_step",
           [](TrainingSession& session, nb::dict arrays, const std::string& trace) {
             const NamedValues feeds = FeedsOf(arrays);
             Profiler profiler;
             auto loss = [&] {
               nb::gil_scoped_release release;
               return session.Step(feeds, {&profiler});
             }();
             Unwrap(std::move(loss));
             if (!trace.empty()) Check(WriteChromeTrace(trace, profiler.Events()));
             return profiler.Summary();
           })
      .def("evaluate",
           [](TrainingSession& session, nb::dict arrays) {
             const NamedValues feeds = FeedsOf(arrays);
             auto result = [&] {
               nb::gil_scoped_release release;
               return session.Evaluate(feeds);
             }();
             Evaluation evaluation = Unwrap(std::move(result));
             return nb::make_tuple(evaluation.loss, evaluation.outputs);
           })
      .def("predict",
           [](TrainingSession& session, nb::dict arrays) {
             const NamedValues feeds = FeedsOf(arrays);
             auto result = [&] {
               nb::gil_scoped_release release;
               return session.Predict(feeds);
             }();
             return Unwrap(std::move(result));
           })
      .def("gradients", [](const TrainingSession& session) { return session.gradients(); })
      .def("parameter_names", &TrainingSession::ParameterNames)
      .def("parameter",
           [](const TrainingSession& session, const std::string& name) {
             return RuntimeValue(Unwrap(Unwrap(session.Parameter(name)).Clone()));
           })
      .def("set_parameter",
           [](TrainingSession& session, const std::string& name, const RuntimeValue& value) {
             Check(session.SetParameter(name, value.tensor()));
           })
      .def("bind_parameter",
           [](TrainingSession& session, const std::string& name, nb::handle array) {
             DlpackImport facts;
             Tensor tensor = FromPython(array, &facts);
             if (facts.copied) Raise(InvalidArgument("parameter '" + name + "' is not dense: it cannot be bound"));
             Check(session.BindParameter(name, std::move(tensor)));
           })
      .def("set_position", &TrainingSession::SetPosition)
      .def_prop_rw("seed", &TrainingSession::seed, &TrainingSession::set_seed)
      .def_prop_ro("updates", &TrainingSession::updates)
      .def_prop_ro("loss_scale", &TrainingSession::loss_scale)
      .def_prop_rw("learning_rate", &TrainingSession::learning_rate, &TrainingSession::set_learning_rate)
      .def("save", [](const TrainingSession& session, const std::string& path) { Check(session.Save(path)); })
      .def("restore", [](TrainingSession& session, const std::string& path) { Unwrap(session.Restore(path)); })
      .def("export", [](const TrainingSession& session, const std::string& path) { Check(session.ExportModel(path)); })
      .def("plan", [](TrainingSession& session, nb::dict arrays) {
        const auto plan = Unwrap(session.StepPlan(FeedsOf(arrays)));
        return nb::make_tuple(plan->ToString(), plan->arena_bytes());
      });
}

}  // namespace caesura::python
