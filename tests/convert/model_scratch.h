// Helpers of the tests of model folders: tiny models with random weights, written as other programs write them.
#pragma once
#include <cstring>

#include "checkpoint/weights.h"
#include "config/config.h"
#include "model/model.h"
#include "tests/checkpoint/scratch.h"

namespace athanor::test {

class ModelScratch : public Scratch {
 protected:
  ModelConfig config;
  std::vector<OwnedTensor> tensors;

  static ModelConfig shape(ModelType type) {
    ModelConfig m = model_defaults(type);
    m.vocab_size = 35, m.hidden_size = 12, m.num_hidden_layers = 2, m.num_attention_heads = 2;
    m.intermediate_size = 20, m.max_position_embeddings = 16;
    if (type != ModelType::gpt2) m.num_key_value_heads = 1;
    if (has_experts(type)) m.num_experts = 3, m.num_experts_per_tok = 2;
    if (type == ModelType::olmoe || type == ModelType::dots1) m.num_key_value_heads = 2;
    if (type == ModelType::qwen2_moe) m.moe_intermediate_size = 8, m.shared_expert_intermediate_size = 10;
    if (type == ModelType::qwen3_moe) m.moe_intermediate_size = 8, m.norm_topk_prob = true;
    if (has_deepseek_experts(type)) m.moe_intermediate_size = 8, m.n_shared_experts = 2, m.first_k_dense_replace = 1;
    if (has_latent_attention(type)) {
      m.num_key_value_heads = 2, m.q_lora_rank = 9, m.kv_lora_rank = 7;
      m.qk_nope_head_dim = 6, m.qk_rope_head_dim = 4, m.v_head_dim = 5;
    }
    if (type == ModelType::gpt_oss) m.sliding_window = 5;
    complete(m);
    validate(m);
    return m;
  }
  // Finite values, that no dtype rounds to another's.
  void fill(const ModelConfig& m, DType dtype) {
    config = m;
    tensors.clear();
    const auto model = make_model(m);
    for (const ParamSpec& spec : model->params().specs())
      for (const HfSlice& slice : spec.slices) add(slice.name, dtype, slice.shape);
  }
  void add(const std::string& name, DType dtype, Shape shape) {
    OwnedTensor t = random_tensor(name, dtype, shape);
    by_float(dtype, [&]<class T>() {
      for (int64_t i = 0; i < shape.numel(); ++i) {
        const T value = from_float<T>(random_uniform(7, stream_of(name), uint64_t(i)) - 0.5f);
        std::memcpy(t.bytes.data() + size_t(i) * sizeof(T), &value, sizeof(T));
      }
    });
    tensors.push_back(std::move(t));
  }
  OwnedTensor& tensor(const std::string& name) {
    for (OwnedTensor& t : tensors)
      if (t.data.name == name) return t;
    throw Error("no tensor " + name);
  }
  // tensors and config as a folder of Hugging Face's layout.
  std::string write(const std::string& name, int64_t max_bytes = 1 << 30, const char* dtype = "bfloat16") {
    const std::string folder = at(name);
    std::filesystem::create_directories(folder);
    std::vector<TensorData> data;
    for (OwnedTensor& t : tensors) {
      t.data.pieces = {std::span<const std::byte>(t.bytes)};
      data.push_back(t.data);
    }
    const auto shards = plan_weight_shards(data, max_bytes);
    for (const WeightShard& shard : shards) {
      std::vector<TensorData> part;
      for (const size_t i : shard.tensors) part.push_back(data[i]);
      save_safetensors(folder + "/" + shard.file, part);
    }
    if (shards.size() > 1) spill(folder + "/model.safetensors.index.json", weight_index_json(shards, data));
    spill(folder + "/config.json", hf_config_json(config, dtype));
    return folder;
  }
  void expect_same_tensors(const std::string& folder) {
    const WeightFiles files(folder);
    EXPECT_EQ(files.tensors().size(), tensors.size());
    for (const OwnedTensor& t : tensors) {
      const auto [file, entry] = files.at(t.data.name);
      EXPECT_EQ(entry->checked_dtype(), t.data.dtype) << t.data.name;
      const auto got = file->data(*entry);
      EXPECT_TRUE(std::equal(got.begin(), got.end(), t.bytes.begin(), t.bytes.end())) << t.data.name;
    }
  }
};

}  // namespace athanor::test
