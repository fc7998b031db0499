// SPDX-License-Identifier: Apache-2.0
// Ops of the user's own from shared libraries, and options for them.
#include "core/custom_ops/custom_op.h"

#include "torch_bridge/python/bindings.h"

namespace nb = nanobind;

namespace caesura::python {
namespace {

using Values = std::map<std::string, std::string>;

// The options of each op, with defaults: {"domain::Op": {name: value}}.
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
  nb::class_<OptionSet>(m, "OptionSet", R"(Options of custom ops and model ops: strings by name.

Args:
    values: dict of the options.

Raises:
    ValueError: from append(), if the option is there already.
    KeyError: from get(), if it is not there; the message lists all that are.

Example::

    options.custom_ops.for_node("detector").update({"device": "CPU"}))")
      .def(
          "__init__",
          [](OptionSet* self, const Values& values) {
            new (self) OptionSet;
            for (const auto& [key, value] : values) self->Update(key, value);
          },
          nb::arg("values") = Values())
      .def(
          "append",
          [](OptionSet& set, const std::string& key, std::string value) {
            Check(set.Append(key, std::move(value)));
          },
          "Adds an option; ValueError if it is there already.")
      .def(
          "update",
          [](OptionSet& set, const Values& values) {
            for (const auto& [key, value] : values) set.Update(key, value);
          },
          "Sets options, whether they are there or not; others stay.")
      .def("remove", &OptionSet::Remove, "Removes an option, if it is there.")
      .def("has", &OptionSet::Has, "True if the option is there.")
      .def("__contains__", &OptionSet::Has)
      .def(
          "get", [](const OptionSet& set, const std::string& key) { return Unwrap(set.Get(key)); },
          "Returns an option; KeyError, listing all that are there, if it is not.")
      .def(
          "values", [](const OptionSet& set) { return set.values(); },
          "Returns all options as a dict.")
      .def("serialise", &OptionSet::Serialise,
           "Returns text such as \"device=CPU;threads=2\", which parse() reads.")
      .def_static(
          "parse", [](const std::string& text) { return Unwrap(OptionSet::Parse(text)); },
          "Reads what serialise() has written.")
      .def("__eq__", [](const OptionSet& a, const OptionSet& b) { return a == b; })
      .def("__repr__", [](const OptionSet& set) { return "OptionSet('" + set.Serialise() + "')"; });
  nb::class_<CustomOps>(
      m, "CustomOps",
      R"(Ops and runtimes of whole models from plug-ins, and the options of nodes. Sessions take copies.

Raises:
    FileNotFoundError: from add_library(), if there is no such library.

Example::

    ops = caesura.onnxruntime.CustomOps()
    ops.add_library("libmine.so")
    session = caesura.TrainingSession("net.onnx", custom_ops=ops))")
      .def(nb::init<>())
      .def(
          "add_library",
          [](CustomOps& ops, const std::string& path) {
            if (const Status added = ops.AddLibrary(path); !added.ok())
              Raise(added, /*of_file=*/true);
          },
          "Adds the ops and runtimes of a plug-in (core/plugin/caesura_op.h), which stays loaded.")
      .def("ops", &Ops, "Returns the ops, each with the options that it knows and their defaults.")
      .def(
          "for_node",
          [](CustomOps& ops, const std::string& name) -> OptionSet& {
            return ops.options.ForNode(name);
          },
          nb::rv_policy::reference_internal,
          "Returns the options of the node of this name, to read and to change.")
      .def(
          "for_op",
          [](CustomOps& ops, const std::string& op_type, const std::string& domain) -> OptionSet& {
            return ops.options.ForOp(op_type, domain);
          },
          nb::rv_policy::reference_internal,
          "Returns the options of all nodes of an op type; a node's own come first.");
}

}  // namespace caesura::python
