// Laws of model folders: import and export are bit-exact for any file layout; tensors that do not match config.json are
// refused by name; a failed export leaves no files.
#include "convert/hf_folder.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/process_mark.h"
#include "checkpoint/store.h"
#include "convert/end_tokens.h"
#include "convert/gguf_model.h"
#include "convert/new_folder.h"
#include "param/param_store.h"
#include "tests/convert/model_scratch.h"

namespace athanor::test {
namespace {

constexpr ModelType kFamilies[] = {ModelType::gpt2,    ModelType::llama,   ModelType::qwen2,      ModelType::qwen3,
                                   ModelType::mistral, ModelType::mixtral, ModelType::qwen2_moe,  ModelType::qwen3_moe,
                                   ModelType::olmoe,   ModelType::dots1,   ModelType::deepseek_v3};

class HfFolder : public ModelScratch {
 protected:
  std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
};

TEST_F(HfFolder, RoundTripsAreBitExactInEveryFamilyDtypeAndLayout) {
  for (const ModelType family : kFamilies)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const int64_t limit : {int64_t{1500}, int64_t{1} << 30}) {
        const std::string name = cat(name_of(family), "-", dtype, "-", limit);
        SCOPED_TRACE(name);
        fill(shape(family), dtype);
        const ModelFolder in(write(name, limit));
        write_hf_folder(in, at(name + "-imported"), {.max_shard_bytes = 700, .manifest = true});
        EXPECT_TRUE(verify_checkpoint(at(name + "-imported"), Depth::checksums).ok);
        const ModelFolder imported(at(name + "-imported"));
        write_hf_folder(imported, at(name + "-exported"), {.max_shard_bytes = limit});
        expect_same_tensors(at(name + "-exported"));
        EXPECT_EQ(slurp(at(name + "-exported/config.json")),
                  hf_config_json(config, dtype == DType::f32    ? "float32"
                                         : dtype == DType::bf16 ? "bfloat16"
                                                                : "float16"));
      }
}

TEST_F(HfFolder, WideningAndNarrowingRoundTrips) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    fill(shape(ModelType::llama), dtype);
    const std::string wide = cat(dtype, "-wide"), back = cat(dtype, "-back");
    write_hf_folder(ModelFolder(write(cat(dtype, "-in"))), at(wide), {.dtype = DType::f32});
    write_hf_folder(ModelFolder(at(wide)), at(back), {.dtype = dtype});
    expect_same_tensors(at(back));
  }
}

TEST_F(HfFolder, ValuesOutOfRangeOfTheDtypeAreNamed) {
  fill(shape(ModelType::llama), DType::f32);
  const float large = 70000;
  std::memcpy(tensor("model.norm.weight").bytes.data() + 8, &large, 4);
  const ModelFolder model(write("in"));
  EXPECT_ERROR(write_hf_folder(model, at("out"), {.dtype = DType::f16}), "model.norm.weight", "70000", "f16");
  EXPECT_EQ(names_in(dir), std::vector<std::string>{"in"}) << "nothing is left of a failed export";
}

// As in generation: generation_config.json precedes config.json.
TEST_F(HfFolder, EndTokensAreAllThatTheFolderLists) {
  fill(shape(ModelType::llama), DType::f32);
  const std::string folder = write("in"), settings = folder + "/generation_config.json";
  const auto ends = [&] { return end_tokens(ModelFolder(folder)); };
  EXPECT_EQ(ends(), std::vector<int32_t>{});
  std::string text = hf_config_json(config, "float32");
  const std::string key = "\"eos_token_id\": null";
  ASSERT_NE(text.find(key), text.npos) << text;
  text.replace(text.find(key), key.size(), "\"eos_token_id\": [7, 3]");
  spill(folder + "/config.json", text);
  EXPECT_EQ(ends(), (std::vector<int32_t>{7, 3}));
  write_hf_folder(ModelFolder(folder), at("out"), {});
  EXPECT_EQ(end_tokens(ModelFolder(at("out"))), (std::vector<int32_t>{7, 3})) << "import and export keep all";
  spill(settings, "{\"eos_token_id\": null}");
  EXPECT_EQ(ends(), (std::vector<int32_t>{7, 3}));
  spill(settings, "{\"eos_token_id\": 5}");
  EXPECT_EQ(ends(), std::vector<int32_t>{5});
  spill(settings, "{\"eos_token_id\": [5, 6]}");
  EXPECT_EQ(ends(), (std::vector<int32_t>{5, 6}));
  for (const char* wrong : {"-1", "[1.5]", "\"</s>\"", "[4294967296]"}) {
    spill(settings, cat("{\"eos_token_id\": ", wrong, "}"));
    EXPECT_ERROR(ends(), "generation_config.json: eos_token_id: expected a token's id, or a list of ids, got ");
  }
}

