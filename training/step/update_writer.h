// SPDX-License-Identifier: Apache-2.0
// Writes the part of a step program that follows the gradients: accumulation, clipping, updates,
// what buffers become.
#ifndef CAESURA_TRAINING_STEP_UPDATE_WRITER_H_
#define CAESURA_TRAINING_STEP_UPDATE_WRITER_H_

#include <string>
#include <vector>

#include "training/step/gradient_reduction.h"
#include "training/step/step_program.h"

namespace caesura {

class UpdateWriter {
 public:
  UpdateWriter(Graph& graph, const StepOptions& options, const RankSetup& setup,
               StepProgram& program)
      : graph_(graph), options_(options), setup_(setup), program_(program) {}

  // kUnsupported where the options do not allow that each rank updates its part of a bucket only.
  static Status CheckSharding(const StepOptions& options);

  // kUnsupported where StepOptions::buckets are not of these parameters, or the ranks sum otherwise
  // than buckets are given for.
  static Status CheckBuckets(const StepOptions& options, const RankSetup& setup,
                             const std::vector<std::string>& trainable);

  // kUnsupported where the options do not allow parameters of which each rank has its own part
  // (StepOptions::rank_parts); kInvalidArgument where these are not trained.
  static Status CheckRankParts(const StepOptions& options,
                               const std::vector<std::string>& trainable);

  // If the loss is scaled: 1 / scale as a float64 value. To be called first.
  void Unscale(Value* loss_scale);
  // Has the writes of Accumulate and Update wait until these are known to be finite. To be called
  // before them.
  void RequireFinite(const std::vector<Value*>& gradients, Value* loss);
  // The gradient as the caller shall see it: unscaled, the mean of all micro-steps and ranks.
  Value* ForCaller(Value* gradient);
  // Leaves this rank its parts of the sums of the gradients over all ranks, for the calls below.
  void ReduceParts(const std::vector<Value*>& gradients);
  // `loss` times the `count` of elements that it is the mean of; 0 where there are none.
  Value* Weighted(Value* loss, Value* count);
  // Adds the gradients and `totals`, a loss and maybe a count, to those of earlier micro-steps. The
  // sums of a step that `updates` are no part of what later ones read.
  void Accumulate(std::vector<Value*>& gradients, const std::vector<Value**>& totals, bool updates);
  // Sums the gradients (with RankSetup::divides_state each rank's parts of them) and `totals` over
  // all ranks, and takes rank 0's statistics. Update's writes then wait until all ranks have them,
  // but for CommitMode::kEagerConsume.
  // To be called before it.
  void Reduce(std::vector<Value*>& gradients, const std::vector<Value**>& totals,
              std::vector<Value*>& statistics);
  // From here on sums are divided by `count`, instead of by the number of micro-steps and ranks.
  void DivideBy(Value* count);
  // The mean loss, of a sum over all micro-steps and ranks.
  Value* MeanLoss(Value* sum) { return Times(sum, MeanFactor()); }
  // The mean loss, of a sum over ranks.
  Value* MeanLossOfRanks(Value* sum) { return Times(sum, rank_share_); }
  // With early commit: `value`, once all ranks have all sums. No update waits for it.
  Value* AgreedAtLast(Value* value) { return cleared_ = collectives_.AgreedAtLast(value); }
  void Update(const std::vector<Value*>& gradients);
  // Writes the value to the target, once the updates may write.
  void Assign(Value* target, Value* value);

