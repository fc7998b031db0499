// SPDX-License-Identifier: Apache-2.0
// Tensors and their parts: shapes, layouts, devices, buffers and allocators; and RuntimeValue, all
// that can flow along an edge of a graph.
#ifndef CAESURA_CORE_TENSOR_TENSOR_H_
#define CAESURA_CORE_TENSOR_TENSOR_H_

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/tensor/dtype.h"

namespace caesura {

// --- shapes: every dim known, row-major, contiguous ---

// The dims of a tensor, outermost first. Thread safety: as a std::vector.
class Shape {
 public:
  Shape() = default;  // a scalar
  Shape(std::initializer_list<int64_t> dims) { Set(dims.begin(), dims.end()); }
  explicit Shape(const std::vector<int64_t>& dims) { Set(dims.data(), dims.data() + dims.size()); }

  int rank() const { return more_.empty() ? rank_ : static_cast<int>(more_.size()); }
  int64_t operator[](int axis) const { return begin()[axis]; }
  int64_t& operator[](int axis) { return more_.empty() ? few_[axis] : more_[axis]; }
  std::vector<int64_t> dims() const { return {begin(), end()}; }
  const int64_t* begin() const { return more_.empty() ? few_ : more_.data(); }
  const int64_t* end() const { return begin() + rank(); }

  // Product of all dims; 1 for a scalar. Shapes made by CheckedShape never overflow it.
  int64_t elements() const { return Elements(0, rank()); }
  // Product of dims [first, last).
  int64_t Elements(int first, int last) const;
  // Row-major strides in elements.
  std::vector<int64_t> Strides() const;

  bool operator==(const Shape& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }
  bool operator!=(const Shape& other) const { return !(*this == other); }
  // "[2, 3]"; a scalar is "[]".
  std::string ToString() const;

 private:
  static constexpr int kFew =
      5;  // most tensors have no more: plans are full of shapes, which then need no memory

  void Set(const int64_t* first, const int64_t* last) {
    if (last - first > kFew) {
      more_.assign(first, last);
    } else {
      rank_ = static_cast<int>(last - first);
      std::copy(first, last, few_);
    }
  }

  int64_t few_[kFew] = {};
  int rank_ = 0;
  std::vector<int64_t> more_;  // all dims where they are more than kFew
};

// Refuses negative dims and products (in bytes too) beyond 2^62: for dims that come from outside.
Result<Shape> CheckedShape(std::vector<int64_t> dims, DType dtype);

// Numpy/ONNX multidirectional broadcasting of two shapes; fails with both shapes named.
Result<Shape> BroadcastShape(const Shape& a, const Shape& b);

// axis in [-rank, rank) to [0, rank); fails otherwise.
Result<int> NormalizeAxis(int64_t axis, int rank);

// --- layouts: where elements lie in a buffer, if they are not simply one after the other ---

// In elements, one stride a dim; 0 repeats. No strides and no offset: dense, row-major from the
// buffer's start.
struct Layout {
  std::vector<int64_t> strides;
  int64_t offset = 0;

