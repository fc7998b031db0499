// SPDX-License-Identifier: Apache-2.0
// A call of a compiled step from what Python hands over to the loss, where nothing has changed that
// the step was captured for. StepCall: of one program. StepCalls: what Python calls, the base of
// caesura.frontends.compile_step.CompiledStep.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include <nanobind/stl/tuple.h>

#include "torch_bridge/python/watch.h"
#include "training/session/rank_group.h"
#include "training/session/training_session.h"

namespace nb = nanobind;

namespace caesura::python {
namespace {

// Counts all steps' calls by StepCall since the last look.
std::atomic<int64_t> step_nanoseconds = 0, step_calls = 0;

// A tensor that the step reads: at a path of keys into the call's args or kwargs, or one that
// stays, or drawn anew.
struct Feed {
  RuntimeValue* value;  // in StepCall::values_
  bool in_kwargs = false;
  std::vector<nb::object> path;
  nb::object tensor;
  nb::object draw = {};
  nb::object drawn = {};  // while a step runs
};

// The place of a coefficient in a group of the optimizer's.
struct Place {
  nb::object key;
  int64_t index;    // of a tuple's; -1: the value itself
  bool keeps_zero;  // whether the update is another one where it is zero
};

// The progress of a compiled step, whichever of its programs ran. A window: the calls so far that
// go into one update.
struct Progress {
  int64_t micro_steps = 0;  // how often it has run
  nb::object window;        // a frozenset: the parameters that have gradients in this window
  double loss_scale = 1;    // that those are multiplied by
  std::optional<GradScaler> scaler;  // of all programs, once one has run
  // Of the last update, before clipping; NaN without clipping.
  double gradient_norm = std::numeric_limits<double>::quiet_NaN();
  bool waits = false;  // a call was suspended: no other begins before it has ended
  // The program of a call that has done nothing, because the ranks' calls differ or this one has
  // failed here alone. The ranks then compare more before the next call. None: there is no such
  // call.
  nb::object differing = nb::none();
};

// Thread safety: one thread at a time, as the session.
class StepCall {
 public:
  // watch: what must be as it was. guards: dynamo's check of a frame's locals; or None, and the
  // call's (args, kwargs) must match `signature`. feeds: (name, path, tensor, or what draws one),
  // in the order drawn. rows: (a group of the optimizer's, the counts of updates of its parameters
  // that the step trains, float32, which steps move). A group may have several rows. uses: the rows
  // that the forward uses; others are there for other ranks. places: (key, index or -1, whether it
  // stays zero or not) of the coefficients that the session is fed of each row. counts_matter: the
  // counts of a row must be alike. has_offsets: the session is fed, last in each row, how far its
  // count is from the first one's; otherwise all rows' counts must be alike. trained: a frozenset
  // of the step's parameters. accumulation_steps: calls to one update. counters: (int64 tensor of
  // one element, what each step adds to it). written: the buffers that each step writes to. seed:
  // where the step draws, an int64 tensor whose random_() PyTorch calls before it; otherwise None.
  // gpu: that the parameters are on, or None. leave: None, or a step_fast_path.Leave, which returns
  // what the call returns. program: whose call it is, which is nothing to this.
  StepCall(nb::object program, nb::object session, nb::object guards, nb::object signature,
           nb::object watch, nb::list feeds, nb::list rows, std::vector<int> uses, nb::list places,
           bool counts_matter, bool has_offsets, nb::object trained, int accumulation_steps,
           nb::list counters, nb::list written, nb::object seed, nb::object gpu, nb::object leave)
      : program_(std::move(program)),
        session_object_(session),
        session_(nb::cast<TrainingSession&>(session)),
        guards_(std::move(guards)),
        watch_object_(watch),
        watch_(nb::cast<const Watch&>(watch)),
        signature_object_(std::move(signature)),
        signature_(signature_object_.is_none() ? nullptr
                                               : &nb::cast<const Signature&>(signature_object_)),
        uses_(std::move(uses)),
        counts_matter_(counts_matter),
        has_offsets_(has_offsets),
        trained_(std::move(trained)),
        accumulation_steps_(accumulation_steps),
        gpu_object_(std::move(gpu)),
        gpu_(gpu_object_.is_none() ? nullptr : &nb::cast<const Gpu&>(gpu_object_)),
        leave_(std::move(leave)) {
    for (nb::handle row : rows) {
      groups_.append(row[0]);
      std::vector<Tensor>& counts = counts_.emplace_back();
      for (nb::handle count : row[1]) counts.push_back(FromPython(count));
    }
    for (nb::handle row : places) {
      places_.push_back({nb::borrow(row[0]), nb::cast<int64_t>(row[1]), nb::cast<bool>(row[2])});
    }
    if (!seed.is_none()) {
      seed_ = FromPython(seed);
      draw_seed_ = seed.attr("random_");
    }
    for (nb::handle row : counters)
      counters_.emplace_back(FromPython(row[0]), nb::cast<int64_t>(row[1]));
    for (nb::handle buffer : written) written_.push_back(BytesOfTorch(buffer));
    for (nb::handle row : feeds) {
      Feed feed{&values_[nb::cast<std::string>(row[0])], false, {}, {}};
      if (nb::isinstance<nb::tuple>(row[1])) {
        feed.path = nb::cast<std::vector<nb::object>>(row[1]);
        feed.in_kwargs = nb::cast<std::string>(feed.path.at(0)) == "kwargs";
        feed.path.erase(feed.path.begin());
      } else if (PyCallable_Check(row[1].ptr()) != 0) {
        feed.draw = row[1];
      } else {
        feed.tensor = row[1];
      }
      feeds_.push_back(std::move(feed));
    }
  }

