// SPDX-License-Identifier: Apache-2.0
// The format is that of NumPy's documentation, "numpy.lib.format".
#include "core/files/npy.h"

#include <algorithm>
#include <cassert>
#include <charconv>
#include <cstring>
#include <optional>
#include <vector>

#include "core/base/status_macros.h"
#include "core/base/utf8.h"
#include "core/files/file_system.h"
#include "core/files/zip_archive.h"

namespace caesura {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kMaxHeaderBytes = 1 << 20;
constexpr char kSuffix[] = ".npy";

struct NpyDType {
  const char* code;
  DType dtype;
  int swapped_bytes;  // the unit that byte order is about
};
constexpr NpyDType kNpyDTypes[] = {
    {"b1", DType::kBool, 1},      {"i1", DType::kInt8, 1},       {"i2", DType::kInt16, 2},
    {"i4", DType::kInt32, 4},     {"i8", DType::kInt64, 8},      {"u1", DType::kUInt8, 1},
    {"u2", DType::kUInt16, 2},    {"u4", DType::kUInt32, 4},     {"u8", DType::kUInt64, 8},
    {"f2", DType::kFloat16, 2},   {"f4", DType::kFloat32, 4},    {"f8", DType::kFloat64, 8},
    {"c8", DType::kComplex64, 4}, {"c16", DType::kComplex128, 8}};

// The header: a Python dict of three entries, as numpy writes it (repr of str, bool and tuple of
// int).
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  Status Parse() {
    if (!Consume('{')) return Wrong();
    while (!Consume('}')) {
      const std::optional<std::string> key = Quoted();
      if (!key || !Consume(':') || !ParseValue(*key)) return Wrong();
      if (!Consume(',') && Peek() != '}') return Wrong();
    }
    return Peek() == '\0' && text_.empty() && descr && fortran_order && dims ? Status() : Wrong();
  }

  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> dims;

 private:
  Status Wrong() const {
    return InvalidModel("its header cannot be read at '" + std::string(text_.substr(0, 40)) + "'");
  }
  char Peek() {
    const size_t at = text_.find_first_not_of(" \n\t");
    text_.remove_prefix(std::min(at, text_.size()));
    return text_.empty() ? '\0' : text_[0];
  }
  bool Consume(char c) {
    if (Peek() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  bool ConsumeWord(std::string_view word) {
    Peek();
    if (text_.substr(0, word.size()) != word) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  std::optional<std::string> Quoted() {
    const char quote = Peek();
    const size_t end =
        quote == '\'' || quote == '"' ? text_.find(quote, 1) : std::string_view::npos;
    if (end == std::string_view::npos) return std::nullopt;
    std::string out(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    return out;
  }
  bool ParseValue(const std::string& key) {
    if (key == "descr" && !descr) {
      if (Peek() != '[') return (descr = Quoted()).has_value();
      descr = "structured";  // refused by name later; the rest of the header does not matter
      return false;
    }
    if (key == "fortran_order" && !fortran_order) {
      if (ConsumeWord("True")) fortran_order = true;
      else if (ConsumeWord("False")) fortran_order = false;
      return fortran_order.has_value();
    }
    return key == "shape" && !dims && ParseDims();
  }
  bool ParseDims() {
    if (!Consume('(')) return false;
    dims.emplace();
    while (!Consume(')')) {
      Peek();
      int64_t dim = 0;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), dim);
      if (error != std::errc()) return false;
      dims->push_back(dim);
      text_.remove_prefix(static_cast<size_t>(end - text_.data()));
      if (!Consume(',') && Peek() != ')') return false;
    }
    return true;
  }

  std::string_view text_;
};

void SwapBytes(char* data, size_t size, int unit) {
  for (size_t at = 0; at + unit <= size; at += unit) std::reverse(data + at, data + at + unit);
}

// Elements of `width` code points of 32 bits, or of `width` bytes, filled up with NULs.
Status DecodeStrings(std::string data, size_t width, bool wide, bool swap, Tensor& out) {
  if (swap && wide) SwapBytes(data.data(), data.size(), 4);
  auto* strings = out.data<std::string>();
  for (int64_t i = 0; i < out.elements(); ++i) {
    const char* element = data.data() + static_cast<size_t>(i) * width * (wide ? 4 : 1);
    if (!wide) {
      strings[i].assign(element, width);
      strings[i].resize(strings[i].find_last_not_of('\0') + 1);
      continue;
    }
    size_t length = width;
    std::vector<uint32_t> codes(width);
    std::memcpy(codes.data(), element, 4 * width);
    while (length > 0 && codes[length - 1] == 0) --length;
    for (size_t k = 0; k < length; ++k) {
      if (codes[k] > kLastCodePoint)
        return InvalidModel("a text holds code point " + std::to_string(codes[k]));
      AppendUtf8(codes[k], &strings[i]);
    }
  }
  return {};
}

// From Fortran's order of elements (the first axis fastest) to ours.
Result<Tensor> FromFortranOrder(const Tensor& in) {
  const Shape& shape = in.shape();
  ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(in.dtype(), shape));
  std::vector<int64_t> strides(shape.rank(), 1), index(shape.rank(), 0);
  for (int d = 1; d < shape.rank(); ++d) strides[d] = strides[d - 1] * shape[d - 1];
  DispatchStorage(in.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    int64_t from = 0;
    for (int64_t to = 0; to < out.elements(); ++to) {
      out.data<T>()[to] = in.data<T>()[from];
      for (int d = shape.rank() - 1; d >= 0; --d) {
        from += strides[d];
        if (++index[d] < shape[d]) break;
        from -= index[d] * strides[d];
        index[d] = 0;
      }
    }
  });
  return out;
}

