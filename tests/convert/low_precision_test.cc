// Models in FP8: values and scales of files against values computed here, what is not in FP8, and what is refused.
#include "convert/low_precision.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "convert/floats.h"
#include "convert/hf_folder.h"
#include "tests/convert/model_scratch.h"

namespace athanor::test {
namespace {

class LowPrecision : public ModelScratch {
 protected:
  // Larger than a block of scales, and no multiple of it.
  static ModelConfig wide() {
    ModelConfig m = shape(ModelType::llama);
    m.hidden_size = 136, m.intermediate_size = 260, m.num_attention_heads = 2, m.head_dim = 68;
    complete(m);
    validate(m);
    return m;
  }
  static std::vector<float> values(const ModelFolder& model, const std::string& name) {
    std::vector<std::byte> bytes;
    std::vector<float> out;
    const auto& weight = model.at(name);
    model.read(weight, 0, weight.shape[0], bytes);
    to_floats(bytes, weight.dtype, out);
    // From the middle of one row to that of another.
    std::vector<float> run;
    const auto all = int64_t(out.size());
    const int64_t cols = all / weight.shape[0], begin = std::min(all, cols + 3), end = std::min(all, 131 * cols + 130);
    model.read_run(weight, begin, end, bytes);
    to_floats(bytes, weight.dtype, run);
    EXPECT_EQ(run, std::vector(out.begin() + begin, out.begin() + end)) << name;
    return out;
  }
  std::vector<float> floats(const WeightFiles& files, const std::string& name) {
    const auto [file, entry] = files.at(name);
    std::vector<std::byte> bytes(size_t(entry->bytes));
    file->read_part(*entry, 0, bytes);
    std::vector<float> out;
    to_floats(bytes, DType::f32, out);
    return out;
  }
};

struct Form {
  Fp8Blocks blocks;
  const char* suffix;
  int64_t rows, cols;  // size of a block
};
const Form kForms[] = {{Fp8Blocks::tensor, "_scale", 1 << 20, 1 << 20},
                       {Fp8Blocks::channel, "_scale", 1, 1 << 20},
                       {Fp8Blocks::block, "_scale_inv", 128, 128}};

TEST_F(LowPrecision, ScalesMapBlockAmaxToTheFormatMaximum) {
  fill(wide(), DType::f32);
  const std::string name = "model.layers.1.mlp.up_proj.weight";  // [260, 136]
  OwnedTensor& matrix = tensor(name);
  const auto put = [&](int64_t row, int64_t col, float value) {
    std::memcpy(matrix.bytes.data() + size_t(row * 136 + col) * 4, &value, 4);
  };
  put(3, 5, -7);
  put(130, 130, 1e-30f);
  for (int64_t row = 256; row < 260; ++row)
    for (int64_t col = 0; col < 136; ++col) put(row, col, 0);
  const ModelFolder in(write("in"));
  const std::vector<float> want = values(in, name);
  for (const Form& form : kForms) {
    const std::string out = at(cat("out", form.suffix, form.rows));
    write_hf_folder(in, out, {.dtype = DType::bf16, .fp8 = form.blocks});
    const WeightFiles files(out);
    EXPECT_EQ(files.at(name).entry->dtype, "F8_E4M3");
    const std::vector<float> scales = floats(files, name + form.suffix);
    std::map<std::pair<int64_t, int64_t>, float> amax;
    for (int64_t i = 0; i < 260 * 136; ++i) {
      float& most = amax[{i / 136 / form.rows, i % 136 / form.cols}];
      most = std::max(most, std::abs(want[size_t(i)]));
    }
    ASSERT_EQ(scales.size(), amax.size());
    size_t at = 0;
    for (const auto& [block, most] : amax)  // a block of zeros has the scale 1
      EXPECT_NEAR(scales[at++], most > 0 ? most / 448 : 1, most / 448 * 1e-6) << block.first << " " << block.second;

    const ModelFolder back(out);
    EXPECT_EQ(back.at(name).dtype, DType::f32);
    const std::vector<float> got = values(back, name);
    for (int64_t i = 0; i < 260 * 136; ++i) {
      const float w = want[size_t(i)], scale = amax[{i / 136 / form.rows, i % 136 / form.cols}] / 448;
      // Half a step: 3 mantissa bits, and the smallest subnormal is 2^-9.
      ASSERT_LE(std::abs(got[size_t(i)] - w), std::max(std::abs(w) / 16, scale * 0x1p-10f) * 1.0001f) << i;
    }
    std::vector<float> norm = values(in, "model.norm.weight");
    for (float& x : norm) x = to_float(from_float<bf16>(x));
    EXPECT_EQ(values(back, "model.norm.weight"), norm);
    EXPECT_EQ(back.at("model.embed_tokens.weight").dtype, DType::bf16);
    EXPECT_FALSE(back.at("model.embed_tokens.weight").fp8);
  }
}

TEST_F(LowPrecision, ConfigNamesTheQuantizationMethod) {
  fill(wide(), DType::bf16);
  const ModelFolder in(write("in"));
  write_hf_folder(in, at("block"), {.dtype = DType::bf16, .fp8 = Fp8Blocks::block});
  write_hf_folder(in, at("channel"), {.dtype = DType::bf16, .fp8 = Fp8Blocks::channel, .max_shard_bytes = 30000});
  const std::string block = slurp(at("block/config.json")), channel = slurp(at("channel/config.json"));
  expect_parts(block, {"\"quant_method\": \"fp8\"", "\"weight_block_size\""});
  expect_parts(channel, {"\"format\": \"float-quantized\"", "\"strategy\": \"channel\""});
  EXPECT_TRUE(std::filesystem::exists(at("channel/model.safetensors.index.json")));
  EXPECT_EQ(values(ModelFolder(at("channel")), "model.layers.0.self_attn.q_proj.weight").size(), 136 * 136u);
}

TEST_F(LowPrecision, RoutersStayInFloatsAndExpertsDoNot) {
  fill(shape(ModelType::olmoe), DType::bf16);
  const ModelFolder in(write("olmoe"));
  write_hf_folder(in, at("block"), {.dtype = DType::bf16, .fp8 = Fp8Blocks::block});
  write_hf_folder(in, at("ints"), {.dtype = DType::bf16, .ints = IntGroups{}});
  for (const char* name : {"block", "ints"}) {
    const ModelFolder out(at(name));
    EXPECT_EQ(values(out, "model.layers.1.mlp.gate.weight"), values(in, "model.layers.1.mlp.gate.weight"));
    const auto& expert = out.at("model.layers.1.mlp.experts.2.down_proj.weight");
    EXPECT_TRUE(expert.fp8 || expert.ints) << name;
    EXPECT_NE(slurp(at(cat(name, "/config.json"))).find(R"("model.layers.1.mlp.gate")"), std::string::npos) << name;
  }
}

// A model in FP8 is converted to plain floats: its dequantized values.
TEST_F(LowPrecision, DequantizedExportHasTheSameValues) {
  fill(wide(), DType::f32);
  write_hf_folder(ModelFolder(write("in")), at("fp8"), {.dtype = DType::bf16, .fp8 = Fp8Blocks::block});
  const ModelFolder fp8(at("fp8"));
  write_hf_folder(fp8, at("plain"), {.manifest = true});
  const ModelFolder plain(at("plain"));
  for (const auto& weight : fp8.weights()) EXPECT_EQ(values(plain, weight.name), values(fp8, weight.name));
  EXPECT_EQ(slurp(at("plain/config.json")).find("quantization_config"), std::string::npos);
}

TEST_F(LowPrecision, UnsupportedInputsAreNamed) {
  fill(shape(ModelType::gpt2), DType::f32);
  const ModelFolder gpt2(write("gpt2"));
  EXPECT_ERROR(write_hf_folder(gpt2, at("out"), {.fp8 = Fp8Blocks::block}), "gpt2", "FP8");
  fill(shape(ModelType::olmoe), DType::bf16);
  const ModelFolder experts(write("olmoe"));
  EXPECT_ERROR(write_hf_folder(experts, at("out"), {.nested_nf4 = true}), "experts", "NF4", "bf16");
  EXPECT_FALSE(std::filesystem::exists(at("out")));

  fill(shape(ModelType::llama), DType::f32);
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  const Shape matrix = tensor(name).data.shape;
  std::erase_if(tensors, [&](const OwnedTensor& t) { return t.data.name == name; });
  tensors.push_back(random_tensor(name, DType::f8_e4m3, matrix));
  for (std::byte& code : tensors.back().bytes) code &= std::byte{0x3f};  // none is NaN
  EXPECT_ERROR(ModelFolder(write("bare")), name, "f8_e4m3", "_scale_inv");
  tensors.push_back(random_tensor(name + "_scale", DType::f32, {3}));
  EXPECT_ERROR(ModelFolder(write("odd")), name, "its scales");
  tensors.pop_back();
  add(name + "_scale", DType::f32, {1});
  EXPECT_EQ(values(ModelFolder(write("good")), name).size(), size_t(matrix.numel()));
  const float nan = std::nanf("");
  std::memcpy(tensor(name + "_scale").bytes.data(), &nan, 4);
  const ModelFolder bad(write("nan"));
  EXPECT_ERROR(values(bad, name), name, "NaN or infinite");
}

}  // namespace
}  // namespace athanor::test
