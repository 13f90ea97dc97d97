// Laws of sharded weights: the plan holds every tensor once and obeys the limit, the index gives the same bytes, and no
// index refers to files outside its folder.
#include "checkpoint/weights.h"

#include "base/checksum.h"
#include "checkpoint/manifest.h"
#include "tests/checkpoint/scratch.h"

namespace athanor::test {
namespace {

class Weights : public Scratch {
 protected:
  std::vector<OwnedTensor> owned;
  std::vector<TensorData> data;
  void SetUp() override {
    Scratch::SetUp();
    for (int i = 0; i < 7; ++i) owned.push_back(random_tensor(cat("t", i), DType::f32, {i, 10}));
    for (const auto& t : owned) data.push_back(t.data);
  }
  void write(std::span<const WeightShard> shards) {
    for (const WeightShard& s : shards) {
      std::vector<TensorData> part;
      for (size_t i : s.tensors) part.push_back(data[i]);
      save_safetensors(at(s.file), part);
    }
  }
  void expect_all_tensors(const std::string& path) {
    const WeightFiles files(path);
    EXPECT_EQ(files.tensors().size(), owned.size());
    for (const auto& t : owned) {
      const auto place = files.at(t.data.name);
      const auto got = place.file->data(*place.entry);
      EXPECT_TRUE(std::equal(got.begin(), got.end(), t.bytes.begin(), t.bytes.end())) << t.data.name;
    }
  }
};

TEST_F(Weights, ShardPlanHoldsEveryTensorOnceWithinTheLimit) {
  for (int64_t limit : {1, 40, 100, 200, 239, 240, 241, 500, 839, 840, 100000}) {
    SCOPED_TRACE(limit);
    std::vector<int> seen(data.size());
    const auto shards = plan_weight_shards(data, limit);
    for (const WeightShard& s : shards) {
      int64_t bytes = 0;
      for (size_t i : s.tensors) ++seen[i], bytes += int64_t(owned[i].bytes.size());
      EXPECT_TRUE(bytes <= limit || std::count_if(s.tensors.begin(), s.tensors.end(),
                                                  [&](size_t i) { return !owned[i].bytes.empty(); }) == 1)
          << bytes;
      EXPECT_FALSE(s.tensors.empty());
    }
    EXPECT_EQ(seen, std::vector<int>(data.size(), 1));
  }
}

TEST_F(Weights, ShardNamesFollowHuggingFace) {
  const auto one = plan_weight_shards(data, 1 << 20);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].file, "model.safetensors");
  const auto many = plan_weight_shards(data, 300);
  ASSERT_EQ(many.size(), 4u);
  EXPECT_EQ(many[0].file, "model-00001-of-00004.safetensors");
  EXPECT_EQ(many[3].file, "model-00004-of-00004.safetensors");
  EXPECT_EQ(plan_weight_shards({}, 10).size(), 1u);
}

TEST_F(Weights, FolderSingleFileAndShardsGiveTheSameBytes) {
  write(plan_weight_shards(data, 1 << 20));
  expect_all_tensors(dir);
  expect_all_tensors(at("model.safetensors"));
  std::filesystem::remove(at("model.safetensors"));
  const auto shards = plan_weight_shards(data, 300);
  write(shards);
  const std::string index = weight_index_json(shards, data);
  EXPECT_NE(index.find("\"total_size\": 840"), index.npos);
  spill(at("model.safetensors.index.json"), index);
  expect_all_tensors(dir);
  save_safetensors(at("model.safetensors"), {});
  EXPECT_TRUE(WeightFiles(dir).tensors().empty()) << "the single file is read, as by transformers";
  Manifest of_shards;
  of_shards.files.push_back(
      {.name = "model.safetensors.index.json", .bytes = int64_t(index.size()), .xxh3 = xxh3_hex(index)});
  spill(at("manifest.json"), manifest_json(of_shards));
  expect_all_tensors(dir);  // no verification has read the single file
}