TEST_F(HfFolder, PathsWhereNothingCanBeCreatedAreRefused) {
  EXPECT_ERROR(prepare_new_path("/proc/athanor"), "creating /proc");
  EXPECT_ERROR(prepare_new_path(""), "got an empty one");
  prepare_new_path(at("new/out/"));
  EXPECT_TRUE(names_in(at("new")).empty());
}

TEST_F(HfFolder, NewPathsAreRidOfWhatDeadProcessesLeft) {
  const pid_t dead = ::fork();
  if (dead == 0) _exit(0);
  ASSERT_EQ(waitpid(dead, nullptr, 0), dead);
  const std::string mine = process_mark(), host = mine.substr(mine.find('-')), ended = cat(dead, host);
  const std::string away = cat(dead, host == "-00000000" ? "-00000001" : "-00000000");  // of another host
  std::vector<std::string> kept = {cat(".out.", mine, ".0.tmp"),  cat(".out.", ended, ".", mine, ".tmp"),
                                   cat(".other.", ended, ".tmp"), cat(".out.", ended, ".txt"),
                                   cat(".out.", away, ".tmp"),    cat(".out.", away, ".0.tmp"),
                                   cat(".out.", dead, ".tmp"),    ".out.5.tmp"};
  std::sort(kept.begin(), kept.end());
  const std::vector<std::string> left = {cat(".out.", ended, ".tmp"), cat(".out.", ended, ".0.tmp"),
                                         cat(".out.", ended, ".checked"),
                                         cat("..out.", ended, ".checked.", ended, ".tmp")};
  for (const std::vector<std::string>& names : {kept, left})
    for (const std::string& name : names) std::filesystem::create_directories(at(name) + "/weights");
  prepare_new_path(at("out/"));
  EXPECT_EQ(names_in(dir), kept);
}

TEST_F(HfFolder, TensorsWithNonFiniteValuesAreRefused) {
  fill(shape(ModelType::llama), DType::bf16);
  const uint16_t nan = 0x7fc0, minus_inf = 0xff80;
  std::memcpy(tensor("model.norm.weight").bytes.data() + 4, &nan, 2);
  std::memcpy(tensor("model.norm.weight").bytes.data() + 8, &nan, 2);
  std::memcpy(tensor("model.layers.1.mlp.down_proj.weight").bytes.data(), &minus_inf, 2);
  const ModelFolder model(write("in"));
  EXPECT_ERROR(write_hf_folder(model, at("out"), {}), "NaN or infinite", "model.norm.weight: 2 of 12",
               "model.layers.1.mlp.down_proj.weight: 1 of 240");
  EXPECT_EQ(names_in(dir), std::vector<std::string>{"in"});
}

// transformers looks for the single file first.
TEST_F(HfFolder, SingleFileTakesPrecedenceOverShards) {
  fill(shape(ModelType::llama), DType::f32);
  write("in", 1500);
  for (OwnedTensor& t : tensors) t.bytes[1] ^= std::byte{1};
  write("in");
  ASSERT_TRUE(std::filesystem::exists(at("in/model.safetensors.index.json")));
  write_hf_folder(ModelFolder(at("in")), at("out"), {});
  expect_same_tensors(at("out"));
}

