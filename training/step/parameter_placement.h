// SPDX-License-Identifier: Apache-2.0
// Parameters on a device: where all nodes that update a parameter have kernels there, it lives in
// the device's memory, and no step copies it (graph_transforms/order/update_placement.h).
#ifndef CAESURA_TRAINING_STEP_PARAMETER_PLACEMENT_H_
#define CAESURA_TRAINING_STEP_PARAMETER_PLACEMENT_H_

#include <memory>
#include <string>
#include <vector>

#include "core/execute/parameter_set.h"
#include "core/providers/execution_provider.h"
#include "training/step/step_program.h"

namespace caesura {

struct StepProgram;  // step_program.h

// Moves initializers of the program that steps change to the device where all nodes that update
// them can run: trained parameters, optimizer state, accumulators; and running statistics, where
// the nodes that read them run there too. The others stay. Where the device's memory does not take
// them all, all stay, with a warning. Those that are on a device already stay there.
void PlaceParameters(const StepProgram& program, const ProviderList& providers);

// Brings the tensors that are on a device to the host. All or none.
Status BringToHost(ParameterSet* parameters, const ProviderList& providers);

}  // namespace caesura

#endif  // CAESURA_TRAINING_STEP_PARAMETER_PLACEMENT_H_
