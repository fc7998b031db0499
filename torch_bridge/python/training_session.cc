// SPDX-License-Identifier: Apache-2.0
#include "training/files/checkpoint.h"
#include "training/session/rank_group.h"
#include "training/session/training_session.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>

#include "core/profile/chrome_trace.h"
#include "torch_bridge/python/provider_fallback.h"
#include "training/adapters/adapter_files.h"
#include "training/session/exported_step.h"
#include "training/session/option_table.h"
#include "training/step/parameter_shard.h"
#include "training/step/parameters.h"
#include "training/report/report.h"
#include "training/session/run_control.h"

namespace nb = nanobind;

namespace caesura::python {
namespace {

// A tensor that a session may write to: PyTorch's own bytes.
Tensor Writable(const std::string& name, nb::handle array) {
  DlpackImport facts;
  Tensor tensor = FromPython(array, &facts);
  if (facts.copied)
    Raise(InvalidArgument("parameter '" + name + "' is not dense: it cannot be bound"));
  return tensor;
}

// A value of the option's type; None is the default.
OptionValue ValueOf(const TrainingOption& option, nb::handle value) {
  if (value.is_none()) return option.initial();
  return std::visit(
      [&](const auto& other) -> OptionValue {
        using T = std::decay_t<decltype(other)>;
        if constexpr (std::is_same_v<T, int64_t>) {
          uint64_t bits = 0;  // seeds have 64
          if (nb::try_cast(value, bits)) return static_cast<int64_t>(bits);
        }
        return nb::cast<T>(value);
      },
      option.other);
}

nb::object ToPython(const OptionValue& value) {
  return std::visit([](const auto& held) { return nb::cast(held); }, value);
}

// The rows of the table, and the pairs of uses that do not go together: (use, use, whether only
// among ranks, the reason).
nb::tuple OptionTable() {
  nb::list rows, conflicts;
  for (const TrainingOption& row : TrainingOptionTable()) {
    nb::dict out;
    out["name"] = row.name;
    out["default"] = ToPython(row.initial());
    out["choices"] = row.choices;
    out["sentence"] = row.sentence;
    rows.append(out);
  }
  for (const OptionConflict& conflict : OptionConflicts()) {
    const OptionUse &one = conflict.one, &other = conflict.other;
    conflicts.append(nb::make_tuple(one.Text(one.option), other.Text(other.option),
                                    conflict.among_ranks, conflict.reason));
  }
  return nb::make_tuple(rows, conflicts);
}

// The entries of an exported step's metadata, of arguments as Open takes them.
nb::dict StepEntriesOf(nb::dict arguments) {
  TrainingOptions options;
  nb::dict out;
  for (const std::string& name : StepEntries()) {
    const TrainingOption& row = *FindTrainingOption(name);
    Check(SetOption(name, ValueOf(row, arguments[name.c_str()]), &options));
    out[name.c_str()] = ToPython(row.get(options));
  }
  return out;
}

// The arguments of the Python class, by name. `parameters`: inputs of the model that are its
// initializers, trained where they are.
std::unique_ptr<TrainingSession> Open(nb::object source, nb::dict arguments,
                                      const std::map<std::string, nb::object>& parameters) {
  auto get = [&](const char* name) { return arguments[name]; };
  TrainingOptions options;
  options.step.optimizer =
      Unwrap(MakeOptimizer(nb::cast<std::string>(get("optimizer")),
                           nb::cast<std::map<std::string, double>>(get("coefficients"))));
  for (nb::handle item : nb::cast<nb::list>(get("groups"))) {
    const auto [names, kind, coefficients] =
        nb::cast<std::tuple<std::vector<std::string>, std::string, std::map<std::string, double>>>(
            item);
    options.step.groups.push_back({.names = names,
                                   .weight_decay = {},
                                   .optimizer = Unwrap(MakeOptimizer(kind, coefficients))});
  }
  for (const auto& [key, value] : arguments) {
    const TrainingOption* row = FindTrainingOption(nb::cast<std::string>(key));
    if (row != nullptr) Check(SetOption(row->name, ValueOf(*row, value), &options));
  }
  if (arguments.contains("schedule")) {
    options.schedule = Unwrap(NamedSchedule(nb::cast<std::string>(get("schedule")),
                                            nb::cast<int64_t>(get("total_steps")),
                                            nb::cast<int64_t>(get("warmup_steps"))));
  }
  options.providers = arguments.contains("providers")
                          ? ProvidersOf(nb::cast<NamedProviders>(get("providers")))
                          : ProviderList{CpuProvider()};
  const Gpu* gpu = arguments.contains("gpu") ? nb::cast<const Gpu*>(get("gpu")) : nullptr;
  if (gpu != nullptr) options.providers.insert(options.providers.begin(), gpu->provider);
  if (arguments.contains("communicator")) {
    const nb::object communicator = get("communicator");
    if (!communicator.is_none())
      options.ranks.communicator = nb::cast<std::shared_ptr<Communicator>>(communicator);
  }
  if (arguments.contains("buckets"))
    options.step.buckets = nb::cast<std::vector<std::vector<std::string>>>(get("buckets"));
  if (arguments.contains("statistics"))
    options.step.statistics = nb::cast<std::vector<std::string>>(get("statistics"));
  if (arguments.contains("skips_unused"))
    options.step.skips_unused = nb::cast<bool>(get("skips_unused"));
  if (arguments.contains("gradient_inputs"))
    options.step.gradient_inputs = nb::cast<bool>(get("gradient_inputs"));
  if (arguments.contains("custom_ops"))
    options.custom_ops = nb::cast<const CustomOps&>(get("custom_ops"));
  Model model = ReadSource(source);
  for (const auto& [name, array] : parameters) {
    Value* value = model.graph->FindValue(name);
    if (value == nullptr) Raise(NotFound("the model has no input '" + name + "'"));
    model.graph->RemoveInput(value);
    model.graph->SetInitializer(value, Writable(name, array));
  }
  if (gpu != nullptr) options.device_inputs = InputsWithDims(*model.graph);
  // On a GPU these are copies, which go there; the caller's own tensors are bound afterwards.
  options.share_parameters = !parameters.empty() && gpu == nullptr;
  return Unwrap(TrainingSession::Create(std::move(model), std::move(options)));
}

// True suspends the steps of the sessions that have it.
struct SuspendFlag {
  std::shared_ptr<std::atomic<bool>> flag = std::make_shared<std::atomic<bool>>(false);
};

// A context in which each of the signals sets the flag.
struct SuspendOn {
  SuspendOn(SuspendFlag of, std::vector<int> which)
      : flag(std::move(of)), signals(std::move(which)) {}
  SuspendFlag flag;
  std::vector<int> signals;
  std::unique_ptr<SuspendOnSignals> handlers = nullptr;
};

// The buckets of divided state: their names, members and states, where each member begins in the
// block, and the pieces of members that lie in this rank's part: (member, first, last, place).
nb::list ShardsOf(const TrainingSession& session) {
  nb::list out;
  for (const ParameterShard& shard : session.parameters().shards()) {
    std::vector<int64_t> offsets;
    for (int i = 0; i < shard.layout.tensors(); ++i) offsets.push_back(shard.layout.offset(i));
    std::vector<std::tuple<int, int64_t, int64_t, int64_t>> pieces;
    for (const BucketLayout::Piece& piece : shard.layout.Pieces(session.ranks().rank()))
      pieces.emplace_back(piece.tensor, piece.first, piece.last, piece.at);
    nb::dict bucket;
    bucket["name"] = shard.name;
    bucket["members"] = shard.members;
    bucket["states"] = shard.states;
    bucket["offsets"] = offsets;
    bucket["pieces"] = pieces;
    out.append(bucket);
  }
  return out;
}

// Binds the flags that suspend the steps of several sessions.
void BindFlags(nb::module_& m) {
  nb::class_<SuspendFlag>(m, "SuspendFlag")
      .def(nb::init<>())
      .def_prop_rw(
          "is_set", [](const SuspendFlag& own) { return own.flag->load(); },
          [](SuspendFlag& own, bool value) { *own.flag = value; });
  nb::class_<SuspendOn>(m, "SuspendOn")
      .def(nb::init<SuspendFlag, std::vector<int>>())
      .def("__enter__",
           [](SuspendOn& own) {
             own.handlers = std::make_unique<SuspendOnSignals>(own.flag.flag, own.signals);
           })
      .def("__exit__", [](SuspendOn& own, nb::args) { own.handlers.reset(); });
}

// Binds the session's runs and its position in the training.
void BindSteps(nb::class_<TrainingSession>& sessions) {
  sessions
      .def_static("open", &Open, nb::arg("source"), nb::arg("arguments"),
                  nb::arg("parameters") = std::map<std::string, nb::object>())
      .def_static("open_step",
                  [](const std::string& folder, int threads, uint64_t seed) {
                    TrainingOptions options;
                    options.threads = threads;
                    options.seed = seed;
                    options.providers = {CpuProvider()};
                    return Unwrap(OpenStep(folder, std::move(options)), /*of_file=*/true);
                  })
      .def("step",
           [](TrainingSession& session, nb::dict arrays) {
             const NamedValues feeds = FeedsOf(arrays);
             return Unwrap(WithoutGil([&] { return session.Step(feeds); }));
           })
      .def("accumulate",
           [](TrainingSession& session, nb::dict arrays) {
             const NamedValues feeds = FeedsOf(arrays);
             return Unwrap(WithoutGil([&] { return session.Accumulate(feeds); }));
           })
      .def("evaluate",
           [](TrainingSession& session, nb::dict arrays) {
             const NamedValues feeds = FeedsOf(arrays);
             auto result = WithoutGil([&] { return session.Evaluate(feeds); });
             Evaluation evaluation = Unwrap(std::move(result));
             return nb::make_tuple(evaluation.loss, evaluation.outputs);
           })
      .def("predict",
           [](TrainingSession& session, nb::dict arrays) {
             const NamedValues feeds = FeedsOf(arrays);
             return Unwrap(WithoutGil([&] { return session.Predict(feeds); }));
           })
      .def("report",
           [](TrainingSession& session, nb::dict arrays, const std::string& path,
              const std::string& title) {
             const NamedValues feeds = FeedsOf(arrays);
             return Unwrap(WithoutGil([&] { return WriteStepReport(session, feeds, path, title); }),
                           /*of_file=*/true);
           })
      .def("profile_step",
           [](TrainingSession& session, nb::dict arrays, const std::string& trace) {
             const NamedValues feeds = FeedsOf(arrays);
             Profiler profiler;
             auto loss = WithoutGil([&] { return session.Step(feeds, {&profiler}); });
             Unwrap(std::move(loss));
             if (!trace.empty())
               Check(WriteChromeTrace(trace, profiler.Events()), /*of_file=*/true);
             return profiler.Summary();
           })
      .def("step_differences",
           [](const TrainingSession& session) { return session.runs().differences(); })
      .def("kept_outputs",
           [](const TrainingSession& session) { return session.runs().kept_outputs(); })
      .def("gradients", [](const TrainingSession& session) { return session.runs().gradients(); })
      .def("plan",
           [](TrainingSession& session, nb::dict arrays) {
             const auto plan = Unwrap(session.runs().Plan(FeedsOf(arrays)));
             return nb::make_tuple(plan->ToString(), plan->arena_bytes());
           })
      .def("feed_coefficients",
           [](TrainingSession& session, const std::vector<double>& values) {
             const std::span<double> all = session.runs().coefficients();
             if (values.size() > all.size())
               Raise(InvalidArgument("more coefficients than the session is fed"));
             std::copy(values.begin(), values.end(), all.begin());
           })
      .def("draw_next_by",
           [](TrainingSession& session, uint64_t seed) { session.progress().next_seed = seed; })
      .def_prop_ro("updates",
                   [](const TrainingSession& session) { return session.progress().updates; })
      .def("set_position",
           [](TrainingSession& session, int64_t updates, int64_t micro_steps) {
             session.progress().updates = updates;
             session.progress().micro_steps = micro_steps;
           })
      .def_prop_ro("gradient_norm",
                   [](const TrainingSession& session) { return session.runs().gradient_norm(); })
      .def_prop_ro("loss_scale",
                   [](const TrainingSession& session) { return session.progress().loss_scale(); })
      .def_prop_rw(
          "learning_rate",
          [](const TrainingSession& session) { return session.progress().learning_rate(); },
          [](TrainingSession& session, double rate) { session.runs().set_learning_rate(rate); });
}

// Binds how a step stops, waits and fails.
void BindSuspension(nb::class_<TrainingSession>& sessions) {
  sessions
      .def("resume_step",
           [](TrainingSession& session) {
             return Unwrap(WithoutGil([&] { return session.ResumeStep(); }));
           })
      .def("drop_step", [](TrainingSession& session) { Check(session.DropStep()); })
      .def_prop_ro("suspended",
                   [](const TrainingSession& session) { return session.runs().suspended(); })
      .def_prop_rw(
          "suspend",
          [](const TrainingSession& session) { return session.control().suspend_flag()->load(); },
          [](TrainingSession& session, bool suspend) { session.control().set_suspend(suspend); })
      .def_prop_rw(
          "suspend_flag",
          [](const TrainingSession& session) {
            return SuspendFlag{session.control().suspend_flag()};
          },
          [](TrainingSession& session, const SuspendFlag& own) {
            session.control().ShareSuspendFlag(own.flag);
          })
      .def("suspend_at", [](TrainingSession& session, int i) { session.control().SuspendAt(i); })
      .def(
          "suspend_after",
          [](TrainingSession& session, std::optional<double> seconds) {
            using Clock = std::chrono::steady_clock;
            std::optional<Clock::time_point> deadline;
            if (seconds) {
              deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                            std::chrono::duration<double>(*seconds));
            }
            session.control().set_deadline(deadline);
          },
          nb::arg("seconds").none())
      .def_prop_rw(
          "terminate", [](const TrainingSession& session) { return session.control().terminate(); },
          [](TrainingSession& session, bool stop) { session.control().set_terminate(stop); })
      .def_prop_ro("failures",
                   [](const TrainingSession& session) {
                     const FailureCounts& counts = session.runs().failures();
                     nb::dict out;
                     out["failed"] = counts.failed;
                     out["skipped"] = counts.skipped;
                     out["retried"] = counts.retried;
                     out["saved"] = counts.saved;
                     out["last"] = counts.last;
                     return out;
                   })
      .def_prop_ro("inconsistent", [](const TrainingSession& session) {
        return session.parameters().lost().value_or(std::vector<std::string>());
      });
}

// Binds parameters, the ranks that share them, and files.
void BindParameters(nb::class_<TrainingSession>& sessions) {
  sessions
      .def("parameter_names",
           [](const TrainingSession& session) { return session.parameters().Names(); })
      .def("frozen_names",
           [](const TrainingSession& session) { return session.parameters().FrozenNames(); })
      .def("parameter",
           [](const TrainingSession& session, const std::string& name) {
             return RuntimeValue(Unwrap(Unwrap(session.parameters().Get(name)).Clone()));
           })
      .def("set_parameter",
           [](TrainingSession& session, const std::string& name, const RuntimeValue& value) {
             Check(session.parameters().Set(name, value.tensor()));
           })
      .def("bind_parameter",
           [](TrainingSession& session, const std::string& name, nb::handle array) {
             Check(session.parameters().Bind(name, Writable(name, array)));
           })
      .def("step_memory",
           [](TrainingSession& session, nb::dict arrays) {
             const StepMemory memory = Unwrap(session.MemoryOf(FeedsOf(arrays)));
             return nb::make_tuple(memory.kept.parameters, memory.kept.gradients,
                                   memory.kept.optimizer_state, memory.arena, memory.peak);
           })
      .def_prop_ro("memory",
                   [](const TrainingSession& session) {
                     const RankMemory memory = session.Memory();
                     nb::dict out;
                     out["parameters"] = memory.parameters;
                     out["gradients"] = memory.gradients;
                     out["optimizer_state"] = memory.optimizer_state;
                     return out;
                   })
      .def_prop_ro("shards", &ShardsOf)
      .def("set_callers_facts",
           [](TrainingSession& session, uint64_t hash) { session.ranks().set_callers_facts(hash); })
      .def("set_writes",
           [](TrainingSession& session, uint64_t count) { session.ranks().set_writes(count); })
      .def("set_uses", [](TrainingSession& session,
                          const std::vector<int>& rows) { session.ranks().set_uses(rows); })
      .def("used",
           [](const TrainingSession& session, int row) { return session.ranks().used(row); })
      .def_prop_ro("exchanged",
                   [](const TrainingSession& session) { return session.ranks().exchanged(); })
      .def_prop_ro("ranks_differ",
                   [](const TrainingSession& session) { return session.ranks().differs(); })
      .def_prop_ro("failed_alone",
                   [](const TrainingSession& session) { return session.ranks().failed_alone(); })
      .def_prop_ro("statistics",
                   [](const TrainingSession& session) {
                     const SessionParameters& all = session.parameters();
                     std::vector<std::string> names;
                     for (int i = all.trained(); i < all.trained() + all.statistics(); ++i)
                       names.push_back(all.set().name(i));
                     return names;
                   })
      .def("step_facts", [](const TrainingSession& session) { return session.ranks().StepFacts(); })
      .def(
          "regroup",
          [](TrainingSession& session, std::shared_ptr<Communicator> ranks) {
            Check(WithoutGil([&] { return session.Regroup(std::move(ranks)); }));
          },
          nb::arg("communicator").none())
      .def(
          "save",
          [](const TrainingSession& session, const std::string& path,
             std::map<std::string, Checkpoint::Property> properties) {
            Check(WithoutGil([&] { return session.Save(path, std::move(properties)); }),
                  /*of_file=*/true);
          },
          nb::arg("path"), nb::arg("properties") = std::map<std::string, Checkpoint::Property>())
      .def("restore",
           [](TrainingSession& session, const std::string& path) {
             return Unwrap(session.Restore(path), /*of_file=*/true);
           })
      .def("export",
           [](const TrainingSession& session, const std::string& path,
              const std::vector<std::string>& outputs) {
             Check(session.ExportModel(path, outputs), /*of_file=*/true);
           })
      .def("save_adapter",
           [](const TrainingSession& session, const std::string& folder) {
             Check(SaveAdapter(Unwrap(AdapterOf(session.parameters())), folder), /*of_file=*/true);
           })
      .def("load_adapter",
           [](TrainingSession& session, const std::string& folder) {
             const Adapter adapter = Unwrap(ReadAdapter(folder), /*of_file=*/true);
             Check(SetAdapter(adapter, &session.parameters()));
           })
      .def("export_training", [](const TrainingSession& session, const std::string& path,
                                 const std::string& what, int opset) {
        const std::pair<const char*, TrainingPart> parts[] = {
            {"step", TrainingPart::kStep},
            {"accumulate", TrainingPart::kAccumulate},
            {"gradients", TrainingPart::kGradients}};
        for (const auto& [name, part] : parts) {
          if (what != name) continue;
          const TrainingExport file{.part = part, .opset = opset};
          return Check(WithoutGil([&] { return session.ExportTraining(path, file); }),
                       /*of_file=*/true);
        }
        Check(InvalidArgument("what: expected step, accumulate or gradients, got '" + what + "'"));
      });
}

}  // namespace

void BindTraining(nb::module_& m) {
  m.def("checkpoint_properties", [](const std::string& path) {
    return Unwrap(RestoreCheckpoint(path), /*of_file=*/true).properties;
  });
  m.def("training_options", &OptionTable);
  m.def("step_entries", &StepEntriesOf);
  BindFlags(m);
  nb::class_<TrainingSession> sessions(m, "Training");
  BindFallback(sessions);
  BindSteps(sessions);
  BindSuspension(sessions);
  BindParameters(sessions);
}

}  // namespace caesura::python
