// SPDX-License-Identifier: Apache-2.0
// One node of an op that the input names, with attributes, dtypes, dims and values as the input
// says, extreme ones among them: read as a file, planned, run. An input is the op's name, a zero
// byte, and the decisions in the order in which they are taken; after its end all decisions are the
// mild ones.
#include <map>
#include <string>
#include <vector>

#include "core/graph/op_schema.h"
#include "tests/core/onnx/onnx_wire.h"
#include "tests/fuzz/bounded_run.h"
#include "tests/fuzz/target.h"

namespace caesura::fuzz {
namespace {

using testing::Wire;

// AttributeProto's types.
enum Kind : int64_t {
  kReal = 1,
  kInteger = 2,
  kText = 3,
  kTensor = 4,
  kReals = 6,
  kIntegers = 7,
  kTexts = 8
};

// Attributes without a default value whose kind is not a list of integers; schemas do not tell it.
const std::map<std::string, std::vector<const char*>> kKinds = {
    {"f", {"alpha", "beta", "clip", "norm_coefficient", "scale", "seed", "value_float"}},
    {"i",
     {"axis",
      "blocksize",
      "dtype",
      "end",
      "hidden_size",
      "ignore_index",
      "kv_num_heads",
      "max_gram_length",
      "max_skip_count",
      "maxsplit",
      "min_gram_length",
      "n_targets",
      "num_groups",
      "num_heads",
      "num_outputs",
      "num_scan_inputs",
      "q_num_heads",
      "size",
      "softmax_precision",
      "to",
      "value_int"}},
    {"s", {"delimiter", "direction", "equation", "locale", "mode", "pattern", "value_string", "y"}},
    {"t",
     {"base_values_as_tensor", "class_weights_as_tensor", "default_tensor", "keys_tensor",
      "leaf_weights", "membership_values", "nodes_hitrates", "nodes_hitrates_as_tensor",
      "nodes_modes", "nodes_splits", "nodes_values_as_tensor", "target_weights_as_tensor", "value",
      "values_tensor"}},
    {"S",
     {"activations", "cats_strings", "classlabels_strings", "keys_strings", "pool_strings",
      "stopwords", "string_vocabulary", "value_strings", "values_strings", "xs", "zs"}},
    {"F",
     {"activation_alpha", "activation_beta", "base_values", "class_weights", "coefficients",
      "imputed_value_floats", "intercepts", "kernel_params", "keys_floats", "nodes_values",
      "offset", "prob_a", "prob_b", "rho", "support_vectors", "target_weights", "value_floats",
      "values_floats", "weights"}},
    {"g", {"body", "else_branch", "then_branch", "prob_mod", "score_mod", "type", "sparse_value"}}};

char KindOf(const OpSchema::AttributeFact& fact) {
  if (fact.default_value) {
    static constexpr char kByVariant[] = "ifsIFStggggg";
    return kByVariant[fact.default_value->index()];
  }
  for (const auto& [kind, names] : kKinds) {
    for (const char* name : names) {
      if (fact.name == name) return kind[0];
    }
  }
  return 'I';
}

constexpr const char* kTextValues[] = {"SAME_UPPER",
                                       "SAME_LOWER",
                                       "VALID",
                                       "NOTSET",
                                       "linear",
                                       "nearest",
                                       "cubic",
                                       "bilinear",
                                       "reflect",
                                       "edge",
                                       "constant",
                                       "wrap",
                                       "max",
                                       "avg",
                                       "sum",
                                       "mean",
                                       "none",
                                       "add",
                                       "mul",
                                       "min",
                                       "bidirectional",
                                       "reverse",
                                       "forward",
                                       "half_pixel",
                                       "align_corners",
                                       "asymmetric",
                                       "pytorch_half_pixel",
                                       "tf_crop_and_resize",
                                       "half_pixel_symmetric",
                                       "TF",
                                       "IDF",
                                       "TFIDF",
                                       "ij,jk->ik",
                                       "...i,i...->...",
                                       "ii->i",
                                       "DCR",
                                       "CRD",
                                       "LEAF",
                                       "BRANCH_LEQ",
                                       "SOFTMAX",
                                       "LOGISTIC",
                                       "RBF",
                                       "POLY",
                                       "Relu",
                                       "Tanh",
                                       "Sigmoid",
                                       "zeros",
                                       "border",
                                       "reflection",
                                       "floor",
                                       "tanh",
                                       "erf",
                                       "[a-z]+(b|c)*",
                                       "LOWER",
                                       "",
                                       "round_prefer_floor",
                                       "ceil",
                                       "MAX",
                                       "L2",
                                       "gated_delta",
                                       "swish"};

class NodeMaker {
 public:
  explicit NodeMaker(Bytes& input) : in_(input) {}

