// SPDX-License-Identifier: Apache-2.0
// Snapshots of runs (core/execute/state_snapshot.h) as a part of a safetensors file: the values as
// tensors "state/0", "state/1" and so on, all else as a JSON manifest in the file's metadata.
//
// Any bytes are safe to read: the manifest is checked field by field, and against the tensors. What
// is wrong comes back as kInvalidModel. Whether a snapshot fits a program is asked later, by
// ExecutionState::Restore.
#ifndef CAESURA_CORE_RUNTIME_SNAPSHOT_FILE_H_
#define CAESURA_CORE_RUNTIME_SNAPSHOT_FILE_H_

#include "core/execute/state_snapshot.h"
#include "core/files/safetensors.h"

namespace caesura {

// Adds the snapshot to what a file is to hold; bytes are shared with it. Fails with kUnsupported
// for strings that are not UTF-8.
Status AddSnapshot(const StateSnapshot& snapshot, TensorFile* contents);
// True if a file holds one.
bool HoldsSnapshot(const TensorFile& contents);
// Takes the snapshot out of a file's contents. Fails with kUnsupported for one that a newer release
// has written in a newer format. REQUIRES: HoldsSnapshot(contents).
Result<StateSnapshot> TakeSnapshot(TensorFile* contents);

}  // namespace caesura

#endif  // CAESURA_CORE_RUNTIME_SNAPSHOT_FILE_H_