 private:
  struct Group {
    Optimizer optimizer;
    double learning_rate_scale;
    int row;                   // of the coefficients that are fed
    std::vector<int> members;  // indices of trained parameters
  };
  // The values that change between steps, for a group whose update is composed of ONNX's ops
  // (composed_updates.cc).
  struct Rates {
    const Group& group;
    Value *coefficients, *step, *scale;
  };
  // The sum of a value and those of earlier micro-steps. `place`: the reset flag, or with logical
  // shards the index of the micro-step. A sum in pairs is there at the last one only; before it
  // this is the value.
  Value* Accumulated(const std::string& name, Value* value, Value* place, bool updates);
  // A value times a float64 scalar.
  Value* Times(Value* value, Value* factor);
  // A float64 scalar that makes a sum of micro-steps' gradients their mean; of all ranks' where
  // there is no rank_share_.
  Value* MeanFactor();
  // `value`, once what RequireFinite was given is known to be finite.
  Value* Checked(Value* value);
  // A tensor that an update op changes, and the name that its state goes by.
  struct Updated {
    Value *parameter, *gradient;
    std::string name;
    DType dtype;
    Shape shape;
  };
  // A bucket of which each rank updates its part.
  struct Bucket {
    int shard;  // of the program
    Group group;
    Value* gradient;  // of the rank's part
  };
  std::vector<Group> Groups() const;
  // The place of each trained parameter in Groups().
  std::vector<int> GroupOf(const std::vector<Group>& groups) const;
  // The row that a bucket's use is asked for by; -1: it is always used.
  int64_t RowOf(const Group& group) const {
    return options_.skips_unused && group.row < std::ssize(options_.groups) ? group.row : -1;
  }
  // `scale`, or infinity where no rank uses its row: its update is skipped then.
  Value* ScaleOf(const Group& group, Value* scale, Value* agreed);
  // Indices of trained parameters in StepOptions::buckets.
  std::vector<std::vector<int>> GivenBuckets() const;
  // True if each rank has its own part of the trained parameter.
  bool IsRankPart(int trained) const;
  // The global norm of what this rank has.
  Value* OwnNorm(const std::vector<Value*>& gradients);
  // The global norm; of what ranks have parts of, over the parts of all ranks.
  Value* Norm(const std::vector<Value*>& gradients);
  // The sum of squares, as a float64 scalar.
  Value* SquareOfNorm(const std::vector<Value*>& gradients);
  Value* Scale(const std::vector<Value*>& gradients);
  // With the group's learning rate.
  Value* CoefficientsOf(const Group& group, Value* coefficients);
  void UpdateGroup(const Group& group, const std::vector<Value*>& gradients, Value* coefficients,
                   Value* step, Value* scale);
  // The update op of these. Its first outputs are the parameters.
  Node* UpdateOf(const std::vector<Updated>& updated, const Rates& rates);
  void UpdateBucket(const Bucket& bucket, Value* coefficients, Value* step, Value* scale);
  Value* State(const std::string& name, const std::string& parameter, const Shape& shape,
               DType dtype, double initial = 0);
  // A node of ONNX after the backward part.
  Value* Op(const std::string& op_type, std::vector<Value*> inputs, ValueType type,
            AttributeMap attributes = {});
  Node* Act(const std::string& op_type, std::vector<Value*> inputs, AttributeMap attributes,
            int outputs);

  // --- composed_updates.cc ---
  void Compose(const Adafactor& optimizer, const Rates& rates, Value* parameter, Value* gradient);
  void Compose(const Muon& optimizer, const Rates& rates, Value* parameter, Value* gradient);
  // The coefficient as a float64 scalar that the step is fed; null where it is not.
  Value* Fed(const Rates& rates, const std::string& name);
  // A coefficient as a float64 scalar: fed, or what `written` says. The learning rate is one.
  Value* Coefficient(const Rates& rates, const std::string& name, double written);
  Value* Constant(double value);                                          // float64 scalar
  Value* Number(const std::string& op_type, std::vector<Value*> inputs);  // of float64 scalars
  Value* As(Value* value, DType dtype);
  // The gradient times what all are multiplied with.
  Value* Scaled(const Rates& rates, Value* gradient);
  // target = value, but where the step is skipped.
  void Store(const Rates& rates, Value* target, Value* value);

  Graph& graph_;
  const StepOptions& options_;
  const RankSetup& setup_;
  const int micro_steps_ = setup_.MicroSteps(options_.accumulation_steps);  // 0: the caller decides
  StepProgram& program_;
  Value* inverse_scale_ = nullptr;  // of the loss
  Value* rank_share_ = nullptr;     // where the mean goes over ranks
  Value* mean_factor_ = nullptr;    // where it goes over counted elements
  CollectiveWriter collectives_{graph_, setup_.provider};
  std::vector<Bucket> buckets_;
  Value* norm_ = nullptr;  // of the gradients, where they must be finite
  Value* loss_ = nullptr;  // likewise
  // Once it is there, nothing that the ranks exchange or that is checked may fail. Null: nothing
  // is.
  Value* cleared_ = nullptr;
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_STEP_UPDATE_WRITER_H_