  // The bytes of the model; empty where the op cannot be made so.
  std::string Make() {
    const OpSchema* op = Op();
    if (op == nullptr) return "";
    Wire node;
    const int low = std::max(op->min_inputs, 0), high = std::min(op->max_inputs, std::max(low, 8));
    const int count = high - in_.Byte() % (high - low + 1);
    for (int i = 0; i < count; ++i) node.Bytes(1, Input(*op->input(i), "x" + std::to_string(i)));
    const int outputs = std::min(op->max_outputs, std::max(op->min_outputs, 1) + in_.Byte() % 3);
    for (int o = 0; o < outputs; ++o) {
      node.Bytes(2, "y" + std::to_string(o));
      graph_.Message(12, Wire().Bytes(1, "y" + std::to_string(o)));
    }
    node.Bytes(4, op->op_type).Bytes(7, op->domain);
    for (const OpSchema::AttributeFact& fact : op->attributes) {
      if (!AddAttribute(fact, &node)) return "";
    }
    graph_.Message(1, node);
    Wire model = testing::ModelWire(graph_, LatestOpset());
    if (!op->domain.empty()) model.Message(8, testing::Opset(LatestOpset(op->domain), op->domain));
    return model.bytes();
  }

 private:
  const OpSchema* Op() {
    static const std::vector<const OpSchema*> kOps = AllOpSchemas();
    const std::string name = in_.Text(40);
    for (const OpSchema* op : kOps) {
      if (op->op_type == name) return op;
    }
    return nullptr;
  }

  // The name that the node reads; values that are known beforehand and feeds are both made.
  std::string Input(const OpSchema::Formal& formal, const std::string& name) {
    const uint8_t how = in_.Byte();
    if (formal.is_optional && how % 4 == 0) return "";
    const auto starts = [&](const char* prefix) {
      return !formal.types.empty() && formal.types[0].rfind(prefix, 0) == 0;
    };
    const std::vector<DType> allowed = Allowed(formal);
    const bool is_sequence = allowed.empty() && starts("seq("),
               is_optional = allowed.empty() && starts("optional(");
    const DType dtype = allowed.empty() ? DType::kFloat32 : ElementType(formal, allowed);
    const Wire tensor = TensorOf(dtype, name);
    if (how < 128 || dtype == DType::kString) graph_.Message(5, tensor);
    else graph_.Message(11, testing::Info(name, static_cast<int>(dtype), dims_));
    if (!is_sequence && !is_optional) return name;
    graph_.Message(1, testing::NodeWire(is_sequence ? "SequenceConstruct" : "Optional", {name},
                                        {name + "_in"}));
    return name + "_in";
  }

  static std::vector<DType> Allowed(const OpSchema::Formal& formal) {
    std::vector<DType> allowed;
    for (int d = 1; d < kDTypeCount; ++d) {
      if (formal.dtypes.Contains(static_cast<DType>(d))) allowed.push_back(static_cast<DType>(d));
    }
    return allowed;
  }

  // Inputs of one type variable have one type.
  DType ElementType(const OpSchema::Formal& formal, const std::vector<DType>& allowed) {
    const DType chosen = allowed[in_.Byte() % allowed.size()];
    return variables_.emplace(formal.type, chosen).first->second;
  }

