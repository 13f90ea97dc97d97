// The GGUF writer byte by byte on what can be computed by hand; that llama.cpp's own reader agrees is a system test.
#include "convert/gguf_model.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "convert/floats.h"
#include "convert/gguf_reader.h"
#include "tests/convert/model_scratch.h"

namespace athanor::test {
namespace {

template <class T>
T at_byte(const std::string& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

class Gguf : public ModelScratch {};

TEST_F(Gguf, FileLayoutFollowsTheSpecification) {
  GgufFile file;
  file.set("k", uint32_t{7});
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const auto make = [&](const ByteSink& sink) { sink(std::as_bytes(std::span(values))); };
  file.add({.name = "t", .type = GgmlType::f32, .shape = {2, 3}, .make = make});
  file.add({.name = "u", .type = GgmlType::f32, .shape = {6}, .make = make});
  const int64_t size = file.write(at("f.gguf"));
  const std::string bytes = slurp(at("f.gguf"));
  ASSERT_EQ(int64_t(bytes.size()), size);
  EXPECT_EQ(bytes.substr(0, 4), "GGUF");
  EXPECT_EQ(at_byte<uint32_t>(bytes, 4), 3u);
  EXPECT_EQ(at_byte<uint64_t>(bytes, 8), 2u) << "tensors";
  EXPECT_EQ(at_byte<uint64_t>(bytes, 16), 1u) << "pairs";
  EXPECT_EQ(at_byte<uint64_t>(bytes, 24), 1u);
  EXPECT_EQ(bytes[32], 'k');
  EXPECT_EQ(at_byte<uint32_t>(bytes, 33), 4u) << "uint32";
  EXPECT_EQ(at_byte<uint32_t>(bytes, 37), 7u);
  EXPECT_EQ(bytes[49], 't');
  EXPECT_EQ(at_byte<uint32_t>(bytes, 50), 2u);
  EXPECT_EQ(at_byte<uint64_t>(bytes, 54), 3u) << "columns first";
  EXPECT_EQ(at_byte<uint64_t>(bytes, 62), 2u);
  EXPECT_EQ(at_byte<uint64_t>(bytes, 74), 0u) << "offset";
  EXPECT_EQ(at_byte<uint64_t>(bytes, 82 + 9 + 4 + 8 + 4), 32u) << "24 bytes of data, aligned";
  EXPECT_EQ(bytes.size() % 32, 0u);
  EXPECT_EQ(at_byte<float>(bytes, bytes.size() - 64), 1);
  EXPECT_EQ(at_byte<float>(bytes, bytes.size() - 32 + 20), 6);
}

GgufOptions floats(GgmlType type) { return {.mixture = mixture_of_floats(type)}; }

TEST_F(Gguf, EveryFamilyIsWritten) {
  for (const ModelType family :
       {ModelType::gpt2, ModelType::llama, ModelType::mistral, ModelType::qwen2, ModelType::qwen3, ModelType::mixtral,
        ModelType::qwen2_moe, ModelType::qwen3_moe, ModelType::olmoe, ModelType::dots1})
    for (const GgmlType type : {GgmlType::f32, GgmlType::f16, GgmlType::bf16}) {
      fill(shape(family), DType::bf16);
      const std::string name = cat(name_of(family), int(type));
      write_gguf(ModelFolder(write(name)), at(name + ".gguf"), floats(type));
      const std::string bytes = slurp(at(name + ".gguf"));
      const bool experts =
          has_experts(family);  // three experts of three matrices in each layer that has some are merged
      const size_t layers = family == ModelType::dots1 ? 1 : 2;
      EXPECT_EQ(at_byte<uint64_t>(bytes, 8), tensors.size() - (experts ? layers * 3 * 2 : 0)) << name;
      EXPECT_NE(bytes.find(experts ? "blk.1.ffn_down_exps.weight" : "blk.1.ffn_down.weight"), bytes.npos) << name;
    }
  EXPECT_ERROR(write_gguf(ModelFolder(at("gpt20")), at("gpt20.gguf"), floats(GgmlType::f32)), "exists already");
  write_gguf(ModelFolder(at("gpt20")), at("new/folder/a.gguf"), floats(GgmlType::f32));
}

// llama.cpp has separate mixture rules for these models.
TEST_F(Gguf, TextsStartWithBosIfTheTokenizerSaysSo) {
  ModelConfig m = shape(ModelType::qwen2);
  m.bos_token_id = 2, m.eos_token_id = 3;
  fill(m, DType::bf16);
  const auto adds_bos = [&](const std::string& name, const std::string& settings, const std::string& processor) {
    const std::string folder = write(name);
    spill(
        folder + "/tokenizer.json",
        cat(R"({"added_tokens": [{"id": 2, "content": "<bos>", "special": true},)",
            R"({"id": 3, "content": "<eos>", "special": true}], "post_processor": )", processor,
            R"(, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"},)",
            R"("model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})"));
    if (!settings.empty()) spill(folder + "/tokenizer_config.json", settings);
    write_gguf(ModelFolder(folder), at(name + ".gguf"), floats(GgmlType::f32));
    return GgufReader(at(name + ".gguf")).number("tokenizer.ggml.add_bos_token").value_or(-1);
  };
  const std::string first =
      R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}},)"
      R"({"Sequence": {"id": "A", "type_id": 0}}]})";
  EXPECT_EQ(adds_bos("none", "", "null"), 0);
  EXPECT_EQ(adds_bos("bytes", "", R"({"type": "ByteLevel"})"), 0);
  EXPECT_EQ(adds_bos("first", "", first), 1);
  EXPECT_EQ(adds_bos("in_sequence", "", cat(R"({"type": "Sequence", "processors": [)", first, "]}")), 1);
  EXPECT_EQ(adds_bos("settings", R"({"add_bos_token": false})", first), 0);
  EXPECT_EQ(adds_bos("settings_on", R"({"add_bos_token": true})", "null"), 1);
}

