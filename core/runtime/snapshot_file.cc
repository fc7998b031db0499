// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/snapshot_file.h"

#include <cassert>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/base/status_macros.h"
#include "core/base/utf8.h"

namespace caesura {
namespace {

using Json = nlohmann::json;

constexpr int64_t kFormatVersion = 1;
constexpr char kManifestKey[] = "caesura.snapshot";
constexpr char kTensorPrefix[] = "state/";
constexpr int kMaxDepth = 16;  // of sequences in sequences

// --- writing ---

class Writer {
 public:
  explicit Writer(TensorFile* contents) : contents_(contents) {}

  Result<Json> Value(const RuntimeValue& value) {
    if (value.is_tensor()) return TensorOf(value.tensor());
    if (value.is_sequence()) {
      Json elements = Json::array();
      for (const RuntimeValue& element : value.sequence()) {
        ASSIGN_OR_RETURN(Json json, Value(element));
        elements.push_back(std::move(json));
      }
      return Json{{"sequence", std::move(elements)}};
    }
    if (value.is_map()) {
      ASSIGN_OR_RETURN(Json keys, TensorOf(value.map().keys));
      ASSIGN_OR_RETURN(Json values, TensorOf(value.map().values));
      return Json{{"keys", std::move(keys)}, {"values", std::move(values)}};
    }
    return Json();
  }

  Result<Json> TensorOf(const Tensor& tensor) {
    const Json shape(tensor.shape().dims());
    if (tensor.dtype() != DType::kString) return Json{{"tensor", Store(tensor)}, {"shape", shape}};
    Json strings = Json::array();
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      const std::string& text = tensor.data<std::string>()[i];
      if (!IsUtf8(text)) return Unsupported("a snapshot takes strings in UTF-8 only");
      strings.push_back(text);
    }
    return Json{{"strings", std::move(strings)}, {"shape", shape}};
  }

 private:
  // Values that are views of the same bytes are stored once.
  std::string Store(const Tensor& tensor) {
    const auto key = std::make_tuple(tensor.raw(), tensor.bytes(), tensor.dtype());
    const auto [it, fresh] = stored_.try_emplace(key);
    if (fresh || tensor.bytes() == 0) {
      it->second = kTensorPrefix + std::to_string(count_++);
      contents_->tensors[it->second] = tensor;
    }
    return it->second;
  }

  TensorFile* contents_;
  std::map<std::tuple<const void*, size_t, DType>, std::string> stored_;
  int count_ = 0;
};

Result<Json> SpecJson(const FeedSpec& spec, Writer* writer) {
  if (!spec.is_tensor) return Json{{"tensor", false}};
  Json json{{"tensor", true}, {"dtype", DTypeName(spec.dtype)}, {"shape", spec.shape.dims()}};
  if (spec.value.defined()) {
    ASSIGN_OR_RETURN(json["value"], writer->TensorOf(spec.value));
  }
  return json;
}

// --- reading ---

// Gives the fields of a manifest; the first one that is wrong ends up in status(), and from then on
// all are empty.
class Reader {
 public:
  explicit Reader(TensorFile* contents) : contents_(contents) {}

  const Status& status() const { return status_; }

