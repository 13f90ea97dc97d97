// Packed integers byte by byte on what can be computed by hand, and back.
#include "convert/int_weights.h"

#include "convert/floats.h"
#include "convert/hf_folder.h"
#include "tests/convert/model_scratch.h"
#include "tests/larger_error.h"

namespace athanor::test {
namespace {

class IntWeights : public ModelScratch {
 protected:
  static constexpr const char* kMatrix = "model.layers.0.self_attn.o_proj.weight";
  static ModelConfig wide() {
    ModelConfig m = shape(ModelType::llama);
    m.hidden_size = 16, m.head_dim = 8, m.intermediate_size = 24;
    return m;
  }
  // The first row of a matrix; the others keep their random values.
  void set_row(const std::vector<float>& values) {
    std::memcpy(tensor(kMatrix).bytes.data(), values.data(), values.size() * sizeof(float));
  }
  std::vector<float> floats_of(const ModelFolder& model, const char* name) {
    const auto& w = model.at(name);
    std::vector<std::byte> bytes;
    std::vector<float> values;
    model.read(w, 0, w.shape[0], bytes);
    to_floats(bytes, w.dtype, values);
    return values;
  }
};

TEST_F(IntWeights, PackedValuesMatchTheFormat) {
  fill(wide(), DType::f32);
  // Two groups of 8: scale 7.5 / 7.5 = 1, and 0.
  set_row({-7.5f, 7.5f, 0.5f, 1.5f, -1.5f, 2, 3, -8.0f / 16, 0, 0, 0, 0, 0, 0, 0, 0});
  write_hf_folder(ModelFolder(write("model")), at("out"), {.dtype = DType::bf16, .ints = IntGroups{4, 8}});
  const WeightFiles files(at("out"));
  const auto [packed_file, packed] = files.at(packed_name(kMatrix));
  EXPECT_EQ(packed->dtype, "I32");
  EXPECT_EQ(packed->checked_shape(), (Shape{16, 2}));
  uint32_t words[2];
  std::memcpy(words, packed_file->data(*packed).data(), sizeof words);
  // -8 (half to even) 7 (limit) 0 2 -2 2 3 0, plus 8, the first lowest.
  EXPECT_EQ(words[0], 0x8ba6a8f0u);
  EXPECT_EQ(words[1], 0x88888888u);
  const auto [scale_file, scale] = files.at(packed_scale_name(kMatrix));
  EXPECT_EQ(scale->dtype, "BF16");
  EXPECT_EQ(scale->checked_shape(), (Shape{16, 2}));
  uint16_t halves[2];
  std::memcpy(halves, scale_file->data(*scale).data(), sizeof halves);
  EXPECT_EQ(halves[0], 0x3f80) << "1";
  EXPECT_EQ(halves[1], 0x3c00) << "zeros: the step of bf16 at 1";
  int64_t sizes[2];
  const auto [shape_file, stored] = files.at(packed_shape_name(kMatrix));
  std::memcpy(sizes, shape_file->data(*stored).data(), sizeof sizes);
  EXPECT_EQ(sizes[0], 16);
  EXPECT_EQ(sizes[1], 16);
  EXPECT_FALSE(files.tensors().contains(kMatrix));
  const std::string json = slurp(at("out") + "/config.json");
  for (const char* part : {"pack-quantized", "\"num_bits\": 4", "\"group_size\": 8", "lm_head"})
    EXPECT_NE(json.find(part), json.npos) << part;
}

TEST_F(IntWeights, FoldersRoundTripWithinHalfAQuantizationStep) {
  for (const auto& [bits, group] : {std::pair{4, 8}, {8, 8}, {8, 0}, {4, 0}}) {
    fill(wide(), DType::f32);
    const ModelFolder original(write(cat("model", bits, group)));
    const std::string out = at(cat("out", bits, group));
    write_hf_folder(original, out, {.dtype = DType::bf16, .ints = IntGroups{bits, group}});
    const ModelFolder read(out);
    ASSERT_EQ(read.weights().size(), original.weights().size());
    EXPECT_EQ(read.at(kMatrix).ints->group, group);
    const std::vector<float> a = floats_of(original, kMatrix), b = floats_of(read, kMatrix);
    double worst = 0;
    for (size_t i = 0; i < a.size(); ++i) worst = testing::larger_error(worst, std::fabs(double(a[i] - b[i])));
    const double step = 0.5 / (((1 << bits) - 1) / 2.0);
    EXPECT_LE(worst, step * 0.51 + 0.5 / 256) << bits;
    EXPECT_GT(worst, 0) << bits;
    std::vector<std::byte> part;
    std::vector<float> values;
    read.read_run(read.at(kMatrix), 5, 40, part);
    to_floats(part, DType::f32, values);
    EXPECT_TRUE(std::equal(values.begin(), values.end(), b.begin() + 5, b.begin() + 40));
  }
}

TEST_F(IntWeights, UnsupportedModelsAreRefused) {
  fill(wide(), DType::f32);
  const ModelFolder llama(write("llama"));
  EXPECT_ERROR(write_hf_folder(llama, at("a"), {.dtype = DType::bf16, .ints = IntGroups{4, 128}}), "q_proj", "16",
               "--group-size 128");
  fill(shape(ModelType::gpt2), DType::f32);
  const ModelFolder gpt2(write("gpt2"));
  EXPECT_ERROR(write_hf_folder(gpt2, at("a"), {.dtype = DType::bf16, .ints = IntGroups{4, 4}}), "gpt2", "integers");
  EXPECT_FALSE(std::filesystem::exists(at("a")));
}

}  // namespace
}  // namespace athanor::test
