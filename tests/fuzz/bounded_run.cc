// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/bounded_run.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "core/onnx/model_reader.h"
#include "core/plan/execution_plan.h"
#include "tests/fuzz/target.h"

namespace caesura::fuzz {
namespace {

constexpr int64_t kMaxFeedElements = 4096;
constexpr size_t kMaxArenaBytes = size_t{1} << 24;
constexpr std::chrono::seconds kMaxRunTime{2};

// Small numbers, so that they serve as indices too.
Tensor FeedTensor(DType dtype, Shape shape) {
  Tensor tensor = Tensor::Zeros(dtype, std::move(shape));
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    const auto set = [&](auto tag) {
      using T = typename decltype(tag)::type;
      tensor.data<T>()[i] = static_cast<T>(static_cast<float>(i % 5));
    };
    if (dtype == DType::kString)
      tensor.data<std::string>()[i] = std::string(1, static_cast<char>('a' + i % 5));
    else if (dtype == DType::kBool) tensor.data<bool>()[i] = i % 2 != 0;
    else DispatchNumeric(dtype, set);
  }
  return tensor;
}

// Nothing where no small value fits.
RuntimeValue Feed(const ValueType& type, std::map<std::string, int64_t>* symbols) {
  if (type.kind == ValueType::Kind::kSequence) {
    RuntimeValue element = Feed(*type.element, symbols);
    return element.has_value() ? RuntimeValue::Sequence({element, element})
                               : RuntimeValue::Sequence({});
  }
  if (type.kind == ValueType::Kind::kOptional) return Feed(*type.element, symbols);
  if (type.kind == ValueType::Kind::kMap) {
    const bool known = type.key != DType::kUndefined && type.element->dtype != DType::kUndefined;
    return known
               ? RuntimeValue::Map(FeedTensor(type.key, {4}), FeedTensor(type.element->dtype, {4}))
               : RuntimeValue();
  }
  if (!type.is_tensor() || type.dtype == DType::kUndefined) return {};
  std::vector<int64_t> dims;
  int64_t elements = 1;
  for (const Dim& dim : type.shape.value_or(std::vector<Dim>(2))) {
    int64_t size = dim.value;
    if (!dim.known()) size = symbols->emplace(dim.symbol, 2 + symbols->size() % 3).first->second;
    dims.push_back(size);
    if (__builtin_mul_overflow(elements, size, &elements) || elements > kMaxFeedElements) return {};
  }
  Result<Shape> shape = CheckedShape(std::move(dims), type.dtype);
  return shape.ok() ? RuntimeValue(FeedTensor(type.dtype, *std::move(shape))) : RuntimeValue();
}

// Sets a flag when time is up.
class Deadline {
 public:
  Deadline() : thread_([this] { Wait(); }) {}
  ~Deadline() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  std::shared_ptr<const std::atomic<bool>> flag() const { return flag_; }

 private:
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(lock, kMaxRunTime, [this] { return is_over_; })) *flag_ = true;
  }
  std::shared_ptr<std::atomic<bool>> flag_ = std::make_shared<std::atomic<bool>>(false);
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace

void ReadAndRun(std::string_view bytes) {
  ReadOptions limits;
  limits.max_nodes = 2000;
  limits.max_tensor_bytes = size_t{1} << 24;
  limits.max_dense_bytes = size_t{1} << 20;
  Result<Model> model = ReadModelBytes(bytes, limits);
  if (!model.ok()) return;
  SessionOptions options;
  options.threads = 1;
  options.passes = SessionPasses();
  const auto session = Session::Create(*std::move(model), std::move(options));
  if (!session.ok()) return;
  NamedValues feeds;
  std::map<std::string, int64_t> symbols;
  for (const Value* input : (*session)->inputs()) {
    if (RuntimeValue value = Feed(input->type(), &symbols); value.has_value())
      feeds[input->name()] = std::move(value);
  }
  const auto plan = (*session)->Plan(feeds);
  if (!plan.ok() || (*plan)->arena_bytes() > kMaxArenaBytes) return;
  const Deadline deadline;
  RunOptions run;
  run.cancel = deadline.flag();
  static_cast<void>((*session)->Run(feeds, {}, run));
}

}  // namespace caesura::fuzz
