// SPDX-License-Identifier: Apache-2.0
// IoBinding: where the inputs of runs are and where their outputs go, by name, settled once for
// many runs.
//
//   IoBinding binding(*session);
//   RETURN_IF_ERROR(binding.BindInput("x", x));
//   RETURN_IF_ERROR(binding.BindOutput("y", buffer));        // into the caller's memory
//   RETURN_IF_ERROR(binding.BindOutput("mask", cuda));       // fresh memory of that device
//   ASSIGN_OR_RETURN(auto outputs, session->Run(binding));   // {y, mask}
//
// A binding is a value. A run reads it and changes nothing in it: what the run has made is in the
// results and nowhere else, so the next run (of other shapes, perhaps, or in another thread) meets
// nothing of this one.
//
// Ownership: what is bound is held by the binding, bytes included where the tensor's buffer owns
// them (a view's bytes are the caller's to keep). Results in a caller's buffer share it; fresh ones
// are the receiver's alone.
//
// Synchronisation. Inputs are used where they are and read at run time: nothing is copied when
// they are bound, so what the caller writes to them between runs is what the next run sees. The
// caller must have finished writing before the run begins: writes of other threads, or of a
// device's streams other than the provider's, need to be waited for. Run returns when results on
// the host are complete; results on a device are in order with the work of its provider, and
// Session::Synchronise() waits for them. A caller's buffer holds arbitrary bytes after a failed
// run, but for one that was declared kExact: what it shares with an input is not touched by a run
// that fails.
//
// Thread safety: copies share what they hold until one of them changes. Reading (and running) one
// binding in many threads is fine where its outputs are fresh ones; the caller's buffers serve one
// run at a time. Changing needs the only hand.
#ifndef CAESURA_CORE_SESSION_IO_BINDING_H_
#define CAESURA_CORE_SESSION_IO_BINDING_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/session/session.h"

namespace caesura {

// An output before the run.
struct OutputSpec {
  std::string name;
  // Dtype and shape follow from the inputs' dtypes and shapes. If not, they depend on the inputs'
  // elements (NonZero, a shape that is fed) or the output is no tensor: bind a device, not a
  // buffer, unless you know better.
  bool known = false;
  DType dtype = DType::kUndefined;
  Shape shape;
};

// The bound inputs and outputs of runs of one session. Copies are cheap and independent.
class IoBinding {
 public:
  // The bytes that a caller's buffer may share with bound inputs.
  enum class Overlap {
    kRefused,  // no byte
    kExact,  // all of one input's bytes, which are replaced (by one copy) when all else of the run
             // has succeeded
  };

  // The binding keeps the session's address, so the session must live as long as it.
  explicit IoBinding(const Session& session);

  // Binding a name again replaces what was bound to it. All fail with kInvalidArgument, and leave
  // the binding as it was, where the model has no such input or output, or the dtype, rank or a
  // known dim is another one, or memory overlaps that may not. Dims that have no number in the
  // model are checked at run time.
  Status BindInput(const std::string& name, RuntimeValue value);
  // A caller's buffer of just the output's size, on any device of the session's.
  Status BindOutput(const std::string& name, Tensor buffer, Overlap overlap = Overlap::kRefused);
  // Memory of its own in each run, on that device.
  Status BindOutput(const std::string& name, Device device = {});
  void ClearInputs();
  void ClearOutputs();

  // In the order of Run's results.
  std::vector<std::string> output_names() const;

 private:
  friend class Session;
  struct Output {
    size_t index;   // of the graph
    Tensor buffer;  // undefined: a fresh one
    Device device;
    Overlap overlap;
  };
  struct Bound {
    std::vector<RuntimeValue> feeds;  // by input of the graph
    std::vector<Output> outputs;      // as bound
    // Run passes these on, made of `outputs`: by output of the graph; empty where nothing needs to
    // be said.
    std::vector<Tensor> buffers;
    std::vector<std::optional<Device>> devices;
    std::vector<bool> wanted;
    bool buffers_on_feeds = false;
  };
  // Outputs replaced by, or grown by, `output`.
  Status Put(Output output);
  // Puts `changed` in place when nothing in it overlaps that may not.
  Status Adopt(Bound changed);
  std::string NameOf(const Output& output) const {
    return session_->outputs()[output.index]->name();
  }

  const Session* session_;
  std::shared_ptr<const Bound> bound_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_SESSION_IO_BINDING_H_
