// SPDX-License-Identifier: Apache-2.0
// The origin of a node, in the words of the exporter. torch.onnx leaves two entries:
//   namespace                   ": main.Net/blocks.0: main.Block/blocks.0.fc:
//   torch.nn.Linear/linear: aten.linear" pkg.torch.onnx.stack_trace  'File "net.py", line 5, in
//   forward\n  x = self.fc(x)\n  File "torch/linear.py", ...'
// of which "blocks.0.fc (torch.nn...Linear) at net.py:5" is kept.
#include "core/onnx/graph_import.h"

namespace caesura {
namespace {

// The innermost module of a namespace entry: the last part but one (the last is the operator).
std::string ModuleOf(const std::string& name_space) {
  const size_t last = name_space.rfind('/');
  if (last == std::string::npos || last == 0) return "";
  const size_t before = name_space.rfind('/', last - 1);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  const std::string part = name_space.substr(begin, last - begin);
  const size_t colon = part.find(": ");
  if (colon == std::string::npos) return part;
  const std::string path = part.substr(0, colon), type = part.substr(colon + 2);
  return path.empty() ? type : path + " (" + type + ")";
}

// The innermost frame outside of installed packages, as "file:line".
std::string LineOf(const std::string& trace) {
  static const std::string kFile = "File \"", kLine = "\", line ";
  std::string found;
  for (size_t at = trace.find(kFile); at != std::string::npos; at = trace.find(kFile, at + 1)) {
    const size_t path = at + kFile.size(), end = trace.find(kLine, path);
    if (end == std::string::npos) break;
    const std::string file = trace.substr(path, end - path);
    const size_t number = end + kLine.size();
    const size_t stop = trace.find_first_not_of("0123456789", number);
    const bool is_users = file.find("site-packages") == std::string::npos;
    if (!is_users && !found.empty()) continue;
    found = file + ":" + trace.substr(number, stop == std::string::npos ? stop : stop - number);
  }
  return found;
}

}  // namespace

std::string NodeSource(const onnx::NodeProto& proto) {
  std::string module, line;
  for (const auto& entry : proto.metadata_props()) {
    if (entry.key() == kSourceKey) return entry.value();
    if (entry.key() == "namespace") module = ModuleOf(entry.value());
    if (entry.key() == "pkg.torch.onnx.stack_trace") line = LineOf(entry.value());
  }
  if (module.empty() || line.empty()) return module + line;
  return module + " at " + line;
}

}  // namespace caesura