  nb::object program() const { return program_; }

  // The loss as a float32 tensor; null, with nothing done, where the call is for another capture or
  // for none, or where the ranks' calls differ or this one has failed before its exchange.
  nb::object Run(nb::handle owner, nb::handle args, nb::handle kwargs, Progress& progress) {
    if (!watch_.Unchanged() || !Fits(owner, args, kwargs) || !FeedCoefficients()) return {};
    if (progress.scaler) session_.progress().scaler = *progress.scaler;
    if (!Continues(progress)) return {};
    if (!written_.empty() && ReadsWhatIsWritten(args, kwargs)) return {};
    if (!leave_.is_none()) leave_.attr("begins")(owner);
    for (Feed& feed : feeds_) {
      if (feed.draw.is_valid()) feed.drawn = feed.draw();
      *feed.value = LentByTorch(feed.draw.is_valid() ? feed.drawn : Find(feed, args, kwargs));
    }
    const auto before = static_cast<int64_t>(FirstCount());
    session_.progress().updates = before;
    session_.progress().micro_steps = progress.micro_steps;
    if (draw_seed_.is_valid()) {
      draw_seed_();
      session_.progress().next_seed = static_cast<uint64_t>(*seed_.data<int64_t>());
    }
    const double scale = session_.progress().loss_scale();
    session_.ranks().set_uses(uses_);
    if (session_.ranks().setup().has_others()) session_.ranks().set_writes(watch_.Writes());
    if (gpu_ != nullptr) Check(gpu_->WaitForTorch());
    const auto began = std::chrono::steady_clock::now();
    auto loss = WithoutGil([&] { return session_.Step(values_); });
    step_nanoseconds += std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count();
    ++step_calls;
    if (gpu_ != nullptr) Check(gpu_->TorchWaits());
    for (Feed& feed : feeds_) {
      *feed.value = {};
      feed.drawn = {};
    }
    progress.waits = session_.runs().suspended();
    const RankGroup& ranks = session_.ranks();
    if (!loss.ok() && (ranks.differs() || ranks.failed_alone())) {
      progress.differing = program_;
      return {};
    }
    const auto value = static_cast<float>(Unwrap(std::move(loss)));
    if (session_.progress().updates != before) {  // with "fp16" an update may not happen
      for (size_t row = 0; row < counts_.size(); ++row) {
        if (!session_.ranks().used(static_cast<int>(row))) continue;
        for (const Tensor& count : counts_[row]) *count.data<float>() += 1;
      }
    }
    progress.window = trained_;
    progress.loss_scale = scale;
    progress.scaler = session_.progress().scaler;
    if (++progress.micro_steps % accumulation_steps_ == 0)
      progress.gradient_norm = session_.runs().gradient_norm();
    for (const auto& [counter, count] : counters_) *counter.data<int64_t>() += count;
    nb::object given = ToTorch(Tensor::Scalar(value));
    return leave_.is_none() ? given : leave_(owner, args, kwargs, given);
  }

