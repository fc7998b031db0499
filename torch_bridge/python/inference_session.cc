// SPDX-License-Identifier: Apache-2.0
#include "core/load/model_reader.h"
#include "core/session/session.h"
#include "graph_transforms/pipeline.h"
#include "torch_bridge/python/bindings.h"

namespace nb = nanobind;

namespace caesura::python {
namespace {

std::unique_ptr<Session> Open(Result<Model> model, int threads, const std::string& provider) {
  SessionOptions options;
  options.plan.threads = threads;
  if (provider == "cpu") options.passes = InferencePasses();  // they fuse for our own kernels
  options.providers = {NamedProvider(provider)};
  return Unwrap(Session::Create(Unwrap(std::move(model)), std::move(options)));
}

// (name, type text, dtype number, dims: int, symbol or None; None when the rank is unknown)
nb::tuple Describe(const Value* value) {
  nb::object dims = nb::none();
  if (value->type().shape) {
    nb::list list;
    for (const Dim& dim : *value->type().shape) {
      if (dim.known()) list.append(dim.value);
      else if (!dim.symbol.empty()) list.append(dim.symbol);
      else list.append(nb::none());
    }
    dims = list;
  }
  return nb::make_tuple(value->name(), value->type().ToString(), static_cast<int>(value->dtype()), dims);
}

std::vector<nb::tuple> DescribeAll(const std::vector<Value*>& values) {
  std::vector<nb::tuple> out;
  for (const Value* value : values) out.push_back(Describe(value));
  return out;
}

}  // namespace

void BindSession(nb::module_& m) {
  nb::class_<Session>(m, "Session")
      .def_static("from_path", [](const std::string& path, int threads, const std::string& provider) {
                    return Open(ReadModel(path), threads, provider);
                  })
      .def_static("from_bytes",
                  [](nb::bytes bytes, int threads, const std::string& provider) {
                    return Open(ReadModelBytes(std::string_view(bytes.c_str(), bytes.size())), threads, provider);
                  })
      .def("inputs", [](const Session& s) { return DescribeAll(s.inputs()); })
      .def("outputs", [](const Session& s) { return DescribeAll(s.outputs()); })
      .def("run",
           [](Session& session, nb::dict arrays, const std::vector<std::string>& names) {
             const NamedValues feeds = FeedsOf(arrays);
             auto results = [&] {
               nb::gil_scoped_release release;
               return session.Run(feeds, names);
             }();
             return Unwrap(std::move(results));
           })
      .def("plan", [](Session& session, nb::dict arrays) { return Unwrap(session.Plan(FeedsOf(arrays)))->ToString(); });
}

}  // namespace caesura::python