TEST_F(HfFolder, LinksMustNotLeaveTheFolder) {
  namespace fs = std::filesystem;
  fill(shape(ModelType::llama), DType::f32);
  spill(at("private"), "{\"secret\": 1}");
  fs::create_symlink(at("private"), write("in") + "/tokenizer_config.json");
  EXPECT_ERROR(write_hf_folder(ModelFolder(at("in")), at("out"), {}), "in/tokenizer_config.json", "leads out",
               at("private"));
  EXPECT_FALSE(fs::exists(at("out")));
  fs::remove(at("in/tokenizer_config.json"));
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::rename(at(cat("in/", name)), at("other"));
    fs::create_symlink(at("other"), at(cat("in/", name)));
    EXPECT_ERROR(ModelFolder(at("in")), name, "leads out");
    fs::remove(at(cat("in/", name)));
    fs::rename(at("other"), at(cat("in/", name)));
  }
  // The hub's cache: snapshots/REVISION is made of links into blobs.
  const std::string model = at("models--a--b");
  fs::create_directories(model + "/snapshots/main");
  fs::create_directories(model + "/blobs");
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::rename(at(cat("in/", name)), cat(model, "/blobs/", name, "-hash"));
    fs::create_symlink(cat("../../blobs/", name, "-hash"), cat(model, "/snapshots/main/", name));
  }
  write_hf_folder(ModelFolder(model + "/snapshots/main"), at("from-hub"), {});
  expect_same_tensors(at("from-hub"));
}

TEST_F(HfFolder, TrustedLinksAreFollowed) {
  namespace fs = std::filesystem;
  fill(shape(ModelType::llama), DType::f32);
  write("in");
  spill(at("in/tokenizer_config.json"), "{}");
  fs::create_directories(at("linked"));
  for (const auto& entry : fs::directory_iterator(at("in")))
    fs::create_symlink(entry.path(), at("linked/") + entry.path().filename().string());
  EXPECT_ERROR(ModelFolder(at("linked")), "leads out", "import --follow-links");
  write_hf_folder(ModelFolder(at("linked"), false, Links::anywhere), at("out"), {});
  expect_same_tensors(at("out"));
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(at("out/tokenizer_config.json"))));
}

TEST_F(HfFolder, OnlyRegularFilesAreRead) {
  fill(shape(ModelType::llama), DType::f32);
  write("in");
  std::filesystem::remove(at("in/config.json"));
  ASSERT_EQ(mkfifo(at("in/config.json").c_str(), 0600), 0);
  EXPECT_ERROR(ModelFolder(at("in")), "config.json", "regular file");
  EXPECT_ERROR(ModelFolder(at("missing")), "missing", "there is no such folder");
}

TEST_F(HfFolder, BareModelNamesAndBuffersAreAccepted) {
  fill(shape(ModelType::gpt2), DType::bf16);
  const auto full = [this] { return ModelFolder(write("full")).weights().size(); }();
  for (OwnedTensor& t : tensors) t.data.name = t.data.name.substr(std::string("transformer.").size());
  add("h.0.attn.bias", DType::f32, {1, 1, 16, 16});
  add("h.1.attn.masked_bias", DType::f32, {});
  EXPECT_EQ(ModelFolder(write("bare")).weights().size(), full);

  fill(shape(ModelType::llama), DType::bf16);
  for (OwnedTensor& t : tensors)
    if (t.data.name != "lm_head.weight") t.data.name = t.data.name.substr(std::string("model.").size());
  add("layers.0.self_attn.rotary_emb.inv_freq", DType::f32, {3});
  EXPECT_EQ(ModelFolder(write("bare-llama")).weights().front().name, "model.embed_tokens.weight");

  add("model.layers.0.input_layernorm.weight", DType::bf16, {12});
  add("model.model.x", DType::bf16, {12});
  EXPECT_ERROR(ModelFolder(write("mixed")), "is no part of the llama model");
}