TEST_F(Gguf, ChatTemplatesAreWritten) {
  fill(shape(ModelType::llama), DType::bf16);
  const std::string folder = write("model"), settings = folder + "/tokenizer_config.json";
  spill(folder + "/tokenizer.json",
        R"({"added_tokens": [{"id": 2, "content": "<eos>", "special": true}],)"
        R"("pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"},)"
        R"("model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})");
  const auto written = [&](const std::string& name) {
    write_gguf(ModelFolder(folder), at(name), floats(GgmlType::f32));
    return GgufReader(at(name)).text("tokenizer.chat_template").value_or("none");
  };
  EXPECT_EQ(written("a.gguf"), "none");
  spill(settings, R"({"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(written("b.gguf"), "d");
  spill(settings, R"({"chat_template": "{{ messages }}"})");
  EXPECT_EQ(written("c.gguf"), "{{ messages }}");
  spill(folder + "/chat_template.jinja", "newer");
  EXPECT_EQ(written("d.gguf"), "newer");
}

TEST_F(Gguf, TensorsAreSortedByLayerThenName) {
  GgufFile file;
  for (const char* name : {"blk.10.a", "token_embd.weight", "blk.2.b", "output.weight", "blk.2.a"})
    file.add({.name = name, .type = GgmlType::f32, .shape = {1}, .make = [](const ByteSink& sink) {
                const float one = 1;
                sink(std::as_bytes(std::span(&one, 1)));
              }});
  file.sort_tensors();
  file.write(at("f.gguf"));
  const std::string bytes = slurp(at("f.gguf"));
  size_t last = 0;
  for (const char* name : {"output.weight", "token_embd.weight", "blk.2.a", "blk.2.b", "blk.10.a"}) {
    EXPECT_GT(bytes.find(name), last) << name;
    last = bytes.find(name);
  }
}

