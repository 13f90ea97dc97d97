// Experts of GPT-OSS in the tensors of transformers: one for all experts of a layer, plain or in MXFP4.
#include "convert/fused_experts.h"

#include <gtest/gtest.h>

#include <cmath>

#include "convert/hf_folder.h"
#include "tests/convert/model_scratch.h"
#include "tests/expect_error.h"

namespace athanor::test {
namespace {

class FusedExperts : public ModelScratch {
 protected:
  std::vector<std::byte> read(const ModelFolder& folder, const std::string& name) {
    std::vector<std::byte> bytes;
    folder.read(folder.at(name), 0, folder.at(name).shape[0], bytes);
    return bytes;
  }
};

TEST_F(FusedExperts, ExportedTensorsHoldEveryExpertAndComeBack) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    fill(shape(ModelType::gpt_oss), dtype);
    const std::string apart = write(cat(dtype, "-apart")), fused = at(cat(dtype, "-fused"));
    write_hf_folder(ModelFolder(apart), fused, {.max_shard_bytes = 3000, .manifest = true});
    const WeightFiles files(fused);
    const std::string experts = "model.layers.1.mlp.experts.";
    const auto [file, entry] = files.at(experts + "gate_up_proj");
    EXPECT_EQ(entry->checked_shape(), (Shape{3, 12, 40}));
    EXPECT_EQ(files.at(experts + "gate_up_proj_bias").entry->checked_shape(), (Shape{3, 40}));
    EXPECT_EQ(files.at(experts + "down_proj").entry->checked_shape(), (Shape{3, 20, 12}));
    // Input 4 of output 7 of up_proj of expert 2 is in column 2 * 7 + 1.
    const auto size = int64_t(size_of(dtype));
    const std::byte* here = file->data(*entry).data() + ((2 * 12 + 4) * 40 + 15) * size;
    const std::byte* apart_here = tensor(experts + "2.up_proj.weight").bytes.data() + (7 * 12 + 4) * size;
    EXPECT_TRUE(std::equal(here, here + size, apart_here));
    const ModelFolder back(fused);
    for (const OwnedTensor& t : tensors) {
      EXPECT_EQ(back.at(t.data.name).dtype, dtype);
      EXPECT_EQ(read(back, t.data.name), t.bytes) << t.data.name;
    }
  }
}

TEST_F(FusedExperts, Mxfp4ValuesAreScaledByTheirBlock) {
  ModelConfig m = shape(ModelType::gpt_oss);
  m.hidden_size = 64, m.intermediate_size = m.moe_intermediate_size = 32, m.head_dim = 6;
  fill(m, DType::bf16);
  std::erase_if(tensors, [](const OwnedTensor& t) {
    return t.data.name.find(".experts.") != std::string::npos && t.data.name.ends_with(".weight");
  });
  for (const int layer : {0, 1})
    for (const auto& [name, outputs, inputs] : {std::tuple{"gate_up_proj", 64, 64}, {"down_proj", 64, 32}}) {
      const std::string tensor = cat("model.layers.", layer, ".mlp.experts.", name);
      tensors.push_back(random_tensor(tensor + "_blocks", DType::u8, {3, outputs, inputs / 32, 16}));
      tensors.push_back(random_tensor(tensor + "_scales", DType::u8, {3, outputs, inputs / 32}));
      for (std::byte& scale : tensors.back().bytes) scale = std::byte(120 + int(scale) % 13);
    }
  const ModelFolder folder(write("mxfp4"));
  constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (const auto& [part, first, step] : {std::tuple{"gate_proj", 0, 2}, {"up_proj", 1, 2}, {"down_proj", 0, 1}}) {
    const std::string experts = "model.layers.1.mlp.experts.", name = cat(experts, "2.", part, ".weight");
    const std::string stored = experts + (step == 2 ? "gate_up_proj" : "down_proj");
    const ModelFolder::Weight& w = folder.at(name);
    ASSERT_EQ(w.dtype, DType::bf16);
    const std::vector<std::byte> got = read(folder, name);
    for (int64_t o = 0; o < w.shape[0]; ++o)
      for (int64_t i = 0; i < w.shape[1]; ++i) {
        const int64_t row = 2 * 64 + first + step * o, at = row * w.shape[1] + i;
        const int pair = int(tensor(stored + "_blocks").bytes[size_t(at / 2)]), code = i % 2 ? pair >> 4 : pair & 15;
        const int scale = int(tensor(stored + "_scales").bytes[size_t(at / 32)]);
        const double expected = std::ldexp(code & 8 ? -kValues[code & 7] : kValues[code & 7], scale - 127);
        bf16 value;
        std::memcpy(&value, got.data() + (o * w.shape[1] + i) * 2, 2);
        ASSERT_EQ(double(to_float(value)), expected) << name << " " << o << " " << i;
      }
  }
  tensor("model.layers.0.mlp.experts.down_proj_scales").bytes[5] = std::byte(255);
  const ModelFolder damaged(write("nan"));
  EXPECT_ERROR(read(damaged, "model.layers.0.mlp.experts.0.down_proj.weight"), "NaN or infinite", "down_proj");
  tensor("model.layers.0.mlp.experts.down_proj_scales") =
      random_tensor("model.layers.0.mlp.experts.down_proj_scales", DType::u8, {3, 32, 2});
  EXPECT_ERROR(ModelFolder(write("misshapen")), "down_proj_scales", "[3, 32, 2]", "[3, 64, 1]");
}

TEST_F(FusedExperts, FormatsOfSingleMatricesAreRefused) {
  fill(shape(ModelType::gpt_oss), DType::f32);
  const ModelFolder folder(write("apart"));
  EXPECT_ERROR(write_hf_folder(folder, at("a"), {.fp8 = Fp8Blocks::channel}), "gpt_oss cannot be written in FP8",
               "one tensor", "f32, bf16 or f16");
  EXPECT_ERROR(write_hf_folder(folder, at("b"), {.nested_nf4 = true}), "gpt_oss cannot be written in bitsandbytes");
}

}  // namespace
}  // namespace athanor::test
