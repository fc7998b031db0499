// SPDX-License-Identifier: Apache-2.0
#include "training/data/dataset.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

using Batches = std::map<std::string, Tensor>;

Status CheckIndices(std::span<const int64_t> indices, int64_t size) {
  for (int64_t i : indices) {
    if (i < 0 || i >= size) {
      return InvalidArgument("example " + std::to_string(i) + " is asked for, there are " +
                             std::to_string(size));
    }
  }
  return {};
}

class ArrayDataset : public Dataset {
 public:
  ArrayDataset(Batches arrays, int64_t size) : arrays_(std::move(arrays)), size_(size) {}
  int64_t size() const override { return size_; }

  Result<Batches> Batch(std::span<const int64_t> indices) const override {
    RETURN_IF_ERROR(CheckIndices(indices, size_));
    Batches out;
    for (const auto& [name, array] : arrays_) {
      std::vector<int64_t> dims = array.shape().dims();
      dims[0] = static_cast<int64_t>(indices.size());
      const int64_t row = array.shape().Elements(1, array.shape().rank());
      const size_t row_bytes = static_cast<size_t>(row) * DTypeSize(array.dtype());
      ASSIGN_OR_RETURN(Tensor batch, Tensor::Allocate(array.dtype(), Shape(dims)));
      for (size_t i = 0; i < indices.size(); ++i) {
        CopyElements(array.dtype(),
                     array.data<char>() + static_cast<size_t>(indices[i]) * row_bytes,
                     batch.data<char>() + i * row_bytes, row);
      }
      out.emplace(name, std::move(batch));
    }
    return out;
  }

 private:
  Batches arrays_;
  int64_t size_;
};

class TextDataset : public Dataset {
 public:
  TextDataset(std::shared_ptr<const TextCorpus> corpus, TextWindows windows, int64_t first,
              int64_t size)
      : corpus_(std::move(corpus)), windows_(std::move(windows)), first_(first), size_(size) {}
  int64_t size() const override { return size_; }

  Result<Batches> Batch(std::span<const int64_t> indices) const override {
    RETURN_IF_ERROR(CheckIndices(indices, size_));
    const Shape shape{static_cast<int64_t>(indices.size()), windows_.length};
    ASSIGN_OR_RETURN(Tensor input, Tensor::Allocate(DType::kInt64, shape));
    ASSIGN_OR_RETURN(Tensor target, Tensor::Allocate(DType::kInt64, shape));
    for (size_t i = 0; i < indices.size(); ++i) {
      const uint8_t* window = corpus_->tokens().data() + first_ + indices[i] * windows_.stride;
      const int64_t at = static_cast<int64_t>(i) * windows_.length;
      std::copy_n(window, windows_.length, input.data<int64_t>() + at);
      std::copy_n(window + 1, windows_.length, target.data<int64_t>() + at);
    }
    return Batches{{windows_.input_name, std::move(input)},
                   {windows_.target_name, std::move(target)}};
  }

 private:
  std::shared_ptr<const TextCorpus> corpus_;
  TextWindows windows_;
  int64_t first_, size_;
};

class SubsetDataset : public Dataset {
 public:
  SubsetDataset(std::shared_ptr<const Dataset> dataset, std::vector<int64_t> chosen)
      : dataset_(std::move(dataset)), chosen_(std::move(chosen)) {}
  int64_t size() const override { return static_cast<int64_t>(chosen_.size()); }

  Result<Batches> Batch(std::span<const int64_t> indices) const override {
    RETURN_IF_ERROR(CheckIndices(indices, size()));
    std::vector<int64_t> theirs;
    for (const int64_t i : indices) theirs.push_back(chosen_[static_cast<size_t>(i)]);
    return dataset_->Batch(theirs);
  }

 private:
  std::shared_ptr<const Dataset> dataset_;
  std::vector<int64_t> chosen_;
};

}  // namespace

Result<std::shared_ptr<const Dataset>> MakeArrayDataset(Batches arrays) {
  int64_t size = 0;
  std::string lengths;
  bool fits = !arrays.empty();
  for (const auto& [name, array] : arrays) {
    assert(array.device().is_host());
    lengths += (lengths.empty() ? "" : ", ") + name + " " + array.shape().ToString();
    if (array.shape().rank() == 0) {
      fits = false;
      continue;
    }
    if (name == arrays.begin()->first) size = array.shape()[0];
    fits = fits && array.shape()[0] == size;
  }
  if (!fits)
    return InvalidArgument("arrays of one length along their first axis are needed, got: " +
                           lengths);
  return std::shared_ptr<const Dataset>(std::make_shared<ArrayDataset>(std::move(arrays), size));
}

TextCorpus::TextCorpus(const std::string& text) {
  std::fill(std::begin(number_of_), std::end(number_of_), -1);
  for (const char c : text) number_of_[static_cast<uint8_t>(c)] = 0;
  for (int byte = 0; byte < 256; ++byte) {
    if (number_of_[byte] < 0) continue;
    number_of_[byte] = static_cast<int>(vocabulary_.size());
    vocabulary_.push_back(static_cast<char>(byte));
  }
  tokens_.reserve(text.size());
  for (const char c : text)
    tokens_.push_back(static_cast<uint8_t>(number_of_[static_cast<uint8_t>(c)]));
}

Result<std::vector<int64_t>> TextCorpus::Encode(const std::string& text) const {
  std::vector<int64_t> out;
  for (const char c : text) {
    const int number = number_of_[static_cast<uint8_t>(c)];
    if (number < 0) return InvalidArgument(std::string("the vocabulary has no '") + c + "'");
    out.push_back(number);
  }
  return out;
}

std::string TextCorpus::Decode(std::span<const int64_t> numbers) const {
  std::string out;
  for (const int64_t number : numbers) {
    assert(0 <= number && number < static_cast<int64_t>(vocabulary_.size()));
    out.push_back(vocabulary_[static_cast<size_t>(number)]);
  }
  return out;
}

Result<std::shared_ptr<const Dataset>> MakeTextDataset(std::shared_ptr<const TextCorpus> corpus,
                                                       const TextWindows& windows) {
  TextWindows w = windows;
  if (w.stride == 0) w.stride = w.length;
  if (w.length < 1 || w.stride < 1 || !(w.begin >= 0 && w.begin < w.end && w.end <= 1)) {
    return InvalidArgument(
        "windows of a text need a positive length and stride, and a part of the text");
  }
  const auto characters = static_cast<double>(corpus->tokens().size());
  const auto first = static_cast<int64_t>(w.begin * characters),
             last = static_cast<int64_t>(w.end * characters);
  if (last - first <= w.length) {
    return InvalidArgument("a text of " + std::to_string(last - first) +
                           " characters is too short for windows of " + std::to_string(w.length) +
                           " and the character after it");
  }
  const int64_t size = (last - first - w.length - 1) / w.stride + 1;
  return std::shared_ptr<const Dataset>(
      std::make_shared<TextDataset>(std::move(corpus), std::move(w), first, size));
}

Result<std::shared_ptr<const Dataset>> Subset(std::shared_ptr<const Dataset> dataset,
                                              std::vector<int64_t> indices) {
  RETURN_IF_ERROR(CheckIndices(indices, dataset->size()));
  return std::shared_ptr<const Dataset>(
      std::make_shared<SubsetDataset>(std::move(dataset), std::move(indices)));
}

}  // namespace caesura