// llama.cpp's own rules, by hand: eighths and thirds of 16 layers.
TEST(GgufMixture, GivesMoreBitsWhereLlamaCppDoes) {
  ModelConfig m = model_defaults(ModelType::llama);
  m.num_hidden_layers = 16, m.tie_word_embeddings = false;
  const auto type = [&m](const char* mixture, const std::string& name, int64_t columns = 256, bool importance = false) {
    return std::string(ggml_info(matrix_type(*mixture_named(mixture), m, name, columns, importance)).name);
  };
  std::string down, values;
  for (int layer = 0; layer < 16; ++layer) {
    down += type("q4_K_M", cat("blk.", layer, ".ffn_down.weight"))[1];
    values += type("q4_K_S", cat("blk.", layer, ".attn_v.weight"))[1];
  }
  EXPECT_EQ(down, "6644644644644666") << "eighths: 0, 1, 14, 15; thirds between them: 4, 7, 10, 13";
  EXPECT_EQ(values, "5555444444444444");
  EXPECT_EQ(type("q4_K_M", "blk.3.attn_q.weight"), "q4_K");
  EXPECT_EQ(type("q5_K_M", "blk.0.attn_qkv.weight"), "q6_K") << "fused queries, keys and values are values";
  EXPECT_EQ(type("q4_K_S", "blk.1.ffn_down.weight"), "q5_K");
  EXPECT_EQ(type("q4_K_S", "blk.2.ffn_down.weight"), "q4_K");
  EXPECT_EQ(type("q4_K_S", "blk.1.ffn_down_exps.weight"), "q5_K");
  EXPECT_EQ(type("q4_0", "blk.0.ffn_down.weight"), "q4_0");
  EXPECT_EQ(type("q4_0", "blk.0.ffn_down.weight", 256, true), "q4_1");
  EXPECT_EQ(type("q5_0", "blk.0.ffn_down.weight", 256, true), "q5_1");
  EXPECT_EQ(type("q4_0", "output.weight"), "q6_K");
  EXPECT_EQ(type("q8_0", "output.weight"), "q8_0");
  EXPECT_EQ(type("mxfp4_moe", "blk.0.ffn_down_exps.weight"), "mxfp4");
  EXPECT_EQ(type("mxfp4_moe", "blk.0.ffn_down.weight"), "q8_0");
  EXPECT_EQ(type("mxfp4_moe", "output.weight"), "q8_0");
  EXPECT_EQ(type("q4_0", "token_embd.weight"), "q4_0");
  m.tie_word_embeddings = true;
  EXPECT_EQ(type("q4_0", "token_embd.weight"), "q6_K") << "it is the head, too";
  EXPECT_EQ(type("q4_K", "token_embd.weight", 320), "q8_0");
  m.num_hidden_layers = 80;
  EXPECT_EQ(type("q4_K_M", "blk.11.attn_v.weight"), m.num_attention_heads == m.num_key_value_heads ? "q4_K" : "q5_K");
  m = model_defaults(ModelType::mixtral);
  m.num_experts = 8;
  for (const char* name : {"blk.3.attn_k.weight", "blk.3.attn_v.weight"}) EXPECT_EQ(type("q4_K_M", name), "q8_0");
  EXPECT_EQ(type("q4_K_M", "blk.3.attn_output.weight"), "q5_K");
  m.num_experts = 16;
  EXPECT_EQ(type("q4_K_M", "blk.3.attn_k.weight"), "q4_K") << "only models with eight experts";
}

TEST(GgufMixture, RowsNotMultipleOf256FallBackToSmallerBlocks) {
  ModelConfig m = model_defaults(ModelType::llama);
  const auto type = [&m](const char* mixture, int64_t columns) {
    return std::string(ggml_info(matrix_type(*mixture_named(mixture), m, "blk.3.attn_q.weight", columns, false)).name);
  };
  EXPECT_EQ(type("q4_K_M", 288), "q5_0");
  EXPECT_EQ(type("q5_K_M", 288), "q5_1");
  EXPECT_EQ(type("q6_K", 288), "q8_0");
  EXPECT_EQ(type("q4_K_M", 300), "f16");
  EXPECT_EQ(type("q8_0", 300), "f16");
  EXPECT_EQ(type("q8_0", 288), "q8_0");
}

TEST_F(Gguf, MixtureThatFitsNoMatrixIsRefused) {
  fill(shape(ModelType::llama), DType::f32);  // rows of 12 and 20
  const ModelFolder tiny(write("tiny"));
  EXPECT_ERROR(write_gguf(tiny, at("a.gguf"), {.mixture = *mixture_named("q8_0")}), "q8_0", "32", "hidden_size 12",
               "intermediate_size 20", "f16");
  ModelConfig m = shape(ModelType::llama);
  m.hidden_size = 64, m.head_dim = 32, m.intermediate_size = 96;
  fill(m, DType::f32);
  const ModelFolder small(write("small"));
  EXPECT_ERROR(write_gguf(small, at("a.gguf"), {.mixture = *mixture_named("q4_K_M")}), "q4_K_M", "256",
               "hidden_size 64", "take q5_0");
  EXPECT_FALSE(std::filesystem::exists(at("a.gguf")));
  write_gguf(small, at("a.gguf"), {.mixture = *mixture_named("q5_0")});
}

