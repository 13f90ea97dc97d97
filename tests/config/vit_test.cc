// Shapes of vision transformers: keys of transformers' files, derived sizes, and what is refused.
#include "base/file.h"
#include "config/fields.h"
#include "tests/config/helpers.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

nlohmann::json vit_json() {
  return {{"model_type", "vit"},      {"num_labels", 10},           {"image_size", 32},
          {"patch_size", 4},          {"hidden_size", 48},          {"num_hidden_layers", 2},
          {"num_attention_heads", 3}, {"intermediate_size", 96},    {"hidden_act", "gelu"},
          {"layer_norm_eps", 1e-6},   {"hidden_dropout_prob", 0.0}, {"attention_probs_dropout_prob", 0.0},
          {"qkv_bias", true}};
}
TEST(Vit, SizesFollowFromImages) {
  const ModelConfig m = read_model(vit_json());
  EXPECT_EQ(m.vocab_size, 10);
  EXPECT_EQ(m.max_position_embeddings, 65);
  EXPECT_EQ(m.num_channels, 3);
  EXPECT_EQ(m.head_dim, 16);
  EXPECT_EQ(m.norm_eps, 1e-6);
  const int64_t block = 4 * (48 * 48 + 48) + 2 * 48 * 96 + 96 + 48 + 4 * 48;
  EXPECT_EQ(parameter_count(m), 48 * 48 + 48 + 48 + 65 * 48 + 2 * block + 2 * 48 + 10 * 48 + 10);
}

TEST(Vit, PublishedFilesNameClasses) {
  nlohmann::json j = {{"model_type", "vit"}, {"id2label", {{"0", "cat"}, {"1", "dog"}, {"2", "cow"}}}};
  j["architectures"] = {"ViTForImageClassification"};
  const testing::TempDir dir;
  write_file(dir / "config.json", j.dump());
  const ModelConfig m = load_model_config(dir / "config.json");
  EXPECT_EQ(m.vocab_size, 3);
  EXPECT_EQ(m.max_position_embeddings, 197);
}

TEST(Vit, FileOfTransformersIsWrittenAndReadBack) {
  ModelConfig m = read_model(vit_json());
  m.image_mean = {0.1, 0.2, 0.3}, m.image_std = {0.5, 0.6, 0.7};
  const std::string text = hf_config_json(m, "float32");
  const auto written = nlohmann::json::parse(text);
  EXPECT_EQ(written["architectures"][0], "ViTForImageClassification");
  EXPECT_EQ(written["id2label"].size(), 10u);
  EXPECT_FALSE(written.contains("vocab_size"));
  EXPECT_EQ(to_line(write_model(parse_model_config(text, "config.json"))), to_line(write_model(m)));
  const auto processor = nlohmann::json::parse(image_processor_json(m));
  EXPECT_EQ(processor["size"]["height"], 32);
  EXPECT_EQ(processor["image_mean"][2], 0.3);
}

TEST(Vit, WrongShapesAreRefused) {
  model_refused(with_key(vit_json(), "patch_size", 5), {"patch_size", "5 does not divide image_size 32"});
  model_refused(with_key(vit_json(), "image_size", int64_t{1} << 62), {"image_size", "16384"});
  nlohmann::json unsized = vit_json();
  unsized.erase("patch_size");
  model_refused(unsized, {"model.patch_size is required"});
  model_refused(with_key(vit_json(), "hidden_act", "relu"), {"hidden_act", "relu", "gelu"});
  model_refused(with_key(vit_json(), "qkv_bias", false), {"qkv_bias", "true"});
  model_refused(with_key(vit_json(), "hidden_dropout_prob", 0.1), {"hidden_dropout_prob", "dropout"});
  model_refused(with_key(vit_json(), "max_position_embeddings", 64), {"65 tokens", "64"});
  model_refused(with_key(vit_json(), "num_key_value_heads", 1), {"num_key_value_heads", "vit"});
  model_refused(with_key(vit_json(), "image_mean", {0.5, 0.5}), {"image_mean", "2 numbers", "3 channels"});
  model_refused(with_key(vit_json(), "image_std", {0.5, 0.5, 0}), {"image_std", "above 0"});
  model_refused(with_key(vit_json(), "tie_word_embeddings", true), {"tie_word_embeddings", "vit"});
  model_refused(with_key(llama_json(), "image_size", 32), {"image_size", "llama reads text", "vit"});
  model_refused(with_key(llama_json(), "patch_size", 4), {"patch_size", "llama reads text"});
}

TEST(Vit, OptionsOfTextAreRefused) {
  const std::string text = small_config("", vit_json().dump());
  EXPECT_EQ(parse(text).seq_length, 65);
  for (const char* option : {"documents.packing=best_fit", "documents.reset_position_ids=true", "fim.rate=0.5",
                             "context_parallel_size=2", "mup_base_width=24", "distillation.teacher=x",
                             R"(multi_token_prediction=[{"weight": 0.5}])", "multiple_choice_data=x"}) {
    const std::string key = std::string(option).substr(0, std::string(option).find('='));
    expect_parts(error_in(text, {option}), {key, "not supported for model_type vit"});
  }
  expect_parts(error_in(text, {"seq_length=32"}), {"seq_length", "65 tokens", "32"});
  expect_parts(error_in(text, {"images.crop_padding=32"}), {"images.crop_padding", "32"});
  refused({"images.horizontal_flip=true"}, {"images.horizontal_flip", "gpt2 reads text"});
  refused({"images.crop_padding=2"}, {"images.crop_padding", "gpt2 reads text"});
}

}  // namespace
}  // namespace athanor