  // Sets dims_. Few elements, or none with dims of any size.
  Wire TensorOf(DType dtype, const std::string& name) {
    static constexpr int kRanks[] = {2, 4, 3, 1, 0, 5};
    dims_.clear();
    const uint8_t shape = in_.Byte();
    if (shape < 200 || last_dims_.empty()) {
      for (int rank = kRanks[shape % 6]; rank > 0; --rank)
        dims_.push_back(std::max<int64_t>(in_.Int(), 0));
      const bool is_empty = std::find(dims_.begin(), dims_.end(), 0) != dims_.end();
      for (int64_t& dim : dims_) dim = is_empty || dim < 6 ? dim : 2 + dim % 4;
      last_dims_ = dims_;
    }
    dims_ = last_dims_;  // for some: as the tensor before
    int64_t count = std::find(dims_.begin(), dims_.end(), 0) != dims_.end() ? 0 : 1;
    for (int64_t dim : dims_)
      if (count > 0) count *= dim;
    std::vector<int64_t> values(std::clamp<int64_t>(in_.Byte() % 9, 1, 8));
    for (int64_t& value : values) value = in_.Int();
    Wire tensor = testing::TensorHead(name, static_cast<int>(dtype), dims_);
    if (dtype == DType::kString) {
      for (int64_t i = 0; i < count; ++i)
        tensor.Bytes(6, "s" + std::to_string(values[i % values.size()] % 100));
      return tensor;
    }
    const int bits = DTypeFileBits(dtype);
    std::string raw(static_cast<size_t>((count * bits + 7) / 8), '\0');
    for (size_t at = 0, i = 0; at < raw.size(); at += std::max(bits / 8, 1), ++i) {
      Put(dtype, values[i % values.size()], &raw[at],
          std::min<size_t>(std::max(bits / 8, 1), raw.size() - at));
    }
    return tensor.Bytes(9, raw);
  }

  static void Put(DType dtype, int64_t value, char* out, size_t bytes) {
    const float single = Real(value);
    const double wide = single;
    if (dtype == DType::kFloat32) std::memcpy(out, &single, bytes);
    else if (dtype == DType::kFloat64) std::memcpy(out, &wide, bytes);
    else if (dtype == DType::kBool) *out = static_cast<char>(value & 1);
    else std::memcpy(out, &value, std::min<size_t>(bytes, 8));
  }

  static float Real(int64_t value) {
    if (value == std::numeric_limits<int64_t>::max()) return std::numeric_limits<float>::infinity();
    if (value == std::numeric_limits<int64_t>::min())
      return std::numeric_limits<float>::quiet_NaN();
    return static_cast<float>(value) * (value < 100 && value > -100 ? 0.5f : 1.0f);
  }

  std::string Text(const OpSchema::AttributeFact& fact) {
    const uint8_t which = in_.Byte();
    const std::string* usual =
        fact.default_value ? std::get_if<std::string>(&*fact.default_value) : nullptr;
    if (which < 60 && usual != nullptr) return *usual;
    return which < 240 ? kTextValues[which % std::size(kTextValues)] : in_.Text(20);
  }

  bool AddAttribute(const OpSchema::AttributeFact& fact, Wire* node) {
    const char kind = KindOf(fact);
    if (kind == 'g') return !fact.is_required;
    if (!fact.is_required && in_.Byte() % 3 == 0) return true;
    Wire attribute;
    attribute.Bytes(1, fact.name);
    static constexpr int kCounts[] = {2, 1, 4, 3, 0, 5, 6, 2};
    const int count = kCounts[in_.Byte() % 8];
    switch (kind) {
      case 'f': attribute.Float(2, Real(in_.Int())).Int(20, kReal); break;
      case 'i': attribute.Int(3, in_.Int()).Int(20, kInteger); break;
      case 's': attribute.Bytes(4, Text(fact)).Int(20, kText); break;
      case 't':
        attribute.Message(5, TensorOf(static_cast<DType>(1 + in_.Byte() % 20), ""))
            .Int(20, kTensor);
        break;
      case 'F':
        for (int i = 0; i < count; ++i) attribute.Float(7, Real(in_.Int()));
        attribute.Int(20, kReals);
        break;
      case 'S':
        for (int i = 0; i < count; ++i) attribute.Bytes(9, Text(fact));
        attribute.Int(20, kTexts);
        break;
      default:
        for (int i = 0; i < count; ++i) attribute.Int(8, in_.Int());
        attribute.Int(20, kIntegers);
    }
    node->Message(5, attribute);
    return true;
  }

  Bytes& in_;
  Wire graph_ = Wire().Bytes(2, "g");
  std::vector<int64_t> dims_, last_dims_;
  std::map<std::string, DType> variables_;  // by type variable
};

}  // namespace
}  // namespace caesura::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace caesura::fuzz;
  Bytes input(data, size);
  if (const std::string model = NodeMaker(input).Make(); !model.empty()) ReadAndRun(model);
  return 0;
}