  bool dense() const { return strides.empty() && offset == 0; }
  bool operator==(const Layout& other) const {
    return strides == other.strides && offset == other.offset;
  }
};

// The strides of `shape` under `layout`, also where it is dense.
std::vector<int64_t> StridesOf(const Shape& shape, const Layout& layout);

// `layout`, or the dense one where it says the same.
Layout Simplified(const Shape& shape, Layout layout);

// Dim i of the result is dim permutation[i] of `shape`.
Layout Permuted(const Shape& shape, const Layout& layout, const std::vector<int64_t>& permutation);

// The layout of `to`, of as many elements as `from`, in the same bytes; nothing where no strides
// can say it.
std::optional<Layout> Reshaped(const Shape& from, const Layout& layout, const Shape& to);

// Writes the elements at `from`, of 1, 2, 4, 8 or 16 bytes each, to `to` in row-major order.
void CopyDense(const void* from, const Shape& shape, const Layout& layout, size_t element_bytes,
               void* to);

// Writes the elements at `from`, in row-major order, to `to`, where they lie as `layout` says.
void CopyToLayout(const void* from, const Shape& shape, const Layout& layout, size_t element_bytes,
                  void* to);

// --- bytes on a device, who owns them, and where new ones come from ---

// The kind of a device. kOther is a device of a plug-in or of PyTorch.
enum class DeviceType : uint8_t { kCpu, kCuda, kOther };

// One device: its kind and its number among those of that kind. The default is the host.
struct Device {
  DeviceType type = DeviceType::kCpu;
  int16_t index = 0;
  bool is_host() const { return type == DeviceType::kCpu; }
  bool operator==(const Device& o) const { return type == o.type && index == o.index; }
  bool operator!=(const Device& o) const { return !(*this == o); }
  std::string ToString() const;  // "cpu", "cuda:0"
};

// Buffers are aligned to this, and every offset that a memory plan gives out is a multiple of it.
inline constexpr size_t kBufferAlignment = 64;
// Memory of devices other than the host is aligned to this.
inline constexpr size_t kDeviceAlignment = 256;

// A range of bytes. Freed by the deleter when the last shared_ptr goes, on whichever thread that
// is.
class Buffer {
 public:
  using Deleter = std::function<void(void*)>;
  Buffer(void* data, size_t size, Device device, Deleter deleter)
      : data_(data), size_(size), device_(device), deleter_(std::move(deleter)) {}
  ~Buffer() {
    if (deleter_) deleter_(data_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }
  size_t size() const { return size_; }
  Device device() const { return device_; }
  // False for a view of somebody else's bytes.
  bool owns_memory() const { return static_cast<bool>(deleter_); }

 private:
  void* data_;
  size_t size_;
  Device device_;
  Deleter deleter_;
};

// Allocates the buffers of one device. Thread safety: all methods may be called from any thread.
class Allocator {
 public:
  virtual ~Allocator() = default;
  // `size` bytes aligned to kBufferAlignment, not initialised. Fails with kOutOfMemory (host) or
  // kProviderFailure (device). size 0 gives a valid empty buffer.
  virtual Result<std::shared_ptr<Buffer>> Allocate(size_t size) = 0;
  virtual Device device() const = 0;
};

// Plain host memory. Never destroyed.
Allocator& HostAllocator();

// Host memory that reads as zero. Large memory is not touched: whoever writes first, on however
// many threads, meets fresh pages. Fails with kOutOfMemory.
Result<std::shared_ptr<Buffer>> AllocateZeros(size_t size);

// Host memory that is kept on return and handed out again to requests of at least half its size, so
// that steps that allocate about the same sizes touch no fresh pages. Used and idle memory together
// are at most 1.5 times what was in use at the peak. Buffers may outlive the allocator.
std::shared_ptr<Allocator> MakePooledAllocator(Allocator& source);

// A host array of `count` default-constructed strings.
std::shared_ptr<Buffer> AllocateStrings(size_t count);

// --- tensors ---

// Copies share the bytes. An empty (default) tensor has dtype kUndefined.
// Thread safety: as a shared_ptr; the bytes are the users' business.
class Tensor {
 public:
  Tensor() = default;
  // REQUIRES: buffer holds at least `shape.elements() * DTypeSize(dtype)` bytes after
  // `byte_offset`.
  Tensor(DType dtype, Shape shape, std::shared_ptr<Buffer> buffer, size_t byte_offset = 0);

  // A fresh tensor; uninitialised, but strings are empty ones.
  static Result<Tensor> Allocate(DType dtype, Shape shape, Allocator& allocator = HostAllocator());
  // A view of memory that the caller keeps alive and unchanged in size.
  static Tensor Borrow(DType dtype, Shape shape, void* data, Device device = {});

  // Small host tensors for tests and constants; never fail but by running out of memory (which
  // throws).
  template <typename T>
  static Tensor Of(Shape shape, const std::vector<T>& values);
  template <typename T>
  static Tensor Scalar(T value) {
    return Of<T>(Shape{}, {value});
  }
  static Tensor Zeros(DType dtype, Shape shape);

