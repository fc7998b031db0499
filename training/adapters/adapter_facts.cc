// SPDX-License-Identifier: Apache-2.0
#include "training/adapters/adapter_facts.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

using Json = nlohmann::json;

// The entry of the model's metadata: a JSON object.
constexpr char kKey[] = "ai.caesura.lora";

}  // namespace

Status CheckRank(int64_t rank, double alpha) {
  if (rank < 1) return InvalidArgument("rank: expected at least 1, got " + std::to_string(rank));
  if (!std::isfinite(alpha))
    return InvalidArgument("alpha: expected a finite number, got " + std::to_string(alpha));
  return {};
}

bool HasAdapter(const Model& model) { return model.metadata.count(kKey) > 0; }

Result<AdapterFacts> ReadAdapterFacts(const Model& model) try {
  const auto found = model.metadata.find(kKey);
  if (found == model.metadata.end()) return InvalidArgument("the model has no adapter");
  const Json json = Json::parse(found->second);
  AdapterFacts facts;
  json.at("rank").get_to(facts.rank);
  json.at("alpha").get_to(facts.alpha);
  json.at("layers").get_to(facts.layers);
  json.at("frozen").get_to(facts.frozen);
  RETURN_IF_ERROR(CheckRank(facts.rank, facts.alpha));
  return facts;
} catch (const Json::exception& error) {
  return InvalidModel("metadata '" + std::string(kKey) + "': " + error.what());
}

void WriteAdapterFacts(const AdapterFacts& facts, Model* model) {
  const Json json = {{"rank", facts.rank},
                     {"alpha", facts.alpha},
                     {"layers", facts.layers},
                     {"frozen", facts.frozen}};
  model->metadata[kKey] = json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void RemoveAdapterFacts(Model* model) { model->metadata.erase(kKey); }

}  // namespace caesura