  const Json& Field(const Json& json, const char* key) {
    static const Json kNothing;
    if (json.is_object() && json.contains(key)) return json[key];
    Fail(std::string("lacks '") + key + "'");
    return kNothing;
  }
  const Json& List(const Json& json, const char* key) {
    const Json& list = Field(json, key);
    if (!list.is_array()) Fail(std::string("'") + key + "' is no list");
    return list;
  }
  std::string String(const Json& json, const char* key) {
    const Json& field = Field(json, key);
    if (field.is_string()) return field.get<std::string>();
    Fail(std::string("'") + key + "' is no text");
    return {};
  }
  bool Bool(const Json& json, const char* key) {
    const Json& field = Field(json, key);
    if (!field.is_boolean()) Fail(std::string("'") + key + "' is neither true nor false");
    return field.is_boolean() && field.get<bool>();
  }
  uint64_t Unsigned(const Json& json, const char* key) {
    const Json& field = Field(json, key);
    if (field.is_number_unsigned()) return field.get<uint64_t>();
    Fail(std::string("'") + key + "' is no number from 0 on");
    return 0;
  }
  int Int(const Json& json, const char* key, int least) {
    const Json& field = Field(json, key);
    const int64_t number = field.is_number_integer() ? field.get<int64_t>() : least - int64_t{1};
    if (number >= least && number <= std::numeric_limits<int>::max())
      return static_cast<int>(number);
    Fail(std::string("'") + key + "' is no number from " + std::to_string(least) + " on");
    return least;
  }
  DType TypeOf(const Json& json, const char* key) {
    const std::string name = String(json, key);
    const DType dtype = DTypeFromName(name);
    if (dtype == DType::kUndefined && name != DTypeName(DType::kUndefined))
      Fail("'" + name + "' is no dtype");
    return dtype;
  }
  Shape ShapeOf(const Json& json) {
    std::vector<int64_t> dims;
    for (const Json& dim : List(json, "shape")) {
      const bool valid = dim.is_number_unsigned() && dim.get<uint64_t>() <= (uint64_t{1} << 62);
      if (!valid) Fail("a shape holds " + dim.dump());
      dims.push_back(valid ? dim.get<int64_t>() : 0);
    }
    auto shape = CheckedShape(std::move(dims), DType::kComplex128);
    if (!shape.ok()) Fail(shape.status().message());
    return shape.ok() ? *std::move(shape) : Shape();
  }
  FeedSpec Spec(const Json& json) {
    FeedSpec spec;
    spec.is_tensor = Bool(json, "tensor");
    if (!spec.is_tensor || !status_.ok()) return spec;
    spec.dtype = TypeOf(json, "dtype");
    spec.shape = ShapeOf(json);
    if (json.contains("value")) spec.value = TensorOf(json["value"]);
    return spec;
  }
  RuntimeValue Value(const Json& json, int depth = 0) {
    if (json.is_null()) return {};
    if (!json.is_object() || depth > kMaxDepth) {
      Fail("a value is no value");
      return {};
    }
    if (json.contains("sequence")) {
      std::vector<RuntimeValue> elements;
      for (const Json& element : List(json, "sequence"))
        elements.push_back(Value(element, depth + 1));
      return RuntimeValue::Sequence(std::move(elements));
    }
    if (json.contains("keys")) {
      Tensor keys = TensorOf(Field(json, "keys")), values = TensorOf(Field(json, "values"));
      const bool fit = (keys.dtype() == DType::kString || keys.dtype() == DType::kInt64) &&
                       keys.shape().rank() == 1 && keys.shape() == values.shape();
      if (!fit) Fail("a map's keys do not fit its values");
      return fit ? RuntimeValue::Map(std::move(keys), std::move(values)) : RuntimeValue();
    }
    return TensorOf(json);
  }
  Tensor TensorOf(const Json& json) {
    const Shape shape = ShapeOf(json);
    if (!status_.ok()) return {};
    if (json.contains("strings")) {
      const Json& strings = List(json, "strings");
      if (static_cast<int64_t>(strings.size()) != shape.elements()) {
        Fail("a tensor of strings has another number of strings than its shape");
        return {};
      }
      auto allocated = Tensor::Allocate(DType::kString, shape);
      if (!allocated.ok()) {
        Fail(allocated.status().message());
        return {};
      }
      Tensor tensor = *std::move(allocated);
      for (size_t i = 0; i < strings.size(); ++i) {
        if (!strings[i].is_string()) Fail("a string is none");
        else tensor.data<std::string>()[i] = strings[i].get<std::string>();
      }
      return tensor;
    }
    const std::string name = String(json, "tensor");
    const auto found = contents_->tensors.find(name);
    if (name.rfind(kTensorPrefix, 0) != 0 || found == contents_->tensors.end()) {
      Fail("there is no tensor '" + name + "'");
      return {};
    }
    if (found->second.elements() != shape.elements()) {
      Fail("tensor '" + name + "' has another number of elements than its value");
      return {};
    }
    return found->second.Reshaped(shape);
  }

 private:
  void Fail(std::string what) {
    if (status_.ok()) status_ = InvalidModel("the snapshot's manifest: " + std::move(what));
  }

