// Small valid configurations and the message of the Error that a text leads to.
#pragma once
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/config.h"

namespace athanor {

inline const char* kSmallModel =
    R"({"model_type": "gpt2", "vocab_size": 257, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32})";

// A valid configuration; `extra` is more keys, each line ending in a comma.
inline std::string small_config(const std::string& extra = "", const std::string& model = kSmallModel) {
  return cat("{\n", extra, "\"model\": ", model,
             ",\n\"train_data\": \"a.bin\", \"train_iters\": 10,\n\"global_batch_size\": 8, \"learning_rate\": 1e-3}");
}

inline Config parse(const std::string& text, std::vector<std::string> overrides = {},
                    std::vector<std::string>* notices = nullptr) {
  return parse_config(text, "run.json", ".", overrides, notices);
}

// Message of the Error that fn throws, which must have the exit code of wrong usage; "" if it throws none.
template <class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::usage) << e.what();
    return e.what();
  }
  return "";
}

inline std::string error_in(const std::string& text, std::vector<std::string> overrides = {}) {
  return error_of([&] { parse(text, overrides); });
}

inline void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const auto& part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << "\nis not in: " << message;
}

// The small configuration with these overrides, and the error of adding more.
struct SmallConfig {
  std::vector<std::string> overrides;
  std::string text = small_config();

  std::string error(const std::vector<std::string>& more) const {
    std::vector<std::string> all = overrides;
    all.insert(all.end(), more.begin(), more.end());
    return error_in(text, all);
  }
  void accepts(const std::vector<std::string>& more) const { EXPECT_EQ(error(more), ""); }
  void refuses(const std::vector<std::string>& more, const std::vector<std::string>& parts) const {
    expect_parts(error(more), parts);
  }
};
inline std::string error_with(const std::vector<std::string>& overrides) { return SmallConfig{}.error(overrides); }
inline void accepted(const std::vector<std::string>& overrides) { SmallConfig{}.accepts(overrides); }
inline void refused(const std::vector<std::string>& overrides, const std::vector<std::string>& parts) {
  SmallConfig{}.refuses(overrides, parts);
}

// Files of models.
inline nlohmann::json llama_json() {
  return {{"model_type", "llama"},    {"vocab_size", 1000},
          {"hidden_size", 64},        {"num_hidden_layers", 2},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"intermediate_size", 128}, {"max_position_embeddings", 256}};
}
inline ModelConfig read_model(const nlohmann::json& j) { return parse_model_config(j.dump(), "config.json"); }
inline std::string error_of_model(const nlohmann::json& j) {
  return error_of([&] { read_model(j); });
}
inline void model_refused(const nlohmann::json& j, const std::vector<std::string>& parts) {
  expect_parts(error_of_model(j), parts);
}
inline nlohmann::json with_key(nlohmann::json j, const std::string& key, const nlohmann::json& value) {
  j[key] = value;
  return j;
}
// Compares all members at once: the resolved dump without the training keys.
inline std::string model_text(const ModelConfig& m) {
  Config c;
  c.model = m;
  return nlohmann::json::parse(dump_resolved(c))["model"].dump();
}

}  // namespace athanor
