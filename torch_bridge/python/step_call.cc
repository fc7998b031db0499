// SPDX-License-Identifier: Apache-2.0
// StepCall: a call of a compiled step from what Python hands over to the loss, where nothing has changed that the step was
// captured for.
#include <cmath>

#include "torch_bridge/python/watch.h"
#include "training/training_session.h"

namespace nb = nanobind;

namespace caesura::python {
namespace {

// A tensor that the step reads: at a path of keys into the call's args or kwargs, or one that stays.
struct Feed {
  std::string name;
  bool in_kwargs = false;
  std::vector<nb::object> path;
  nb::object tensor;
};

// Thread safety: one thread at a time, as the session.
class StepCall {
 public:
  // watch: what must be as it was. guards: dynamo's check of a frame's locals; or None, and the call's (args, kwargs) must
  // match `signature`. feeds: (name, path or tensor). groups: the optimizer's own, whose rates are `scales` times the
  // first one's. updates: the optimizer's count of updates by parameter, float32, which steps move.
  StepCall(nb::object session, nb::object guards, nb::object signature, nb::object watch, nb::list feeds, nb::list groups,
           std::vector<double> scales, nb::object updates)
      : session_object_(session), session_(nb::cast<TrainingSession&>(session)), guards_(std::move(guards)),
        watch_object_(watch), watch_(nb::cast<const Watch&>(watch)), signature_object_(std::move(signature)),
        signature_(signature_object_.is_none() ? nullptr : &nb::cast<const Signature&>(signature_object_)),
        updates_(FromPython(updates)), groups_(std::move(groups)), scales_(std::move(scales)) {
    for (nb::handle row : feeds) {
      Feed feed{nb::cast<std::string>(row[0]), false, {}, {}};
      if (nb::isinstance<nb::tuple>(row[1])) {
        feed.path = nb::cast<std::vector<nb::object>>(row[1]);
        feed.in_kwargs = nb::cast<std::string>(feed.path.at(0)) == "kwargs";
        feed.path.erase(feed.path.begin());
      } else {
        feed.tensor = row[1];
      }
      feeds_.push_back(std::move(feed));
    }
  }

  // The loss as a float32 tensor, or None, with nothing done, where the call is for another capture or for none.
  nb::object Call(nb::handle owner, nb::tuple args, nb::dict kwargs, int64_t micro_steps, nb::handle draw_seed) {
    if (!watch_.Unchanged() || !Fits(owner, args, kwargs) || !SetRate()) return nb::none();
    NamedValues feeds;
    for (const Feed& feed : feeds_) feeds.emplace(feed.name, RuntimeValue(FromPython(Find(feed, args, kwargs))));
    float* counts = updates_.data<float>();
    const int64_t before = updates_.elements() > 0 ? static_cast<int64_t>(counts[0]) : 0;
    session_.SetPosition(before, micro_steps);
    if (!draw_seed.is_none()) session_.set_seed(nb::cast<uint64_t>(draw_seed()));
    auto loss = [&] {
      nb::gil_scoped_release release;
      return session_.Step(feeds);
    }();
    const auto value = static_cast<float>(Unwrap(std::move(loss)));
    if (session_.updates() != before) {  // with "fp16" an update may not happen
      for (int64_t i = 0; i < updates_.elements(); ++i) counts[i] += 1;
    }
    return ToTorch(Tensor::Scalar(value));
  }

  // What it holds leads back to it (the optimizer's hooks know the step).
  static int Traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    const StepCall& call = *nb::inst_ptr<StepCall>(self);
    for (const Feed& feed : call.feeds_) Py_VISIT(feed.tensor.ptr());
    Py_VISIT(call.session_object_.ptr());
    Py_VISIT(call.guards_.ptr());
    Py_VISIT(call.watch_object_.ptr());
    Py_VISIT(call.groups_.ptr());
    return 0;
  }
  static int Clear(PyObject* self) {
    StepCall& call = *nb::inst_ptr<StepCall>(self);
    call.feeds_.clear();
    call.guards_.reset();
    call.groups_ = nb::list();
    return 0;
  }

 private:
  bool Fits(nb::handle owner, const nb::tuple& args, const nb::dict& kwargs) const {
    if (signature_ != nullptr) return signature_->Matches(args, kwargs);
    nb::dict locals;
    locals["self"] = owner;
    locals["args"] = args;
    locals["kwargs"] = kwargs;
    return nb::cast<bool>(guards_(locals));
  }

  bool SetRate() {
    if (groups_.size() != scales_.size()) return false;
    double first = 0;
    for (size_t i = 0; i < scales_.size(); ++i) {
      PyObject* rate = PyDict_GetItemString(PyList_GET_ITEM(groups_.ptr(), i), "lr");
      if (rate == nullptr || !PyFloat_CheckExact(rate)) return false;
      const double value = PyFloat_AS_DOUBLE(rate);
      if (i == 0) first = value;
      if (std::abs(value - first * scales_[i]) > 1e-9 * std::abs(value)) return false;
    }
    session_.set_learning_rate(first);
    return true;
  }

  static nb::object Find(const Feed& feed, const nb::tuple& args, const nb::dict& kwargs) {
    if (feed.tensor.is_valid()) return feed.tensor;
    nb::object found = feed.in_kwargs ? nb::object(kwargs) : nb::object(args);
    for (const nb::object& key : feed.path) {
      found = nb::steal(PyObject_GetItem(found.ptr(), key.ptr()));
      if (!found.is_valid()) throw nb::python_error();
    }
    return found;
  }

  nb::object session_object_;
  TrainingSession& session_;
  nb::object guards_, watch_object_;
  const Watch& watch_;
  nb::object signature_object_;
  const Signature* signature_;
  Tensor updates_;
  std::vector<Feed> feeds_;
  nb::list groups_;
  std::vector<double> scales_;
};

}  // namespace

void BindStepCall(nb::module_& m) {
  static const PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&StepCall::Traverse)},
                                      {Py_tp_clear, reinterpret_cast<void*>(&StepCall::Clear)},
                                      {0, nullptr}};
  nb::class_<StepCall>(m, "StepCall", nb::type_slots(slots))
      .def(nb::init<nb::object, nb::object, nb::object, nb::object, nb::list, nb::list, std::vector<double>, nb::object>(),
           nb::arg("session"), nb::arg("guards").none(), nb::arg("signature").none(), nb::arg("watch"), nb::arg("feeds"),
           nb::arg("groups"), nb::arg("scales"), nb::arg("updates"))
      .def("__call__", &StepCall::Call, nb::arg("owner"), nb::arg("args"), nb::arg("kwargs"), nb::arg("micro_steps"),
           nb::arg("draw_seed").none());
}

}  // namespace caesura::python
