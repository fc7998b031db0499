// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/model_mutator.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <limits>
#include <memory>
#include <vector>

#include "core/graph/op_schema.h"
#include "tests/fuzz/target.h"

namespace caesura::fuzz {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using MessagePtr = std::unique_ptr<Message>;

// The library keeps onnx's classes to itself; their descriptions are known to protobuf.
MessagePtr Parse(const uint8_t* data, size_t size) {
  static const Descriptor* const kType =
      google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName("onnx.ModelProto");
  if (kType == nullptr) std::abort();
  MessagePtr model(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(kType)->New());
  return model->ParseFromArray(data, static_cast<int>(size)) ? std::move(model) : nullptr;
}

// Where the model fits; otherwise 0.
size_t Write(const Message& model, uint8_t* out, size_t max_size) {
  const size_t size = model.ByteSizeLong();
  if (size == 0 || size > max_size || !model.SerializePartialToArray(out, static_cast<int>(size)))
    return 0;
  return size;
}

class Mutation {
 public:
  explicit Mutation(unsigned seed) : random_(seed) {}

  void Change(Message* model) {
    Collect(model);
    Message* message = messages_[random_.Below(messages_.size())];
    if (message->GetDescriptor()->name() == "TensorProto" && random_.Below(2))
      return Resize(message);
    const Reflection& reflection = *message->GetReflection();
    std::vector<const FieldDescriptor*> set;
    reflection.ListFields(*message, &set);
    const Descriptor& type = *message->GetDescriptor();
    if (type.field_count() == 0) return;
    const bool any = set.empty() || random_.Below(8) == 0;
    const FieldDescriptor* field =
        any ? type.field(static_cast<int>(random_.Below(type.field_count())))
            : set[random_.Below(set.size())];
    if (field->is_repeated()) ChangeRepeated(message, field);
    else ChangeSingle(message, field);
  }

  // Takes the place of a message of `model`'s, or stands beside it: one of `other`'s of the same
  // type.
  void Cross(Message* model, Message* other) {
    Collect(other);
    const std::vector<Message*> theirs = messages_;
    Collect(model);
    for (int tries = 0; tries < 20; ++tries) {
      Message* to = messages_[random_.Below(messages_.size())];
      const Message* from = theirs[random_.Below(theirs.size())];
      if (to == model || to->GetDescriptor() != from->GetDescriptor()) continue;
      if (random_.Below(2)) to->MergeFrom(*from);
      else to->CopyFrom(*from);
      return;
    }
  }

 private:
  void Collect(Message* model) {
    messages_.clear();
    texts_.clear();
    Visit(model);
  }

  void Visit(Message* message) {
    messages_.push_back(message);
    const Reflection& reflection = *message->GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(*message, &fields);
    for (const FieldDescriptor* field : fields) {
      const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
      const int count = field->is_repeated() ? reflection.FieldSize(*message, field) : 1;
      for (int i = 0; i < count; ++i) {
        if (is_message) {
          Visit(field->is_repeated() ? reflection.MutableRepeatedMessage(message, field, i)
                                     : reflection.MutableMessage(message, field));
        } else if (field->type() == FieldDescriptor::TYPE_STRING) {
          texts_.push_back(field->is_repeated() ? reflection.GetRepeatedString(*message, field, i)
                                                : reflection.GetString(*message, field));
        }
      }
    }
  }

  int64_t Int(int64_t before) {
    switch (random_.Below(4)) {
      case 0: return before + (random_.Below(2) ? 1 : -1) * (before > -100 && before < 100);
      case 1: return static_cast<int64_t>(random_.Below(12)) - 2;
      case 2: return -std::max(before, -std::numeric_limits<int64_t>::max());
      default: return kExtremes[random_.Below(std::size(kExtremes))];
    }
  }

  double Real() {
    static constexpr double kReals[] = {0.0,
                                        -0.0,
                                        1.0,
                                        -1.0,
                                        0.5,
                                        1e-45,
                                        3e38,
                                        -3e38,
                                        1e19,
                                        -1e19,
                                        2147483648.0,
                                        std::numeric_limits<double>::infinity(),
                                        std::numeric_limits<double>::quiet_NaN()};
    return kReals[random_.Below(std::size(kReals))];
  }