Status CheckStored(const std::vector<int64_t>& dims, DType dtype, size_t element_bytes,
                   size_t stored) {
  Result<Shape> shape = CheckedShape(dims, dtype);
  if (!shape.ok()) return InvalidModel(shape.status().message());
  size_t bytes = 0;
  if (!__builtin_mul_overflow(static_cast<size_t>(shape->elements()), element_bytes, &bytes) &&
      bytes == stored)
    return {};
  return InvalidModel("shape " + shape->ToString() + " does not fit the " + std::to_string(stored) +
                      " bytes stored");
}

// "<U12" or "|S12"
Result<Tensor> ParseText(const HeaderParser& header, std::string_view data) {
  const std::string& descr = *header.descr;
  const bool wide = descr[1] == 'U';
  size_t width = 0;
  const auto [end, error] = std::from_chars(descr.data() + 2, descr.data() + descr.size(), width);
  if (error != std::errc() || end != descr.data() + descr.size() || width == 0 ||
      width > (size_t{1} << 32)) {
    return InvalidModel("its dtype '" + descr + "' cannot be read");
  }
  RETURN_IF_ERROR(CheckStored(*header.dims, DType::kString, width * (wide ? 4 : 1), data.size()));
  ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(DType::kString, Shape(*header.dims)));
  RETURN_IF_ERROR(DecodeStrings(std::string(data), width, wide, descr[0] == '>', out));
  return out;
}

Result<Tensor> ParseNumbers(const HeaderParser& header, std::string_view data) {
  const std::string& descr = *header.descr;
  const auto* known =
      std::find_if(std::begin(kNpyDTypes), std::end(kNpyDTypes),
                   [&](const NpyDType& entry) { return descr.substr(1) == entry.code; });
  if (known == std::end(kNpyDTypes)) return Unsupported("dtype '" + descr + "' is not supported");
  RETURN_IF_ERROR(CheckStored(*header.dims, known->dtype, DTypeSize(known->dtype), data.size()));
  ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(known->dtype, Shape(*header.dims)));
  auto* bytes = static_cast<char*>(out.raw());
  if (!data.empty()) std::memcpy(bytes, data.data(), data.size());
  if (descr[0] == '>') SwapBytes(bytes, data.size(), known->swapped_bytes);
  if (known->dtype == DType::kBool)
    std::transform(bytes, bytes + data.size(), bytes, [](char b) { return b != 0; });
  return out;
}

