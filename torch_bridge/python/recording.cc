// SPDX-License-Identifier: Apache-2.0
// Records what runs in this process, for report pages, and writes files for TensorBoard.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include "torch_bridge/python/bindings.h"
#include "training/files/event_file.h"
#include "training/report/report.h"

namespace nb = nanobind;

namespace caesura::python {
namespace {

// One recording: caesura.profile holds it from its beginning to its end.
class Recording {
 public:
  void Begin() {
    const Status begun = BeginRecording(recorder_);
    if (!begun.ok()) Raise(begun);
  }
  void End() { EndRecording(); }

  // fallbacks: (op, reason, places). seconds: in own kernels and in PyTorch's. session: whose
  // curves it shows, or null.
  void Write(
      const std::string& path, const std::string& title,
      const std::vector<std::tuple<std::string, std::string, std::vector<std::string>>>& fallbacks,
      std::pair<double, double> seconds, const TrainingSession* session) const {
    Report report{.title = title, .runs = recorder_->Runs(), .own_and_pytorch_seconds = seconds};
    for (const auto& [op, reason, places] : fallbacks)
      report.fallbacks.push_back({op, reason, places});
    if (session != nullptr) {
      report.curves = session->runs().curves();
      report.cpu_fallback = session->runs().cpu_fallback();
    }
    const Status written = WriteReport(report, path);
    if (!written.ok()) Raise(written, /*of_file=*/true);
  }

 private:
  const std::shared_ptr<RunRecorder> recorder_ = std::make_shared<RunRecorder>();
};

}  // namespace

void BindRecording(nb::module_& m) {
  nb::class_<Recording>(m, "Recording")
      .def(nb::init<>())
      .def("begin", &Recording::Begin)
      .def("end", &Recording::End)
      .def("write", &Recording::Write, nb::arg("path"), nb::arg("title"), nb::arg("fallbacks"),
           nb::arg("seconds"), nb::arg("session").none());
  // histogram: of a float32 array.
  nb::class_<EventWriter>(m, "Events")
      .def_static("open",
                  [](const std::string& folder) {
                    return Unwrap(EventWriter::Create(folder), /*of_file=*/true);
                  })
      .def("scalar",
           [](EventWriter& writer, const std::string& tag, double value, int64_t step) {
             Check(writer.AddScalar(tag, value, step), /*of_file=*/true);
           })
      .def("text", [](EventWriter& writer, const std::string& tag, const std::string& text,
                      int64_t step) { Check(writer.AddText(tag, text, step), /*of_file=*/true); })
      .def("histogram",
           [](EventWriter& writer, const std::string& tag, nb::handle values, int64_t step) {
             const Tensor tensor = ValueOf(values).tensor();
             Check(writer.AddHistogram(
                       tag, {tensor.data<float>(), static_cast<size_t>(tensor.elements())}, step),
                   /*of_file=*/true);
           })
      .def_prop_ro("path", &EventWriter::path);
}

}  // namespace caesura::python