  std::string Text(const FieldDescriptor& field, std::string before) {
    static const std::vector<const OpSchema*> kOps = AllOpSchemas();
    if (field.name() == "op_type" && random_.Below(4) != 0)
      return kOps[random_.Below(kOps.size())]->op_type;
    if (field.type() == FieldDescriptor::TYPE_BYTES && before.size() >= 8 && random_.Below(2)) {
      const int64_t value = kExtremes[random_.Below(std::size(kExtremes))];
      const size_t width = size_t{1} << random_.Below(4);
      std::memcpy(before.data() + random_.Below(before.size() / width) * width, &value, width);
      return before;
    }
    if (field.type() == FieldDescriptor::TYPE_STRING && !texts_.empty() && random_.Below(4) != 0) {
      return texts_[random_.Below(texts_.size())];
    }
    const size_t size = before.size(), room = size + 16;
    before.resize(room);
    before.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(before.data()), size, room));
    return before;
  }

  // A tensor of other dims, with as many bytes as these need.
  void Resize(Message* tensor) {
    const Reflection& reflection = *tensor->GetReflection();
    const Descriptor& type = *tensor->GetDescriptor();
    const FieldDescriptor* dims = type.FindFieldByName("dims");
    const FieldDescriptor* raw = type.FindFieldByName("raw_data");
    const FieldDescriptor* kind = type.FindFieldByName("data_type");
    static constexpr size_t kSizes[] = {0, 4, 1, 1, 2,  2, 4, 8, 0, 1, 2,
                                        8, 4, 8, 8, 16, 2, 1, 1, 1, 1};
    int32_t data_type = reflection.GetInt32(*tensor, kind);
    if (random_.Below(4) == 0) data_type = static_cast<int32_t>(random_.Below(std::size(kSizes)));
    const size_t element = data_type >= 0 && data_type < static_cast<int32_t>(std::size(kSizes))
                               ? kSizes[data_type]
                               : 0;
    if (element == 0) return;
    std::string bytes = reflection.GetString(*tensor, raw);
    for (const char* values :
         {"float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data"}) {
      reflection.ClearField(tensor, type.FindFieldByName(values));
    }
    reflection.ClearField(tensor, dims);
    size_t elements = 1;
    for (size_t rank = random_.Below(5); rank > 0; --rank) {
      const size_t dim = random_.Below(elements > 64 ? 2 : 6);
      elements *= dim;
      reflection.AddInt64(tensor, dims, static_cast<int64_t>(dim));
    }
    const size_t before = bytes.size();
    bytes.resize(elements * element);
    for (size_t i = before; i < bytes.size() && before > 0; ++i) bytes[i] = bytes[i - before];
    reflection.SetString(tensor, raw, bytes);
    reflection.SetInt32(tensor, kind, data_type);
  }

  void ChangeRepeated(Message* message, const FieldDescriptor* field) {
    const Reflection& reflection = *message->GetReflection();
    const int count = reflection.FieldSize(*message, field);
    const int i = count == 0 ? 0 : static_cast<int>(random_.Below(count));
    const int j = count == 0 ? 0 : static_cast<int>(random_.Below(count));
    switch (count == 0 ? 0 : random_.Below(6)) {
      case 0: return Add(message, field, count == 0 ? -1 : i);
      case 1:
        reflection.SwapElements(message, field, i, count - 1);
        return reflection.RemoveLast(message, field);
      case 2: return reflection.SwapElements(message, field, i, j);
      default: return Set(message, field, i);
    }
  }

  // Appends a copy of element `like`, or something new where it is -1.
  void Add(Message* message, const FieldDescriptor* field, int like) {
    const Reflection& r = *message->GetReflection();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE: {
        const MessagePtr copy(like < 0 ? nullptr
                                       : r.GetRepeatedMessage(*message, field, like).New());
        if (copy != nullptr) copy->CopyFrom(r.GetRepeatedMessage(*message, field, like));
        Message* added = r.AddMessage(message, field);
        if (copy != nullptr) added->CopyFrom(*copy);
        return;
      }
      case FieldDescriptor::CPPTYPE_INT32:
        return r.AddInt32(message, field, static_cast<int32_t>(Int(1)));
      case FieldDescriptor::CPPTYPE_INT64: return r.AddInt64(message, field, Int(1));
      case FieldDescriptor::CPPTYPE_UINT32:
        return r.AddUInt32(message, field, static_cast<uint32_t>(Int(1)));
      case FieldDescriptor::CPPTYPE_UINT64:
        return r.AddUInt64(message, field, static_cast<uint64_t>(Int(1)));
      case FieldDescriptor::CPPTYPE_FLOAT:
        return r.AddFloat(message, field, static_cast<float>(Real()));
      case FieldDescriptor::CPPTYPE_DOUBLE: return r.AddDouble(message, field, Real());
      case FieldDescriptor::CPPTYPE_STRING: return r.AddString(message, field, Text(*field, ""));
      default: return;
    }
  }

  void Set(Message* message, const FieldDescriptor* field, int i) {
    const Reflection& r = *message->GetReflection();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return r.SetRepeatedInt32(
            message, field, i, static_cast<int32_t>(Int(r.GetRepeatedInt32(*message, field, i))));
      case FieldDescriptor::CPPTYPE_INT64:
        return r.SetRepeatedInt64(message, field, i, Int(r.GetRepeatedInt64(*message, field, i)));
      case FieldDescriptor::CPPTYPE_UINT64:
        return r.SetRepeatedUInt64(message, field, i, static_cast<uint64_t>(Int(1)));
      case FieldDescriptor::CPPTYPE_FLOAT:
        return r.SetRepeatedFloat(message, field, i, static_cast<float>(Real()));
      case FieldDescriptor::CPPTYPE_DOUBLE: return r.SetRepeatedDouble(message, field, i, Real());
      case FieldDescriptor::CPPTYPE_STRING:
        return r.SetRepeatedString(message, field, i,
                                   Text(*field, r.GetRepeatedString(*message, field, i)));
      default: return;  // messages are chosen by themselves
    }
  }

  void ChangeSingle(Message* message, const FieldDescriptor* field) {
    const Reflection& r = *message->GetReflection();
    if (random_.Below(12) == 0) return r.ClearField(message, field);
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE: r.MutableMessage(message, field); return;
      case FieldDescriptor::CPPTYPE_INT32:
        return r.SetInt32(message, field, static_cast<int32_t>(Int(r.GetInt32(*message, field))));
      case FieldDescriptor::CPPTYPE_INT64:
        return r.SetInt64(message, field, Int(r.GetInt64(*message, field)));
      case FieldDescriptor::CPPTYPE_UINT32:
        return r.SetUInt32(message, field, static_cast<uint32_t>(Int(1)));
      case FieldDescriptor::CPPTYPE_UINT64:
        return r.SetUInt64(message, field, static_cast<uint64_t>(Int(1)));
      case FieldDescriptor::CPPTYPE_FLOAT:
        return r.SetFloat(message, field, static_cast<float>(Real()));
      case FieldDescriptor::CPPTYPE_DOUBLE: return r.SetDouble(message, field, Real());
      case FieldDescriptor::CPPTYPE_BOOL: return r.SetBool(message, field, random_.Below(2) == 0);
      case FieldDescriptor::CPPTYPE_ENUM:
        return r.SetEnumValue(message, field, static_cast<int>(random_.Below(20)));
      case FieldDescriptor::CPPTYPE_STRING:
        return r.SetString(message, field, Text(*field, r.GetString(*message, field)));
    }
  }

  Random random_;
  std::vector<Message*> messages_;
  std::vector<std::string> texts_;
};

}  // namespace

size_t MutateModel(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  const MessagePtr model = Parse(data, size);
  if (model == nullptr || seed % 32 == 0) return LLVMFuzzerMutate(data, size, max_size);
  Mutation mutation(seed);
  for (unsigned times = 1 + seed / 32 % 3; times > 0; --times) mutation.Change(model.get());
  const size_t written = Write(*model, data, max_size);
  return written > 0 ? written : LLVMFuzzerMutate(data, size, max_size);
}

size_t CrossModels(const uint8_t* data, size_t size, const uint8_t* other, size_t other_size,
                   uint8_t* out, size_t max_size, unsigned seed) {
  const MessagePtr model = Parse(data, size), second = Parse(other, other_size);
  if (model == nullptr || second == nullptr) return 0;
  Mutation(seed).Cross(model.get(), second.get());
  return Write(*model, out, max_size);
}

}  // namespace caesura::fuzz