bool EndsWith(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

Result<Tensor> TensorFromNpy(std::string_view bytes) {
  if (bytes.substr(0, kMagic.size()) != kMagic || bytes.size() < 12)
    return InvalidModel("is no .npy file");
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])); };
  const uint32_t version = byte(6);
  if (version < 1 || version > 3)
    return Unsupported("format version " + std::to_string(version) + " is not known");
  const size_t begin = version == 1 ? 10 : 12;
  const size_t length =
      byte(8) | byte(9) << 8 | (version == 1 ? 0 : byte(10) << 16 | byte(11) << 24);
  if (length > kMaxHeaderBytes || length > bytes.size() - begin)
    return InvalidModel("its header is incomplete");
  HeaderParser header(bytes.substr(begin, length));
  const Status parsed = header.Parse();
  if (header.descr &&
      (*header.descr == "structured" || header.descr->find('O') != std::string::npos)) {
    return Unsupported("holds Python objects or records, not numbers; only plain arrays are read");
  }
  RETURN_IF_ERROR(parsed);
  if (header.descr->size() < 3 || std::strchr("<>|", (*header.descr)[0]) == nullptr) {
    return InvalidModel("its dtype '" + *header.descr + "' cannot be read");
  }
  const bool is_text = (*header.descr)[1] == 'U' || (*header.descr)[1] == 'S';
  const std::string_view data = bytes.substr(begin + length);
  ASSIGN_OR_RETURN(Tensor out, is_text ? ParseText(header, data) : ParseNumbers(header, data));
  if (*header.fortran_order && out.shape().rank() > 1) return FromFortranOrder(out);
  return out;
}

Result<std::string> TensorToNpy(const Tensor& tensor) {
  assert(tensor.device().is_host());
  const auto* known =
      std::find_if(std::begin(kNpyDTypes), std::end(kNpyDTypes),
                   [&](const NpyDType& entry) { return entry.dtype == tensor.dtype(); });
  if (known == std::end(kNpyDTypes))
    return Unsupported(std::string("NumPy's files have no ") + DTypeName(tensor.dtype()));
  std::string dims;
  for (int64_t dim : tensor.shape()) dims += std::to_string(dim) + ", ";
  if (tensor.shape().rank() > 1) dims.resize(dims.size() - 2);
  else if (tensor.shape().rank() == 1) dims.resize(dims.size() - 1);  // "(3,)"
  std::string header = std::string("{'descr': '") + (known->swapped_bytes == 1 ? '|' : '<') +
                       known->code + "', 'fortran_order': False, 'shape': (" + dims + "), }";
  const size_t before = kMagic.size() + 4;
  header.resize((before + header.size() + 1 + 63) / 64 * 64 - before - 1, ' ');
  header += '\n';
  if (header.size() > 0xffff) return Unsupported("a shape of so many dims cannot be written");
  std::string out(kMagic);
  out += {1, 0, static_cast<char>(header.size()), static_cast<char>(header.size() >> 8)};
  out += header;
  out.append(static_cast<const char*>(tensor.raw()), tensor.bytes());
  return out;
}

Result<std::map<std::string, Tensor>> ReadNpz(const std::string& path,
                                              const NpzReadOptions& options, FileSystem& files) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, files.Open(path));
  const std::string named = "'" + path + "': ";
  Result<ZipReader> archive = ZipReader::Open(*file);
  if (!archive.ok()) return archive.status().WithPrefix(named);
  std::map<std::string, Tensor> out;
  size_t left = options.max_bytes;
  for (const ZipReader::Member& member : archive->members()) {
    if (!EndsWith(member.name, kSuffix)) continue;
    const std::string name = member.name.substr(0, member.name.size() - (sizeof(kSuffix) - 1));
    if (member.size > left)
      return InvalidModel(named + "more than " + std::to_string(options.max_bytes) + " bytes");
    left -= static_cast<size_t>(member.size);
    Result<std::string> bytes = archive->Read(member);
    if (!bytes.ok()) return bytes.status().WithPrefix(named);
    Result<Tensor> tensor = TensorFromNpy(*bytes);
    if (!tensor.ok()) return tensor.status().WithPrefix(named + "array '" + name + "': ");
    if (!out.emplace(name, *std::move(tensor)).second)
      return InvalidModel(named + "two arrays are named '" + name + "'");
  }
  return out;
}

Status WriteNpz(const std::string& path, const std::map<std::string, Tensor>& arrays, bool compress,
                FileSystem& files) {
  return WriteFileAtomically(files, path, [&](WritableFile& file) -> Status {
    ZipWriter archive(file);
    for (const auto& [name, tensor] : arrays) {
      Result<std::string> bytes = TensorToNpy(tensor);
      if (!bytes.ok()) return bytes.status().WithPrefix("array '" + name + "': ");
      RETURN_IF_ERROR(archive.Add(name + kSuffix, *bytes, compress));
    }
    return archive.Finish();
  });
}

}  // namespace caesura