  // Its members lead back to it (the optimizer's hooks know the step).
  static int Traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    const StepCall& call = *nb::inst_ptr<StepCall>(self);
    for (const Feed& feed : call.feeds_) {
      Py_VISIT(feed.tensor.ptr());
      Py_VISIT(feed.draw.ptr());
    }
    for (const nb::object* object :
         {&call.program_, &call.session_object_, &call.guards_, &call.watch_object_,
          &call.draw_seed_, &call.trained_, &call.leave_}) {
      Py_VISIT(object->ptr());
    }
    Py_VISIT(call.groups_.ptr());
    return 0;
  }
  static int Clear(PyObject* self) {
    StepCall& call = *nb::inst_ptr<StepCall>(self);
    call.feeds_.clear();
    call.program_.reset();
    call.guards_.reset();
    call.draw_seed_.reset();
    call.leave_.reset();
    call.groups_ = nb::list();
    return 0;
  }

 private:
  bool Fits(nb::handle owner, nb::handle args, nb::handle kwargs) const {
    if (signature_ != nullptr) return signature_->Matches(args, kwargs);
    nb::dict locals;
    locals["self"] = owner;
    locals["args"] = args;
    locals["kwargs"] = kwargs;
    return nb::cast<bool>(guards_(locals));
  }

  // The updates that the first of the step's parameters has had.
  float FirstCount() const {
    for (const std::vector<Tensor>& row : counts_) {
      if (!row.empty()) return *row[0].data<float>();
    }
    return 0;
  }

  // True if the update that this step makes, or comes before, is of parameters that were updated as
  // often as the session takes them to be, and of all those that have gradients in this window, in
  // its session's scale.
  bool Continues(const Progress& progress) const {
    if (accumulation_steps_ > 1 && progress.micro_steps % accumulation_steps_ != 0) {
      if (!progress.window.is_valid() || progress.loss_scale != session_.progress().loss_scale())
        return false;
      if (!progress.window.is(trained_) && !progress.window.equal(trained_)) return false;
    }
    if (!counts_matter_) return true;
    const float first = FirstCount();
    return std::all_of(counts_.begin(), counts_.end(), [&](const std::vector<Tensor>& row) {
      return std::all_of(row.begin(), row.end(), [&](const Tensor& count) {
        return *count.data<float>() == (has_offsets_ ? *row[0].data<float>() : first);
      });
    });
  }

  // True if the session is fed what the groups say now, and nothing has become or stopped to be
  // zero that may not.
  bool FeedCoefficients() {
    double* to = session_.runs().coefficients().data();
    const float first = FirstCount();
    for (size_t row = 0; row < counts_.size(); ++row) {
      const nb::handle group = groups_[row];
      for (const Place& place : places_) {
        PyObject* found = PyDict_GetItemWithError(group.ptr(), place.key.ptr());
        if (found != nullptr && place.index >= 0) {
          const bool is_tuple = PyTuple_Check(found);
          if (!is_tuple && !PyList_Check(found)) return false;
          if ((is_tuple ? PyTuple_Size(found) : PyList_Size(found)) <= place.index) return false;
          found =
              is_tuple ? PyTuple_GetItem(found, place.index) : PyList_GetItem(found, place.index);
        }
        if (found == nullptr) return false;
        const double value = PyFloat_AsDouble(found);
        if (value == -1 && PyErr_Occurred() != nullptr) {
          PyErr_Clear();
          return false;
        }
        if (place.keeps_zero && (value == 0) != (*to == 0)) return false;
        *to++ = value;
      }
      if (has_offsets_) *to++ = counts_[row].empty() ? 0 : *counts_[row][0].data<float>() - first;
    }
    return true;
  }