TEST_F(Gguf, FilesRoundTrip) {
  for (const ModelType family :
       {ModelType::gpt2, ModelType::llama, ModelType::qwen2, ModelType::qwen3, ModelType::mixtral, ModelType::qwen2_moe,
        ModelType::qwen3_moe, ModelType::olmoe, ModelType::dots1, ModelType::deepseek_v2, ModelType::deepseek_v3,
        ModelType::gpt_oss}) {
    ModelConfig m = shape(family);
    m.tie_word_embeddings = family == ModelType::qwen3 || family == ModelType::gpt2;
    if (has_router_bias(family)) m.norm_topk_prob = true, m.routed_scaling_factor = 2.5;
    if (has_latent_attention(family)) {
      m.rope_scaling = {.rope_type = RopeType::yarn, .factor = 2, .original_max_position_embeddings = 8};
      m.rope_scaling.mscale = m.rope_scaling.mscale_all_dim = 0.707;
    }
    if (family == ModelType::deepseek_v2) m.num_hidden_layers = 26, m.q_lora_rank = 0;
    if (family == ModelType::deepseek_v3) m.num_experts = 4, m.n_group = 2, m.topk_group = 1;
    fill(m, DType::f32);
    const std::string name(name_of(family)), file = at(name + ".gguf");
    const ModelFolder original(write(name));
    write_gguf(original, file, floats(GgmlType::f32));
    const ModelFolder read(file);
    EXPECT_EQ(read.config().model_type, family);
    EXPECT_EQ(read.config().hidden_size, 12);
    EXPECT_EQ(read.config().num_experts_per_tok, original.config().num_experts_per_tok);
    EXPECT_EQ(read.config().norm_topk_prob, original.config().norm_topk_prob);
    EXPECT_EQ(read.config().routed_scaling_factor, original.config().routed_scaling_factor);
    EXPECT_EQ(read.config().n_shared_experts, original.config().n_shared_experts);
    EXPECT_EQ(read.config().first_k_dense_replace, original.config().first_k_dense_replace);
    EXPECT_EQ(read.config().shared_expert_intermediate_size, original.config().shared_expert_intermediate_size);
    EXPECT_EQ(read.config().n_group, original.config().n_group);
    EXPECT_EQ(read.config().sliding_window, original.config().sliding_window);
    EXPECT_EQ(read.config().topk_group, original.config().topk_group);
    EXPECT_EQ(read.config().q_lora_rank, original.config().q_lora_rank);
    EXPECT_EQ(read.config().v_head_dim, original.config().v_head_dim);
    EXPECT_EQ(read.config().rope_scaling.mscale_all_dim, original.config().rope_scaling.mscale_all_dim);
    EXPECT_EQ(read.config().norm_eps, original.config().norm_eps);  // stored as f32
    EXPECT_EQ(read.config().head_dim, original.config().head_dim);
    EXPECT_EQ(read.config().tie_word_embeddings, original.config().tie_word_embeddings);
    ASSERT_EQ(read.weights().size(), original.weights().size()) << name;
    std::vector<std::byte> a, b;
    for (const auto& w : original.weights()) {
      original.read(w, 0, w.shape[0], a);
      read.read(read.at(w.name), 0, w.shape[0], b);
      EXPECT_TRUE(a == b) << w.name;
      const int64_t third = w.shape.numel() / 3;
      original.read_run(w, third, 2 * third + 1, a);
      read.read_run(read.at(w.name), third, 2 * third + 1, b);
      EXPECT_TRUE(a == b) << "a part of " << w.name;
    }
  }
}

TEST_F(Gguf, TiedEmbeddingIsCopiedWhereLlamaCppNeedsAnOutputMatrix) {
  for (const ModelType family :
       {ModelType::qwen2, ModelType::qwen2_moe, ModelType::olmoe, ModelType::dots1, ModelType::gpt_oss}) {
    ModelConfig m = shape(family);
    m.tie_word_embeddings = true;
    fill(m, DType::f32);
    const std::string name(name_of(family)), file = at(name + ".gguf");
    const ModelFolder original(write(name));
    write_gguf(original, file, floats(GgmlType::f32));
    const ModelFolder read(file);
    ASSERT_EQ(read.config().tie_word_embeddings, family == ModelType::qwen2) << name;
    if (read.config().tie_word_embeddings) continue;
    std::vector<std::byte> embedding, output;
    original.read(original.at("model.embed_tokens.weight"), 0, m.vocab_size, embedding);
    read.read(read.at("lm_head.weight"), 0, m.vocab_size, output);
    EXPECT_TRUE(embedding == output) << name;
  }
}