TEST_F(Weights, BareModelNamesGetTheirPrefix) {
  const auto names = [&](std::vector<std::string> given) {
    std::vector<OwnedTensor> own;
    std::vector<TensorData> all;
    for (const auto& name : given) own.push_back(random_tensor(name, DType::f32, {2}));
    for (const auto& t : own) all.push_back(t.data);
    std::filesystem::remove(at("model.safetensors"));
    save_safetensors(at("model.safetensors"), all);
    std::string text;
    const WeightFiles files(dir);
    for (const auto& [name, place] : files.tensors()) text += cat(name, "=", place.entry->name, " ");
    return text;
  };
  EXPECT_EQ(names({"wte.weight", "h.0.ln_1.bias", "h.0.attn.bias", "h.0.attn.masked_bias"}),
            "transformer.h.0.ln_1.bias=h.0.ln_1.bias transformer.wte.weight=wte.weight ");
  EXPECT_EQ(names({"embed_tokens.weight", "lm_head.weight", "layers.3.self_attn.rotary_emb.inv_freq"}),
            "lm_head.weight=lm_head.weight model.embed_tokens.weight=embed_tokens.weight ");
  EXPECT_EQ(names({"x", "model.embed_tokens.weight"}), "model.embed_tokens.weight=model.embed_tokens.weight x=x ");
}

TEST_F(Weights, IndexMustMatchTheFiles) {
  const auto shards = plan_weight_shards(data, 300);
  write(shards);
  auto index = parse_weight_index(weight_index_json(shards, data), "i");
  EXPECT_EQ(index.size(), data.size());
  const std::string name = at("model.safetensors.index.json");
  spill(name, R"({"weight_map":{"t1":"model-00004-of-00004.safetensors","t2":"model-00001-of-00004.safetensors"}})");
  EXPECT_ERROR(WeightFiles{dir}, "places the tensor 't1' in model-00004", "does not contain it");
  spill(name, R"({"weight_map":{"nope":"model-00001-of-00004.safetensors"}})");
  EXPECT_ERROR(WeightFiles{dir}, "'nope'", "does not contain it");
  spill(name, R"({"weight_map":{"t1":"absent.safetensors"}})");
  EXPECT_ERROR(WeightFiles{dir}, "absent.safetensors", "No such file");
  std::filesystem::copy_file(at(shards[0].file), at("copy.safetensors"));
  spill(name, cat(R"({"weight_map":{"t1":"copy.safetensors","t2":")", shards[0].file, "\"}}"));
  EXPECT_ERROR(WeightFiles{dir}, "is in", "copy.safetensors", shards[0].file);
  spill(name, weight_index_json(shards, data));
  EXPECT_ERROR(WeightFiles{dir}.at("nope"), "no tensor 'nope'", "7 others");
  EXPECT_ERROR(WeightFiles{at("nothing")}, at("nothing"), "No such file");
}

TEST_F(Weights, HostileIndexesAreRefused) {
  const struct {
    std::string text, error;
  } kCases[] = {
      {"", "not valid JSON"},
      {"[]", "weight_map"},
      {"{}", "weight_map"},
      {R"({"weight_map":[]})", "weight_map"},
      {R"({"weight_map":{"a":1}})", "expected a file name"},
      {R"({"weight_map":{"a":"../model.safetensors"}})", "refused"},
      {R"({"weight_map":{"a":"/etc/passwd"}})", "refused"},
      {R"({"weight_map":{"a":"sub/model.safetensors"}})", "refused"},
      {R"({"weight_map":{"a":".."}})", "refused"},
      {R"({"weight_map":{"a":""}})", "refused"},
      {R"({"weight_map":{"a":"x\u0000y"}})", "refused"},
      {R"({"weight_map":{"a":"x","a":"y"}})", "'a' appears twice"},
      {R"({"weight_map":{"a":"x"}} x)", "not valid JSON"},
      {std::string("{}\0", 3), "zero byte"},
      {std::string(100000, '['), "nested deeper than 32"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.text.substr(0, 60));
    EXPECT_ERROR(parse_weight_index(c.text, "index.json"), "index.json", c.error);
  }
}

}  // namespace
}  // namespace athanor::test
