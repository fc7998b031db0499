// SPDX-License-Identifier: Apache-2.0
// Ops of the user's own from shared libraries, and options for them.
#include "core/session/custom_op.h"

#include "torch_bridge/python/bindings.h"

namespace nb = nanobind;

namespace caesura::python {
namespace {

using Values = std::map<std::string, std::string>;

void Check(const Status& status) {
  if (!status.ok()) Raise(status);
}

// What each op knows, with its default: {"domain::Op": {name: value}}.
std::map<std::string, Values> Ops(const CustomOps& custom_ops) {
  std::map<std::string, Values> out;
  for (const CustomOp& op : custom_ops.ops) {
    Values& known = out[op.schema.domain + "::" + op.schema.op_type];
    known.insert(op.options.values().begin(), op.options.values().end());
  }
  return out;
}

}  // namespace

void BindCustomOps(nb::module_& m) {
  nb::class_<OptionSet>(m, "OptionSet", "Options of custom ops and model ops: strings by name.")
      .def("__init__",
           [](OptionSet* self, const Values& values) {
             new (self) OptionSet;
             for (const auto& [key, value] : values) self->Update(key, value);
           },
           nb::arg("values") = Values())
      .def("append", [](OptionSet& set, const std::string& key, std::string value) { Check(set.Append(key, std::move(value))); },
           "Adds an option; ValueError where it is there already.")
      .def("update",
           [](OptionSet& set, const Values& values) {
             for (const auto& [key, value] : values) set.Update(key, value);
           },
           "Sets options, whether they are there or not; others stay.")
      .def("remove", &OptionSet::Remove)
      .def("has", &OptionSet::Has)
      .def("__contains__", &OptionSet::Has)
      .def("get", [](const OptionSet& set, const std::string& key) { return Unwrap(set.Get(key)); },
           "KeyError, listing what there is, where it is not.")
      .def("values", [](const OptionSet& set) { return set.values(); })
      .def("serialise", &OptionSet::Serialise, "\"device=CPU;threads=2\", which parse takes again.")
      .def_static("parse", [](const std::string& text) { return Unwrap(OptionSet::Parse(text)); })
      .def("__eq__", [](const OptionSet& a, const OptionSet& b) { return a == b; })
      .def("__repr__", [](const OptionSet& set) { return "OptionSet('" + set.Serialise() + "')"; });
  nb::class_<CustomOps>(m, "CustomOps", "Ops and runtimes of whole models for sessions, which take copies.")
      .def(nb::init<>())
      .def("add_library",
           [](CustomOps& ops, const std::string& path) {
             if (const Status added = ops.AddLibrary(path); !added.ok()) Raise(added, /*of_file=*/true);
           },
           "Adds what a plug-in (core/plugin/caesura_op.h) offers; it stays loaded.")
      .def("ops", &Ops, "The ops, and the options that each knows with their defaults.")
      .def("for_node", [](CustomOps& ops, const std::string& name) -> OptionSet& { return ops.options.ForNode(name); },
           nb::rv_policy::reference_internal, "The options of the node of this name, to read and to change.")
      .def("for_op",
           [](CustomOps& ops, const std::string& op_type, const std::string& domain) -> OptionSet& {
             return ops.options.ForOp(op_type, domain);
           },
           nb::rv_policy::reference_internal, "Those of all nodes of an op type, behind what nodes themselves have.");
}

}  // namespace caesura::python
