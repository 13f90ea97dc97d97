// The GGUF writer byte by byte on what can be computed by hand; that llama.cpp's own reader agrees is a system test.
#include "convert/gguf_model.h"

#include <cmath>
#include <cstring>

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

TEST_F(Gguf, LayoutIsThatOfTheFormat) {
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

TEST_F(Gguf, BlocksOfEightBits) {
  std::vector<float> values(64, 0.0f);
  for (size_t i = 0; i < 32; ++i) values[i] = float(i) - 15.5f;
  values[0] = -254;  // the unit becomes 2
  std::vector<std::byte> out;
  append_ggml(GgmlType::q8_0, values, "t", out);
  ASSERT_EQ(out.size(), 68u);
  EXPECT_EQ(int(out[0]) | int(out[1]) << 8, 0x4000) << "2 as f16";
  EXPECT_EQ(int8_t(out[2]), -127);
  EXPECT_EQ(int8_t(out[3]), -7) << "-14.5 / 2 = -7.25";
  EXPECT_EQ(int8_t(out[2 + 18]), 1) << "2.5 / 2 = 1.25";
  EXPECT_EQ(int8_t(out[2 + 16]), 0) << "0.5 / 2 = 0.25";
  for (size_t i = 34; i < 68; ++i) EXPECT_EQ(int(out[i]), 0) << "a block of zeros";
  values[5] = NAN;
  EXPECT_ERROR(append_ggml(GgmlType::q8_0, values, "the tensor", out), "the tensor", "nan");
}

TEST_F(Gguf, EveryFamilyIsWritten) {
  for (const ModelType family :
       {ModelType::gpt2, ModelType::llama, ModelType::mistral, ModelType::qwen2, ModelType::qwen3})
    for (const GgmlType type : {GgmlType::f32, GgmlType::f16, GgmlType::bf16, GgmlType::q8_0}) {
      fill(shape(family), DType::bf16);
      const std::string name = cat(name_of(family), int(type));
      write_gguf(ModelFolder(write(name)), at(name + ".gguf"), type);
      const std::string bytes = slurp(at(name + ".gguf"));
      EXPECT_EQ(at_byte<uint64_t>(bytes, 8), tensors.size()) << name;
      EXPECT_NE(bytes.find("blk.1.ffn_down.weight"), bytes.npos) << name;
    }
  EXPECT_ERROR(write_gguf(ModelFolder(at("gpt20")), at("gpt20.gguf"), GgmlType::f32), "exists already");
}

TEST_F(Gguf, WhatLlamaCppCannotComputeIsRefused) {
  ModelConfig m = shape(ModelType::qwen2);
  m.rope_scaling = {.rope_type = RopeType::llama3, .factor = 2, .original_max_position_embeddings = 8};
  fill(m, DType::f32);
  EXPECT_ERROR(write_gguf(ModelFolder(write("a")), at("a.gguf"), GgmlType::f32), "llama3", "qwen2");
  m.rope_scaling = {
      .rope_type = RopeType::yarn, .factor = 2, .original_max_position_embeddings = 8, .attention_factor = 1.5};
  fill(m, DType::f32);
  EXPECT_ERROR(write_gguf(ModelFolder(write("b")), at("b.gguf"), GgmlType::f32), "attention_factor");
  m.rope_scaling.attention_factor = 0;
  m.rope_scaling.truncate = false;
  fill(m, DType::f32);
  EXPECT_ERROR(write_gguf(ModelFolder(write("c")), at("c.gguf"), GgmlType::f32), "truncate");
  EXPECT_FALSE(std::filesystem::exists(at("c.gguf")));
}

}  // namespace
}  // namespace athanor::test