  TensorFile* contents_;
  Status status_;
};

Result<StateSnapshot> FromManifest(const Json& json, TensorFile* contents) {
  Reader read(contents);
  StateSnapshot out;
  out.fingerprint = read.Unsigned(json, "fingerprint");
  out.threads = read.Int(json, "threads", 1);
  for (const Json& provider : read.List(json, "providers")) {
    out.providers.push_back(read.String(Json{{"name", provider}}, "name"));
  }
  for (const Json& feed : read.List(json, "feeds")) {
    out.feeds.push_back({read.String(feed, "name"), read.Spec(read.Field(feed, "spec")),
                         read.Value(read.Field(feed, "value"))});
  }
  for (const Json& parameter : read.List(json, "parameters")) {
    out.parameters.push_back({read.String(parameter, "name"), read.TypeOf(parameter, "dtype"),
                              read.ShapeOf(parameter), read.Bool(parameter, "written")});
  }
  for (const Json& step : read.List(json, "remaining"))
    out.remaining.push_back(read.String(Json{{"name", step}}, "name"));
  out.program_counter = read.Int(json, "program_counter", 0);
  out.yield_index = read.Int(json, "yield", -1);
  out.seed = read.Unsigned(json, "seed");
  out.step = read.Unsigned(json, "step");
  out.tag = read.String(json, "tag");
  for (const Json& value : read.List(json, "values")) {
    out.values.push_back({read.String(value, "name"), read.Value(read.Field(value, "value")),
                          read.String(value, "parameter")});
  }
  for (const Json& value : read.List(json, "handed_out"))
    out.handed_out.push_back(read.Value(value));
  for (const Json& spec : read.List(json, "yielded")) out.yielded.push_back(read.Spec(spec));
  RETURN_IF_ERROR(read.status());
  return out;
}

}  // namespace

Status AddSnapshot(const StateSnapshot& snapshot, TensorFile* contents) {
  Writer writer(contents);
  Json feeds = Json::array(), parameters = Json::array(), values = Json::array(),
       handed_out = Json::array(), yielded = Json::array();
  for (const auto& [name, spec, value] : snapshot.feeds) {
    Json feed{{"name", name}};
    ASSIGN_OR_RETURN(feed["spec"], SpecJson(spec, &writer));
    ASSIGN_OR_RETURN(feed["value"], writer.Value(value));
    feeds.push_back(std::move(feed));
  }
  for (const auto& [name, dtype, shape, written] : snapshot.parameters) {
    parameters.push_back({{"name", name},
                          {"dtype", DTypeName(dtype)},
                          {"shape", shape.dims()},
                          {"written", written}});
  }
  for (const auto& [name, value, parameter] : snapshot.values) {
    Json json{{"name", name}, {"parameter", parameter}};
    ASSIGN_OR_RETURN(json["value"], writer.Value(value));
    values.push_back(std::move(json));
  }
  for (const RuntimeValue& value : snapshot.handed_out) {
    ASSIGN_OR_RETURN(Json json, writer.Value(value));
    handed_out.push_back(std::move(json));
  }
  for (const FeedSpec& spec : snapshot.yielded) {
    ASSIGN_OR_RETURN(Json json, SpecJson(spec, &writer));
    yielded.push_back(std::move(json));
  }
  const Json manifest{
      {"format", kFormatVersion},        {"fingerprint", snapshot.fingerprint},
      {"threads", snapshot.threads},     {"providers", snapshot.providers},
      {"feeds", std::move(feeds)},       {"parameters", std::move(parameters)},
      {"remaining", snapshot.remaining}, {"program_counter", snapshot.program_counter},
      {"yield", snapshot.yield_index},   {"seed", snapshot.seed},
      {"step", snapshot.step},           {"tag", EscapedToUtf8(snapshot.tag)},
      {"values", std::move(values)},     {"handed_out", std::move(handed_out)},
      {"yielded", std::move(yielded)}};
  contents->metadata[kManifestKey] = manifest.dump();
  return {};
}

bool HoldsSnapshot(const TensorFile& contents) { return contents.metadata.count(kManifestKey) > 0; }

Result<StateSnapshot> TakeSnapshot(TensorFile* contents) {
  assert(HoldsSnapshot(*contents));
  const Json json = Json::parse(contents->metadata.at(kManifestKey), nullptr,
                                /*allow_exceptions=*/false);
  if (json.is_discarded()) return InvalidModel("the snapshot's manifest is no JSON");
  Reader read(contents);
  const int format = read.Int(json, "format", 1);
  RETURN_IF_ERROR(read.status());
  if (format > kFormatVersion) {
    return Unsupported("the snapshot is of format " + std::to_string(format) +
                       ", written by a newer caesura; this one reads up to format " +
                       std::to_string(kFormatVersion));
  }
  ASSIGN_OR_RETURN(StateSnapshot snapshot, FromManifest(json, contents));
  std::erase_if(contents->tensors,
                [](const auto& entry) { return entry.first.rfind(kTensorPrefix, 0) == 0; });
  contents->metadata.erase(kManifestKey);
  return snapshot;
}

}  // namespace caesura