  // True if an argument lies in a buffer that the step writes to: eager would read there what was
  // written.
  bool ReadsWhatIsWritten(nb::handle args, nb::handle kwargs) const {
    for (const Feed& feed : feeds_) {
      if (feed.tensor.is_valid() || feed.draw.is_valid()) continue;
      const auto [first, end] = BytesOfTorch(Find(feed, args, kwargs));
      for (const auto& [start, last] : written_) {
        if (first < last && start < end) return true;
      }
    }
    return false;
  }

  static nb::object Find(const Feed& feed, nb::handle args, nb::handle kwargs) {
    if (feed.tensor.is_valid()) return feed.tensor;
    nb::object found = nb::borrow(feed.in_kwargs ? kwargs : args);
    for (const nb::object& key : feed.path) {
      found = nb::steal(PyObject_GetItem(found.ptr(), key.ptr()));
      if (!found.is_valid()) throw nb::python_error();
    }
    return found;
  }

  nb::object program_, session_object_;
  TrainingSession& session_;
  nb::object guards_, watch_object_;
  const Watch& watch_;
  nb::object signature_object_;
  const Signature* signature_;
  const std::vector<int> uses_;
  bool counts_matter_, has_offsets_;
  nb::object trained_;
  int accumulation_steps_;
  nb::object gpu_object_;
  const Gpu* gpu_;
  nb::object leave_;
  std::vector<std::pair<Tensor, int64_t>> counters_;
  std::vector<std::pair<const char*, const char*>>
      written_;         // the buffers' bytes, which the watch says have not moved
  NamedValues values_;  // of the feeds, while a step runs
  std::vector<Feed> feeds_;
  nb::list groups_;                          // of each row
  std::vector<std::vector<Tensor>> counts_;  // likewise
  std::vector<Place> places_;
  Tensor seed_;
  nb::object draw_seed_;  // of the tensor
};

// Python's subclass has a method _first(args, kwargs), for what no call fits.
struct StepCalls {
  nb::list calls;  // of StepCall, the latest first
  Progress progress;

  // The loss by one of the calls; null where none fits, or where the ranks' calls differ.
  nb::object Quick(nb::handle self, nb::handle args, nb::handle kwargs) {
    if (progress.waits) Raise(InvalidArgument("a step waits; resume() or drop() first"));
    if (!progress.differing.is_none()) return {};
    const nb::list held = calls;  // which a call may change
    for (size_t i = 0; i < held.size(); ++i) {
      nb::object loss = nb::inst_ptr<StepCall>(held[i])->Run(self, args, kwargs, progress);
      if (loss.is_valid() || !progress.differing.is_none()) return loss;
    }
    return {};
  }

  static PyObject* Call(PyObject* self, PyObject* args, PyObject* given) try {
    static PyObject* const none_given = PyDict_New();  // which nothing of Quick's writes to
    nb::object loss =
        nb::inst_ptr<StepCalls>(self)->Quick(self, args, given == nullptr ? none_given : given);
    if (!loss.is_valid()) {
      const nb::object kwargs = given == nullptr ? nb::dict() : nb::borrow(given);
      loss = nb::handle(self).attr("_first")(nb::handle(args), kwargs);
    }
    return loss.release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }

  static int Traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    Py_VISIT(nb::inst_ptr<StepCalls>(self)->calls.ptr());
    Py_VISIT(nb::inst_ptr<StepCalls>(self)->progress.differing.ptr());
    return 0;
  }
  static int Clear(PyObject* self) {
    nb::inst_ptr<StepCalls>(self)->calls = nb::list();
    nb::inst_ptr<StepCalls>(self)->progress.differing = nb::none();
    return 0;
  }
};

}  // namespace