TEST_F(HfFolder, MissingExtraAndMisshapenTensorsAreNamed) {
  fill(shape(ModelType::qwen2), DType::bf16);
  add("model.layers.0.mlp.gate_proj.bias", DType::bf16, {20});
  EXPECT_ERROR(ModelFolder(write("more")), "'model.layers.0.mlp.gate_proj.bias' is no part of the qwen2 model");
  fill(shape(ModelType::deepseek_v3), DType::f32);
  add("model.layers.2.eh_proj.weight", DType::f32, {12, 24});  // predicts further tokens
  EXPECT_EQ(ModelFolder(write("further")).weights().size() + 1, tensors.size());
  add("model.layers.1.eh_proj.weight", DType::f32, {12, 24});
  EXPECT_ERROR(ModelFolder(write("further and more")), "'model.layers.1.eh_proj.weight' is no part");
  fill(shape(ModelType::qwen2), DType::bf16);
  tensors.pop_back();
  EXPECT_ERROR(ModelFolder(write("less")), "has no tensor", "model.norm.weight");
  fill(shape(ModelType::qwen2), DType::bf16);
  tensor("model.norm.weight").data.shape = Shape{3, 4};
  EXPECT_ERROR(ModelFolder(write("other")), "model.norm.weight has shape [3, 4]", "needs [12]");
  fill(shape(ModelType::llama), DType::bf16);
  tensors.pop_back();
  add("model.norm.weight", DType::f32, {12});
  tensors.back().data.dtype = DType::i32;
  EXPECT_ERROR(ModelFolder(write("ints")), "model.norm.weight is i32", "f32, bf16 or f16");
  make_dirs(at("nothing"));
  EXPECT_ERROR(ModelFolder(at("nothing")), "no config.json");
}

TEST_F(HfFolder, TiedHeadMayBeStoredIfItEqualsTheEmbedding) {
  ModelConfig m = shape(ModelType::llama);
  m.tie_word_embeddings = true;
  fill(m, DType::bf16);
  OwnedTensor head = random_tensor("lm_head.weight", DType::bf16, {35, 12});
  head.bytes = tensor("model.embed_tokens.weight").bytes;
  tensors.push_back(std::move(head));
  EXPECT_EQ(ModelFolder(write("twice")).weights().size(), tensors.size() - 1);
  tensors.back().bytes[100] ^= std::byte{1};
  EXPECT_ERROR(ModelFolder(write("differs")), "tie_word_embeddings", "lm_head.weight is not");
}

TEST_F(HfFolder, DamageOfAnImportedModelIsDetected) {
  fill(shape(ModelType::qwen3), DType::bf16);
  write_hf_folder(ModelFolder(write("in")), at("model"), {.manifest = true});
  std::string bytes = slurp(at("model/model.safetensors"));
  bytes[bytes.size() - 3] = char(bytes[bytes.size() - 3] ^ 4);
  spill(at("model/model.safetensors"), bytes);
  EXPECT_ERROR(ModelFolder(at("model")), "damaged", "model.safetensors");
}

TEST_F(HfFolder, NothingIsOverwrittenOrLeftHalfWritten) {
  fill(shape(ModelType::llama), DType::bf16);
  const ModelFolder model(write("in"));
  write_hf_folder(model, at("out/deep/model/"), {});
  EXPECT_EQ(names_in(at("out/deep")), std::vector<std::string>{"model"});
  EXPECT_ERROR(write_hf_folder(model, at("out/deep/model"), {}), "exists already");
  std::filesystem::create_symlink("nowhere", at("link"));
  EXPECT_ERROR(write_hf_folder(model, at("link"), {}), "exists already");
}

