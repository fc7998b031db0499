// SPDX-License-Identifier: Apache-2.0
// A gate before a device's updates. The host puts a whole step on the device, and opens the gate
// when nothing of it was refused: until then no parameter has changed, and none needs a copy.
#ifndef CAESURA_CORE_PROVIDERS_WRITE_GATE_H_
#define CAESURA_CORE_PROVIDERS_WRITE_GATE_H_

#include <memory>

#include "core/kernels/kernel.h"

namespace caesura {

// A provider inherits it, too, if its device can wait for the host.
//
// Thread safety: all methods from any thread. The thread that closes the gate opens it, too.
class WriteGate {
 public:
  virtual ~WriteGate() = default;
  // True if the kernel is held: after a closed gate it writes only if the gate is opened to write,
  // and no kernel before it has reported an error.
  virtual bool Holds(const KernelDef& kernel) const = 0;
  // Work that this thread puts on the device from here on waits for OpenGate. False: another
  // thread's gate is closed, or the device cannot wait. Until OpenGate the host must neither wait
  // for the device nor allocate its memory.
  virtual Result<bool> CloseGate() const = 0;
  // REQUIRES: this thread has closed it. Without `write` the call returns when the held kernels
  // have come to their ends, and does not fail. Where it fails with `write` (kProviderFailure) the
  // gate is still closed.
  virtual Status OpenGate(bool write) const = 0;
  // True from a gate on that stayed closed for a second or two: another thread waited for the
  // device, and kept the one that had closed the gate from going on. Then held kernels are let
  // through without writing, OpenGate fails with `write`, and no gate is closed any more.
  virtual bool was_interrupted() const = 0;
  // Waits for all that was there when the gate was opened to write, and tells what kernels had
  // reported until then, as Synchronise does: held kernels have then written nothing.
  virtual Status WaitForHeld() const = 0;
  // Host memory to which a copy from the device does not make the host wait. Null: there is none
  // left of that size.
  virtual std::shared_ptr<Buffer> HostMemory(size_t bytes) const = 0;
};

}  // namespace caesura

#endif  // CAESURA_CORE_PROVIDERS_WRITE_GATE_H_