void BindStepCall(nb::module_& m) {
  m.def("take_step_counts", [] {
    return std::tuple(1e-9 * static_cast<double>(step_nanoseconds.exchange(0)),
                      step_calls.exchange(0), 0.0, int64_t{0});
  });
  static const PyType_Slot slots[] = {
      {Py_tp_traverse, reinterpret_cast<void*>(&StepCall::Traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(&StepCall::Clear)},
      {0, nullptr}};
  nb::class_<StepCall>(m, "StepCall", nb::type_slots(slots))
      .def(nb::init<nb::object, nb::object, nb::object, nb::object, nb::object, nb::list, nb::list,
                    std::vector<int>, nb::list, bool, bool, nb::object, int, nb::list, nb::list,
                    nb::object, nb::object, nb::object>(),
           nb::arg("program"), nb::arg("session"), nb::arg("guards").none(),
           nb::arg("signature").none(), nb::arg("watch"), nb::arg("feeds"), nb::arg("rows"),
           nb::arg("uses"), nb::arg("places"), nb::arg("counts_matter"), nb::arg("has_offsets"),
           nb::arg("trained"), nb::arg("accumulation_steps"), nb::arg("counters"),
           nb::arg("written"), nb::arg("seed").none(), nb::arg("gpu").none(),
           nb::arg("leave").none())
      .def_prop_ro("program", &StepCall::program);
  static const PyType_Slot step_slots[] = {
      {Py_tp_traverse, reinterpret_cast<void*>(&StepCalls::Traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(&StepCalls::Clear)},
      {Py_tp_call, reinterpret_cast<void*>(&StepCalls::Call)},
      {0, nullptr}};
  nb::class_<StepCalls>(m, "StepCalls", nb::type_slots(step_slots))
      .def(nb::init<>())
      .def_prop_rw(
          "_calls", [](const StepCalls& s) { return s.calls; },
          [](StepCalls& s, const nb::list& calls) {
            for (nb::handle call : calls) nb::cast<const StepCall&>(call);
            s.calls = calls;
          })
      .def_prop_rw(
          "micro_steps", [](const StepCalls& s) { return s.progress.micro_steps; },
          [](StepCalls& s, int64_t micro_steps) { s.progress.micro_steps = micro_steps; })
      .def_prop_rw(
          "_window",
          [](const StepCalls& s) {
            return s.progress.window.is_valid() ? s.progress.window : nb::frozenset();
          },
          [](StepCalls& s, nb::object window) { s.progress.window = std::move(window); })
      .def_prop_rw(
          "_loss_scale", [](const StepCalls& s) { return s.progress.loss_scale; },
          [](StepCalls& s, double scale) { s.progress.loss_scale = scale; })
      .def("_lend_scaler",
           [](const StepCalls& s, TrainingSession& session) {
             if (s.progress.scaler) session.progress().scaler = *s.progress.scaler;
           })
      .def("_keep_scaler",
           [](StepCalls& s, const TrainingSession& session) {
             s.progress.scaler = session.progress().scaler;
           })
      .def_prop_rw(
          "_gradient_norm", [](const StepCalls& s) { return s.progress.gradient_norm; },
          [](StepCalls& s, double norm) { s.progress.gradient_norm = norm; })
      .def_prop_rw(
          "_waits", [](const StepCalls& s) { return s.progress.waits; },
          [](StepCalls& s, bool waits) { s.progress.waits = waits; })
      .def_prop_rw(
          "_differing", [](const StepCalls& s) { return s.progress.differing; },
          [](StepCalls& s, nb::object program) { s.progress.differing = std::move(program); },
          nb::for_setter(nb::arg("program").none()))
      .def("_quick", [](nb::handle self, nb::tuple args, nb::dict kwargs) {
        nb::object loss = nb::inst_ptr<StepCalls>(self)->Quick(self, args, kwargs);
        return loss.is_valid() ? loss : nb::none();
      });
}

}  // namespace caesura::python
