// Every file of configs/ loads, survives a round trip and has the published number of parameters; the reference in
// configs/README.md is the generated one; schema and defaults cover the same keys.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/config/helpers.h"
#include "tests/files.h"

namespace athanor {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Published sizes: the checkpoints of these names, tied heads counted once.
const std::map<std::string, int64_t> kParameters = {
    {"gpt2-124m", 124439808},
    {"gpt2-350m", 354823168},
    {"gpt2-774m", 774030080},
    {"gpt2-1558m", 1557611200},
    {"gpt3-125m", 125226240},
    {"llama-1b", 1235814400},
    {"llama-3b", 3212749824},
    {"llama-8b", 8030261248},
    {"qwen2.5-0.5b", 494032768},
    {"qwen2.5-1.5b", 1543714304},
    {"qwen2.5-7b", 7615616512},
    {"quickstart", 1968512},
    {"moe-small", 10562560},
    {"vit-fashion-mnist", 305034},
    {"mixtral-8x7b", 46702792704},
    {"qwen3-30b-a3b", 30532122624},
    {"moonlight-16b-a3b", 15960108544},
    {"gpt-oss-20b", 20914757184},
    // 12 layers of 12 x 768^2, embedding and head of 32768 x 768, two scalars per layer; the same of 24 layers of 1536
    {"recipes/nanochat-d12", 135266328},
    {"recipes/nanochat-d24", 780140592},
    {"recipes/speedrun-track3-muon", 162354816},
    // without biases: 12 layers, embedding and head of 50304 x 768, and 52 scalars, or three tables more and 42
    {"recipes/speedrun-record-11", 162201652},
    {"recipes/speedrun-record-19", 278102058},
    // 30 layers of 12 x 1792^2, 17 tables of 50304 x 1792, a gate of 14 x 32 in every second layer, and 60 scalars
    {"recipes/slowrun", 2688522876},
    {"recipes/slowrun-muloco", 2688522876},
    {"recipes/mlperf-llama3.1-8b", 8030261248}};

TEST(Shipped, EveryFileIsValidAndOfPublishedSize) {
  size_t seen = 0;
  const std::string readme = read_bytes("configs/README.md");
  for (const auto& entry : fs::recursive_directory_iterator("configs")) {
    if (entry.path().extension() != ".json") continue;
    const std::string name = fs::path(entry.path()).replace_extension().lexically_relative("configs");
    std::vector<std::string> notices;
    const Config c = load_config(entry.path(), {}, &notices);
    EXPECT_TRUE(notices.empty()) << name << ": " << notices[0];
    ASSERT_TRUE(kParameters.contains(name)) << name;
    EXPECT_EQ(parameter_count(c.model), kParameters.at(name)) << name;
    EXPECT_EQ(c.save, "runs/" + name);
    EXPECT_FALSE(c.valid_data.empty());
    EXPECT_NE(readme.find("`" + name + ".json`"), std::string::npos) << name << " is not described";
    ++seen;
  }
  EXPECT_EQ(seen, kParameters.size());
}

TEST(Shipped, ResolvedDumpRoundTrips) {
  for (const auto& [name, size] : kParameters) {
    const Config c = load_config(cat("configs/", name, ".json"));
    const std::string text = dump_resolved(c);
    const Config again = parse(text);
    EXPECT_EQ(dump_resolved(again), text) << name;
    EXPECT_TRUE(resume_changes(text, again).empty()) << name;
  }
}

void expect_generated(const std::string& path, const std::string& reference) {
  const std::string marker = "<!-- Generated from the option tables from here on. -->\n", text = read_bytes(path);
  const size_t at = text.find(marker);
  ASSERT_NE(at, std::string::npos) << path;
  const std::string expected = text.substr(0, at + marker.size()) + reference;
  if (std::getenv("ATHANOR_UPDATE_REFERENCE")) std::ofstream(path) << expected;
  EXPECT_TRUE(text == expected) << path << " is stale: run test_config with ATHANOR_UPDATE_REFERENCE=1 set";
}

TEST(Reference, CommittedFilesMatchGeneratedOnes) {
  expect_generated("configs/README.md", config_reference());
  expect_generated("docs/contributing.md", developer_reference());
}

// The keys of all sections.
json properties_of(const json& schema) {
  json all = json::object();
  for (const json& section : schema["allOf"]) {
    EXPECT_FALSE(section["title"].get<std::string>().empty());
    all.update(section["properties"]);
  }
  return all;
}

TEST(Reference, SchemaAndDefaultsCoverTheSameKeys) {
  const json schema = json::parse(json_schema()), values = json::parse(defaults());
  const json resolved = json::parse(dump_resolved(parse(small_config())));
  const json properties = properties_of(schema);
  EXPECT_EQ(schema["unevaluatedProperties"], false);
  for (const auto& [key, value] : resolved.items()) {
    EXPECT_TRUE(values.contains(key)) << key;
    ASSERT_TRUE(properties.contains(key)) << key;
    EXPECT_FALSE(properties[key]["description"].get<std::string>().empty()) << key;
  }
  EXPECT_EQ(values.size(), resolved.size());
  for (const auto& [key, value] : values["model"].items()) EXPECT_TRUE(resolved["model"].contains(key)) << key;
  EXPECT_TRUE(values["learning_rate"].is_null());
  EXPECT_EQ(values["seed"], 1234);
  EXPECT_EQ(properties["seed"]["minimum"], 0);
  EXPECT_EQ(properties["adam"]["properties"]["beta1"]["exclusiveMaximum"], 1.0);
  EXPECT_EQ(properties["precision"]["enum"].size(), 11u);
  EXPECT_TRUE(properties.contains("lr"));
}

TEST(Reference, DeveloperOptionsAreAcceptedAndKeptButNotListed) {
  const json schema = json::parse(json_schema());
  EXPECT_FALSE(properties_of(schema).contains("loss_chunk_rows"));
  EXPECT_FALSE(json::parse(dump_resolved(parse(small_config()))).contains("loss_chunk_rows"));
  const std::string set = dump_resolved(parse(small_config(), {"loss_chunk_rows=64"}));
  EXPECT_EQ(json::parse(set)["loss_chunk_rows"], 64);
  EXPECT_EQ(parse(set).loss_chunk_rows, 64);
  EXPECT_EQ(resume_changes(set, parse(small_config())).at(0).key, "loss_chunk_rows");
}

TEST(Resume, ReadsStoredKeysOfOlderVersionsByAlias) {
  json old =
      json::parse(dump_resolved(parse(small_config(), {"loss_spikes.zscore=6", "loss_spikes.max_consecutive=9"})));
  old["spike_deviations"] = old["loss_spikes"]["zscore"], old["loss_spikes"].erase("zscore");
  old["max_spikes_in_row"] = old["loss_spikes"]["max_consecutive"], old["loss_spikes"].erase("max_consecutive");
  EXPECT_TRUE(resume_changes(old.dump(), parse(old.dump())).empty());
}

TEST(Reference, EveryDefaultIsAccepted) {
  const json values = json::parse(defaults()), given = json::parse(small_config());
  for (const auto& [key, value] : values.items()) {
    if (value.is_null() || given.contains(key) || key == "model") continue;
    json text = given;
    text[key] = value;
    if (value.is_object()) {  // a section
      auto& options = text[key].get_ref<json::object_t&>();
      std::erase_if(options, [](const auto& option) { return option.second.is_null(); });
    }
    EXPECT_EQ(error_in(text.dump()), "") << key;
  }
}

TEST(Resume, ReportsTheResumeRuleOfEachChange) {
  const std::string old = dump_resolved(parse(small_config()));
  const Config now =
      parse(small_config(), {"seed=5", "learning_rate=0.01", "schedule.min_lr=1e-4", "log_interval=3",
                             "train_data=b.bin", "model.n_layer=3", "micro_batch_size=4", "fp16.initial_loss_scale=8"});
  std::map<std::string, ConfigChange> changes;
  for (const auto& change : resume_changes(old, now)) changes[change.key] = change;
  EXPECT_EQ(changes.size(), 7u);
  EXPECT_EQ(changes["seed"].rule, OnResume::refused);
  EXPECT_EQ(changes["seed"].old_value, "1234");
  EXPECT_EQ(changes["seed"].new_value, "5");
  EXPECT_EQ(changes["fp16.initial_loss_scale"].rule, OnResume::refused) << "the scale is in the checkpoint";
  EXPECT_EQ(changes["learning_rate"].rule, OnResume::notice);
  EXPECT_EQ(changes["log_interval"].rule, OnResume::free);
  EXPECT_EQ(changes["micro_batch_size"].old_value, "\"auto\"");
  EXPECT_EQ(changes["train_data"].rule, OnResume::notice);  // the fingerprint decides
  expect_parts(changes["train_data"].new_value, {"b.bin"});
  EXPECT_EQ(changes["model.num_hidden_layers"].rule, OnResume::refused);
}

TEST(Resume, EquivalentValuesMayChange) {
  const auto rule = [](const char* from, const char* to) {
    const std::string old = dump_resolved(parse(small_config(), {from}));
    const auto changes = resume_changes(old, parse(small_config(), {to}));
    EXPECT_EQ(changes.size(), 1u);
    return changes.at(0).rule;
  };
  EXPECT_EQ(rule("master_weights=fp32", "master_weights=split"), OnResume::free);
  EXPECT_EQ(rule("master_weights=split", "master_weights=fp32"), OnResume::free);
  EXPECT_EQ(rule("master_weights=split", "master_weights=bf16"), OnResume::refused);
  EXPECT_EQ(rule("master_weights=bf16", "master_weights=fp32"), OnResume::refused);
  EXPECT_EQ(rule("adam.exp_avg_dtype=fp32", "adam.exp_avg_dtype=bf16"), OnResume::notice);
}

TEST(Resume, MomentumOfSgdCannotBeginLater) {
  const auto rule = [](const char* optimizer, const char* from, const char* to) {
    const std::string old = dump_resolved(parse(small_config(), {optimizer, cat("sgd.momentum=", from)}));
    return resume_changes(old, parse(small_config(), {optimizer, cat("sgd.momentum=", to)})).at(0).rule;
  };
  EXPECT_EQ(rule("optimizer=sgd", "0", "0.9"), OnResume::refused);
  EXPECT_EQ(rule("optimizer=sgd", "0.9", "0"), OnResume::notice);
  EXPECT_EQ(rule("optimizer=sgd", "0.8", "0.9"), OnResume::notice);
  EXPECT_EQ(rule("optimizer=adamw", "0", "0.9"), OnResume::notice);
}

TEST(Resume, FirstMomentDecayOfScheduleFreeAdamWStays) {
  const auto rule = [](const char* optimizer) {
    const auto config = [&](const char* beta1) {
      return parse(small_config(), {optimizer, beta1, "schedule.lr_decay_style=constant"});
    };
    return resume_changes(dump_resolved(config("adam.beta1=0.9")), config("adam.beta1=0.95")).at(0).rule;
  };
  EXPECT_EQ(rule("optimizer=schedule_free_adamw"), OnResume::refused);
  EXPECT_EQ(rule("optimizer=adamw"), OnResume::notice);
}

TEST(Resume, KeysMissingInOldConfigsMeanTheDefault) {
  json old = json::parse(dump_resolved(parse(small_config())));
  old["adam"].erase("beta2");
  old["model"].erase("initializer_range");
  old["a_key_of_another_version"] = 3;
  EXPECT_TRUE(resume_changes(old.dump(), parse(small_config())).empty());
  EXPECT_EQ(resume_changes(old.dump(), parse(small_config(), {"adam.beta2=0.5"})).size(), 1u);
  expect_parts(error_of([] { resume_changes("{", parse(small_config())); }), {"stored configuration", "not valid"});
  expect_parts(error_of([] { resume_changes("{}", parse(small_config())); }), {"stored configuration", "no model"});
}

}  // namespace
}  // namespace athanor