// A run would take such a folder for its own checkpoint, and removes the files inside its checkpoints with them.
TEST_F(HfFolder, NothingIsWrittenUnderTheNameOfACheckpointOfARun) {
  fill(shape(ModelType::llama), DType::bf16);
  const ModelFolder model(write("in"));
  const RunLock run(at("run"));
  for (const char* name : {"step-00000007", "../run/step-00000007/", "diverged-00000007", ".step-00000007.tmp",
                           ".step-00000007.old", "step-00000007/hf"})
    EXPECT_ERROR(write_hf_folder(model, cat(at("run/"), name), {}), "has the name of a checkpoint of the run in");
  EXPECT_ERROR(write_gguf(model, at("run/step-00000007/m.gguf"), {}), "has the name of a checkpoint of the run in");
  EXPECT_TRUE(list_checkpoints(at("run")).empty());
  write_hf_folder(model, at("run/hf"), {});
  write_hf_folder(model, at("exports/step-00000007"), {});
}

// The optimizer sets averages in its first update; a checkpoint written before has zeros.
TEST_F(HfFolder, AveragesBeforeTheFirstUpdateAreTheWeights) {
  fill(shape(ModelType::llama), DType::f32);
  const std::string config_json = slurp(write("in") + "/config.json");
  const std::vector<std::byte> zeros(tensors.front().bytes.size());
  std::vector<CheckpointTensor> weights, averages;
  for (const OwnedTensor& t : tensors) {
    weights.push_back({t.data, std::nullopt});
    averages.push_back({t.data, std::nullopt});
    averages.back().data.name = cat(kEmaState, ".", t.data.name);
    averages.back().data.pieces = {std::span(zeros).first(t.bytes.size())};
  }
  const RunLock run(at("run"));
  for (const int64_t updates : {0, 1}) {
    CheckpointWriter writer(run, 1);
    writer.add_safetensors("model.safetensors", weights);
    writer.add_safetensors("optimizer.safetensors", averages);
    writer.add_text("config.json", config_json);
    writer.add_text("state.json", cat("{\"optimizer_steps\": ", updates, "}"));
    const ModelFolder model(writer.commit(), true);
    std::vector<std::byte> bytes;
    model.read(model.weights().front(), 0, config.vocab_size, bytes);
    EXPECT_EQ(bytes, updates == 0 ? tensors.front().bytes : zeros);
  }
}

TEST_F(HfFolder, TokenizerFilesAreCopied) {
  fill(shape(ModelType::llama), DType::bf16);
  const std::string in = write("in");
  spill(in + "/tokenizer.json", "{\"any\": \"thing\"}");
  spill(in + "/tokenizer_config.json", "{}");
  spill(in + "/README.md", "no");
  write_hf_folder(ModelFolder(in), at("out"), {});
  EXPECT_EQ(slurp(at("out/tokenizer.json")), "{\"any\": \"thing\"}");
  EXPECT_EQ(names_in(at("out")),
            (std::vector<std::string>{"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}));
}

TEST_F(HfFolder, RunRefusesWeightsOfAnotherModel) {
  fill(shape(ModelType::llama), DType::bf16);
  const ModelFolder from(write("in"));
  require_same_model(from, config);
  ModelConfig longer = config;
  longer.max_position_embeddings = 64;
  longer.rope_scaling = {.rope_type = RopeType::linear, .factor = 4};
  require_same_model(from, longer);
  ModelConfig mistral = config;
  mistral.model_type = ModelType::mistral;
  EXPECT_ERROR(require_same_model(from, mistral), "model.model_type: the weights have llama, the run mistral");
  ModelConfig heads = config;
  heads.num_attention_heads = 4, heads.head_dim = 3;
  EXPECT_ERROR(require_same_model(from, heads), "num_attention_heads: the weights have 2, the run 4", "head_dim");
  ModelConfig relu = config;
  relu.hidden_act = Activation::relu2;
  EXPECT_ERROR(require_same_model(from, relu), "model.hidden_act \"silu\" of the weights", "hidden_act \"relu2\"");
}

}  // namespace
}  // namespace athanor::test