TEST_F(Gguf, QuantizedFilesAreReadDequantized) {
  ModelConfig m = shape(ModelType::llama);
  m.hidden_size = 256, m.head_dim = 128, m.intermediate_size = 256;
  fill(m, DType::f32);
  const ModelFolder original(write("model"));
  write_gguf(original, at("q.gguf"), {.mixture = *mixture_named("q6_K")});
  const ModelFolder read(at("q.gguf"));
  for (const char* name : {"model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight"}) {
    const auto& w = original.at(name);
    std::vector<std::byte> bytes;
    std::vector<float> a, b;
    original.read(w, 0, w.shape[0], bytes);
    to_floats(bytes, DType::f32, a);
    read.read(read.at(name), 0, w.shape[0], bytes);
    to_floats(bytes, DType::f32, b);
    double error = 0, size = 0;
    for (size_t i = 0; i < a.size(); ++i) error += std::pow(a[i] - b[i], 2), size += std::pow(a[i], 2);
    EXPECT_LT(std::sqrt(error / size), 0.02) << name;
    EXPECT_GT(error, 0) << name;
  }
}

// Before memory is allocated for them.
TEST_F(Gguf, OffsetsThatDoNotFitAndInfiniteNumbersAreRefused) {
  fill(shape(ModelType::mixtral), DType::f32);
  write_gguf(ModelFolder(write("model")), at("a.gguf"), floats(GgmlType::f32));
  const std::string whole = slurp(at("a.gguf"));
  const auto error_with = [&](auto value, size_t place) {
    std::string damaged = whole;
    std::memcpy(damaged.data() + place, &value, sizeof value);
    spill(at("b.gguf"), damaged);
    return error_of([&] { ModelFolder read(at("b.gguf")); });
  };
  const auto after = [&](const std::string& name) { return whole.find(name) + name.size() + sizeof(uint32_t); };
  constexpr uint32_t kMany = 1 << 23;
  constexpr uint64_t kHuge = uint64_t{1} << 40;
  const std::string tensors_named = cat("the file has ", at_byte<uint64_t>(whole, 8), " tensors");
  for (const auto& [text, parts] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {error_with(kHuge, 8), {"'tensor_count'", "1099511627776 tensors", "bytes follow"}},
           {error_with(kHuge, 16), {"'metadata_kv_count'", "1099511627776 keys", "bytes follow"}},
           {error_with(kHuge, 24), {"'a key'", "1099511627776 bytes", "bytes follow"}},
           {error_with(kMany, after("llama.block_count")), {"llama.block_count is 8388608", tensors_named}},
           {error_with(kMany, after("llama.expert_count")),
            {"llama.expert_count is 8388608", "ffn_gate_exps.weight has 3"}},
           {error_with(std::numeric_limits<float>::infinity(), after("llama.rope.freq_base")),
            {"'llama.rope.freq_base' is inf", "expected a finite number"}},
           {error_with(kHuge, after("output.weight")),
            {"'output.weight'", "dimension 0 is 1099511627776", "expected 1 to"}},
           {error_with(kHuge, after("output.weight") + 20), {"'output.weight'", "byte 1099511627776"}},
           {error_with(uint64_t{32}, after("output.weight") + 20),
            {"'output.weight'", "byte 32 of the data; expected"}}}) {
    EXPECT_NE(text.find("b.gguf"), text.npos) << text;
    for (const std::string& part : parts) EXPECT_NE(text.find(part), text.npos) << text << "\nlacks: " << part;
  }
}

TEST_F(Gguf, DamagedFilesAreErrors) {
  fill(shape(ModelType::llama), DType::f32);
  write_gguf(ModelFolder(write("model")), at("a.gguf"), floats(GgmlType::f32));
  const std::string whole = slurp(at("a.gguf"));
  for (size_t size = 0; size < whole.size(); size += 1 + size / 20) {
    spill(at("cut.gguf"), whole.substr(0, size));
    EXPECT_ERROR(ModelFolder(at("cut.gguf")), "cut.gguf");
  }
  for (size_t i = 0; i < 1500; ++i) {  // any byte of the header may be any other
    std::string damaged = whole;
    damaged[i] = char(damaged[i] ^ 0x80);
    spill(at("bit.gguf"), damaged);
    try {
      const ModelFolder read(at("bit.gguf"));
      EXPECT_EQ(read.weights().size(), tensors.size());
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("bit.gguf"), std::string::npos) << e.what();
    }
  }
}