  bool defined() const { return dtype_ != DType::kUndefined; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t elements() const { return shape_.elements(); }
  size_t bytes() const { return static_cast<size_t>(elements()) * DTypeSize(dtype_); }
  Device device() const { return buffer_ ? buffer_->device() : Device{}; }
  const std::shared_ptr<Buffer>& buffer() const { return buffer_; }

  void* raw() const { return data_; }
  // REQUIRES: T is the element type, another type of its size, or one of single bytes.
  template <typename T>
  T* data() const {
    assert(data_ == nullptr || sizeof(T) == 1 || sizeof(T) == DTypeSize(dtype_));
    return static_cast<T*>(data_);
  }
  // The elements as a vector, converted to T. REQUIRES: host memory, a numeric or bool dtype (not
  // complex).
  template <typename T>
  std::vector<T> ToVector() const;

  // A tensor of these bytes with another shape. REQUIRES: equal element count.
  Tensor Reshaped(Shape shape) const;
  // A deep copy on the host. REQUIRES: host memory.
  Result<Tensor> Clone(Allocator& allocator = HostAllocator()) const;

 private:
  DType dtype_ = DType::kUndefined;
  Shape shape_;
  std::shared_ptr<Buffer> buffer_;
  void* data_ = nullptr;
};

// The value of an edge at run time: nothing (an empty optional), a tensor, a sequence, or a map. An
// ONNX optional that holds something is that something.
class RuntimeValue {
 public:
  // A map in two tensors of one shape [n]: values[i] belongs to keys[i], and no key is there twice.
  // Keys are strings or integers.
  struct MapEntries {
    Tensor keys, values;
  };

  RuntimeValue() = default;
  RuntimeValue(Tensor tensor) : tensor_(std::move(tensor)) {}
  static RuntimeValue Sequence(std::vector<RuntimeValue> elements) {
    RuntimeValue out;
    out.sequence_ = std::make_shared<const std::vector<RuntimeValue>>(std::move(elements));
    return out;
  }
  // Sessions check that the tensors are as MapEntries has them. Nobody writes to their bytes any
  // more.
  static RuntimeValue Map(Tensor keys, Tensor values) {
    RuntimeValue out;
    out.map_ = std::make_shared<const MapEntries>(MapEntries{std::move(keys), std::move(values)});
    return out;
  }

  bool has_value() const { return is_tensor() || is_sequence() || is_map(); }
  bool is_tensor() const { return tensor_.defined(); }
  bool is_sequence() const { return sequence_ != nullptr; }
  bool is_map() const { return map_ != nullptr; }
  // Undefined unless is_tensor().
  const Tensor& tensor() const { return tensor_; }
  // REQUIRES: is_sequence()
  const std::vector<RuntimeValue>& sequence() const { return assert(is_sequence()), *sequence_; }
  // REQUIRES: is_map()
  const MapEntries& map() const { return assert(is_map()), *map_; }
  // "float32[2, 3]", "a sequence", "map(int64, float32)" or "nothing": for error messages.
  std::string Describe() const;

 private:
  Tensor tensor_;
  std::shared_ptr<const std::vector<RuntimeValue>> sequence_;
  std::shared_ptr<const MapEntries> map_;
};

// Values by the names of a graph's inputs or outputs.
using NamedValues = std::map<std::string, RuntimeValue>;

// Copies `count` elements; strings are assigned, all else is moved as bytes.
void CopyElements(DType dtype, const void* src, void* dst, int64_t count);

template <typename T>
Tensor Tensor::Of(Shape shape, const std::vector<T>& values) {
  Tensor out = Allocate(kDTypeOf<T>, std::move(shape)).value();
  for (size_t i = 0; i < values.size(); ++i) out.data<T>()[i] = values[i];
  return out;
}

template <typename T>
std::vector<T> Tensor::ToVector() const {
  assert(device().is_host());
  std::vector<T> out(static_cast<size_t>(elements()));
  auto read = [&](auto tag) {
    using E = typename decltype(tag)::type;
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(data<E>()[i]);
  };
  [[maybe_unused]] const bool known =
      DispatchNumeric(dtype_, read) || DispatchDType<bool>(dtype_, read);
  assert(known);
  return out;
}

}  // namespace caesura

#endif  // CAESURA_CORE_TENSOR_TENSOR_H_
