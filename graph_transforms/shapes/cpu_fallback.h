// SPDX-License-Identifier: Apache-2.0
// CPU fallback of shape chains. Exported graphs compute shapes, sizes and axes by chains of tiny
// ops that begin at graph inputs, at Shape or at Size, and end at an input that a kernel reads on
// the host (KernelDef::host_inputs). On a device each of them would be a launch, and each end a
// copy that the host waits for. This pass has them run on the host, as far as that saves copies to
// the host and costs none to the device (graph_transforms/shapes/shape_cut.h says how it is
// decided).
//
// Moved are nodes that read and make nothing but shape-like values: integers or bools, at most 64
// elements, or of unknown number and rank 0 or 1. They are pinned to the host's provider; one that
// is needed on both sides is there twice. What computes with floating values, with larger tensors
// or with the data of a device stays; nodes with outputs of both kinds stay too, and their host
// outputs (KernelDef::host_outputs) are on the host by themselves.
//
// Does nothing where all providers are on the host.
#ifndef CAESURA_GRAPH_TRANSFORMS_SHAPES_CPU_FALLBACK_H_
#define CAESURA_GRAPH_TRANSFORMS_SHAPES_CPU_FALLBACK_H_

#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/graph/pass.h"
#include "core/providers/execution_provider.h"

namespace caesura {

// The rule by which nodes move to the host.
enum class CpuFallbackMode {
  kOff,      // placement alone decides
  kForward,  // a node goes to the host where all it reads is there, small or a graph input; for
             // comparison
  kSeed,     // and all that stands before a shape input of a few ops, whatever it computes; for
             // comparison
  kOn,
};

// "off", "forward", "seed", "on".
Result<CpuFallbackMode> ParseCpuFallbackMode(const std::string& text);

// The decision.
struct CpuFallbackReport {
  // One value, and the decision about it.
  struct Line {
    std::string value;  // or the node, where it is one that makes several
    std::string what;   // what became of it, and why
  };
  CpuFallbackMode mode = CpuFallbackMode::kOff;
  std::vector<Line> moved;    // made on the host now, with what that saves
  std::vector<Line> stopped;  // copied to the host all the same, with what keeps them on the device
  // Copies in a run, as placement has them; a body counts once, constants do not.
  int to_host_before = 0, to_host_after = 0, to_device_before = 0, to_device_after = 0;

  std::string ToString() const;
};

// The options of the pass.
struct CpuFallbackOptions {
  std::optional<CpuFallbackMode> mode =
      std::nullopt;  // nullopt: CAESURA_AGGRESSIVE_CPU_FALLBACK; unset: kOn
  // Names of nodes that stay where placement has them. A node that is pinned (Node::set_provider)
  // stays in any case.
  std::unordered_set<std::string> keep = {};
  // Names of graph inputs that will be fed on the device; the others come on the host.
  std::unordered_set<std::string> device_inputs = {};
  std::shared_ptr<CpuFallbackReport> report = nullptr;  // filled by the pass
};

// `providers` as the plans will have them. Fails on a CAESURA_AGGRESSIVE_CPU_FALLBACK that says
// something else.
std::shared_ptr<Pass> MakeCpuFallbackPass(ProviderList providers, CpuFallbackOptions options = {});

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_SHAPES_CPU_FALLBACK_H_