TEST_F(Gguf, KeysThatAppearTwiceAreRefused) {
  fill(shape(ModelType::llama), DType::f32);
  write_gguf(ModelFolder(write("model")), at("a.gguf"), floats(GgmlType::f32));
  std::string changed = slurp(at("a.gguf"));
  const std::string of = "llama.rope.freq_base", to = "llama.context_length";
  changed.replace(changed.find(of), of.size(), to);
  spill(at("b.gguf"), changed);
  EXPECT_ERROR(ModelFolder(at("b.gguf")), "'llama.context_length' appears twice");
}

TEST_F(Gguf, RopeOfAPartOfAHeadIsRefused) {
  fill(shape(ModelType::llama), DType::f32);
  write_gguf(ModelFolder(write("model")), at("a.gguf"), floats(GgmlType::f32));
  std::string changed = slurp(at("a.gguf"));
  const std::string key = "llama.rope.dimension_count";
  const size_t value = changed.find(key) + key.size() + 4;  // after the key's type
  ASSERT_EQ(at_byte<uint32_t>(changed, value), 6u);
  changed[value] = 4;
  spill(at("b.gguf"), changed);
  EXPECT_ERROR(ModelFolder(at("b.gguf")), "rope.dimension_count is 4", "6");
}

TEST_F(Gguf, ModelsUnsupportedByLlamaCppAreRefused) {
  int cases = 0;
  const auto expect_refused = [&](ModelType family, std::vector<std::string> words, auto&& change) {
    ModelConfig m = shape(family);
    change(m);
    fill(m, DType::f32);
    const ModelFolder folder(write(cat("model ", cases++)));
    expect_error([&] { write_gguf(folder, at("a.gguf"), floats(GgmlType::f32)); }, words);
    EXPECT_FALSE(std::filesystem::exists(at("a.gguf")));
  };
  const RopeScaling yarn{.rope_type = RopeType::yarn, .factor = 2, .original_max_position_embeddings = 8};
  using enum ModelType;
  expect_refused(qwen2, {"llama3", "qwen2"}, [&](ModelConfig& m) {
    m.rope_scaling = {.rope_type = RopeType::llama3, .factor = 2, .original_max_position_embeddings = 8};
  });
  expect_refused(qwen2, {"attention_factor"},
                 [&](ModelConfig& m) { m.rope_scaling = yarn, m.rope_scaling.attention_factor = 1.5; });
  expect_refused(qwen2, {"truncate"}, [&](ModelConfig& m) { m.rope_scaling = yarn, m.rope_scaling.truncate = false; });
  for (const ModelType family : {qwen2_moe, qwen3_moe})
    expect_refused(family, {"mlp_only_layers", "experts in all layers"},
                   [](ModelConfig& m) { m.mlp_only_layers = {0}; });
  for (const ModelType family : {dots1, deepseek_v2})
    expect_refused(family, {"n_group", std::string(name_of(family))},
                   [](ModelConfig& m) { m.num_experts = 4, m.n_group = 2; });
  expect_refused(gpt_oss, {"swiglu_limit", "got 5"}, [](ModelConfig& m) { m.swiglu_limit = 5; });
  expect_refused(gpt_oss, {"layer_types"}, [](ModelConfig& m) { std::swap(m.layer_types[0], m.layer_types[1]); });
  expect_refused(deepseek_v3, {"rope_interleave"}, [](ModelConfig& m) { m.rope_interleave = false; });
  for (const ModelType family : {dots1, deepseek_v3})
    expect_refused(family, {"n_shared_experts", "got 0"}, [](ModelConfig& m) { m.n_shared_experts = 0; });
  expect_refused(dots1, {"num_key_value_heads", "2, got 1"}, [](ModelConfig& m) { m.num_key_value_heads = 1; });
  for (const ModelType family : {qwen2, qwen2_moe})
    expect_refused(family, {"head_dim", "12 / 2, got 8"}, [](ModelConfig& m) { m.head_dim = 8; });
  expect_refused(deepseek_v3, {"q_lora_rank", "26 or 27 layers, got 2"}, [](ModelConfig& m) { m.q_lora_rank = 0; });
  expect_refused(deepseek_v3, {"rope_scaling", "linear"},
                 [](ModelConfig& m) { m.rope_scaling = {.rope_type = RopeType::linear, .factor = 2}; });
  expect_refused(deepseek_v3, {"mscale 1", "mscale_all_dim 0.7"}, [&](ModelConfig& m) {
    m.rope_scaling = yarn, m.rope_scaling.mscale = 1, m.rope_scaling.mscale_all_dim = 0.7;
  });
}

}  // namespace
}  // namespace athanor::test
