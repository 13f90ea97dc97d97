// Overrides of the command line, configuration files and model files on disk.
#include "tests/config/helpers.h"
#include "tests/files.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

class Folder {
 public:
  std::string write(const std::string& name, const std::string& text) const {
    write_bytes(dir_ / name, text);
    return dir_ / name;
  }
  const std::string& path() const { return dir_.path(); }

 private:
  testing::TempDir dir_;
};

TEST(Override, ValuesAreParsedAsJsonOrText) {
  const Config c =
      parse(small_config(), {"seed=7", "learning_rate=2e-4", "save=runs/my run", "logging.tensorboard=false",
                             "schedule.lr_decay_style=linear", "micro_batch_size=auto", "train_data=[\"x\",\"y\"]",
                             "profile=a=b", "checkpoint.interval_minutes=1.5", "load=\"none\""});
  EXPECT_EQ(c.seed, 7);
  EXPECT_EQ(c.learning_rate, 2e-4);
  EXPECT_EQ(c.save, "runs/my run");
  EXPECT_FALSE(c.tensorboard);
  EXPECT_EQ(c.lr_decay_style, DecayStyle::linear);
  EXPECT_EQ(c.train_data.size(), 2u);
  EXPECT_EQ(c.profile, "a=b");
  EXPECT_EQ(c.load, "none");
}

TEST(Override, TakesPrecedenceUnderEveryAlias) {
  EXPECT_EQ(parse(small_config("\"clip_grad\": 3,\n"), {"max_norm=4"}).clip_grad, 4.0);
  EXPECT_EQ(parse(small_config(), {"seed=1", "seed=2"}).seed, 2);
  EXPECT_EQ(parse(small_config(), {"model.hidden_size=128"}).model.hidden_size, 128);  // the file says n_embd
  EXPECT_EQ(parse(small_config(), {"train_tokens=257"}).train_iters, 2);               // instead of train_iters
  EXPECT_EQ(parse(small_config(), {"save="}).save, "");
}

TEST(Override, ErrorsNameTheOverride) {
  expect_parts(error_in(small_config(), {"seed"}), {"--set seed", "key=value"});
  expect_parts(error_in(small_config(), {"=3"}), {"key=value"});
  expect_parts(error_in(small_config(), {"sead=3"}), {"--set sead: unknown key", "\"seed\"?"});
  expect_parts(error_in(small_config(), {"seed=x"}), {"--set seed: seed: expected an integer", "\"x\""});
  expect_parts(error_in(small_config(), {"seed.x=3"}), {"--set seed.x: seed: expected an integer", "got an object"});
  expect_parts(error_in(small_config("\"seed\": 3,\n"), {"seed.x=3"}), {"--set seed.x", "seed is not an object"});
  expect_parts(error_in(small_config(), {"train_data=[\"a\""}), {"--set train_data", "not valid JSON"});
  expect_parts(error_in(small_config(), {"model.n_layer=0"}), {"--set model.n_layer", "1 ... 65536"});
  expect_parts(error_in(small_config(), {std::string("a.a.a.a.a.a.a.a=1")}), {"deep"});
  std::string deep;
  for (int i = 0; i < 10000; ++i) deep += "a.";
  expect_parts(error_in(small_config(), {deep + "b=1"}), {"deep"});
}

TEST(Override, CanSetRopeScalingKeys) {
  const std::string model = R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 64, "rope_parameters":
    {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}})";
  const Config theta = parse(small_config("", model), {"model.rope_theta=7000"});
  EXPECT_EQ(theta.model.rope_theta, 7000.0);
  EXPECT_EQ(theta.model.rope_scaling.factor, 2.0);
  const Config factor = parse(small_config("", model), {"model.rope_scaling.factor=3"});
  EXPECT_EQ(factor.model.rope_scaling.factor, 3.0);
  EXPECT_EQ(factor.model.rope_theta, 5000.0);
  EXPECT_EQ(parse(small_config("", model), {"model.rope_scaling=null"}).model.rope_scaling.rope_type, RopeType::none);
}

TEST(Override, SlidingWindowReplacesUseSlidingWindowOfTheModel) {
  const std::string model = R"({"model_type": "qwen2", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 64, "sliding_window": 8,
    "use_sliding_window": false, "max_window_layers": 2, "layer_types": ["full_attention", "full_attention"]})";
  EXPECT_EQ(parse(small_config("", model)).model.sliding_window, 0);
  EXPECT_EQ(parse(small_config("", model), {"model.sliding_window=16"}).model.sliding_window, 16);
}

TEST(Files, ModelPathIsRelativeToTheFileThatNamesIt) {
  Folder folder;
  folder.write("models/small/config.json", kSmallModel);
  const std::string path = folder.write("run.json", small_config("", "\"models/small/config.json\""));
  EXPECT_EQ(load_config(path).model.hidden_size, 64);
  const std::vector<std::string> shrink{"model.n_layer=1"};
  EXPECT_EQ(load_config(path, shrink).model.num_hidden_layers, 1);
  EXPECT_EQ(load_config(path, shrink).model.hidden_size, 64);
  const std::vector<std::string> other{cat("model=", folder.path(), "/models/small")};  // a folder holds config.json
  EXPECT_EQ(load_config(path, other).model.hidden_size, 64);
  EXPECT_EQ(load_model_config(folder.path() + "/models/small/config.json").vocab_size, 257);
}

TEST(Files, ErrorsNameTheFile) {
  Folder folder;
  expect_parts(error_of([&] { load_config(folder.path() + "/none.json"); }), {"none.json", "No such file"});
  expect_parts(error_of([&] { load_config(folder.path()); }), {folder.path(), "found a folder"});
  const std::string path = folder.write("run.json", small_config("", "\"none/config.json\""));
  expect_parts(error_of([&] { load_config(path); }), {"run.json:2: model: there is no file", "none/config.json"});
  folder.write("broken.json", "{\n\"model_type\": \"gpt2\",\n\"vocab_size\": 0}");
  const std::string names_broken = folder.write("b.json", small_config("", "\"broken.json\""));
  folder.write("nameless.json", "{\"vocab_size\": 3, \"hidden_act\": \"silu\"}");  // not judged as a gpt2
  const std::string names_nameless = folder.write("n.json", small_config("", "\"nameless.json\""));
  expect_parts(error_of([&] { load_config(names_nameless); }), {"nameless.json:1: model.model_type is required"});
  expect_parts(error_of([&] { load_config(names_broken); }), {"broken.json:3: model.vocab_size"});
}

// A run that starts from weights gets their shape, wherever init_from is given, and another shape only if `model` sets
// one.
TEST(Files, InitFromSetsTheModel) {
  Folder folder;
  folder.write("weights/config.json", kSmallModel);
  const std::string weights = folder.path() + "/weights";
  const std::string text =
      R"({"train_data": "a.bin", "train_iters": 10, "global_batch_size": 8, "learning_rate": 1e-3})";
  EXPECT_EQ(parse(text, {"model.norm_eps=0.5", "init_from=" + weights}).model.vocab_size, 257);
  EXPECT_EQ(parse(text, {"model.norm_eps=0.5", "init_from=" + weights}).model.norm_eps, 0.5);
  const std::string own = R"({"model_type": "gpt2", "vocab_size": 99, "n_embd": 64, "n_layer": 2, "n_head": 4,
      "n_positions": 32})";
  EXPECT_EQ(parse(small_config("", own), {"init_from=" + weights}).model.vocab_size, 99);
  expect_parts(error_in(text, {"init_from=" + weights + "/nowhere"}), {"init_from", "nowhere"});
  expect_parts(error_in(text, {"init_from=" + weights + "/config.json"}), {"init_from", "is a file", "athanor import"});
  expect_parts(error_in(text), {"model"});
  folder.write("run/step-00000010/config.json", kSmallModel);
  folder.write("run/latest", "step-00000010\n");
  EXPECT_EQ(parse(text, {"init_from=" + folder.path() + "/run"}).model.vocab_size, 257) << "the folder of a run";
  // PEFT's folder of adapters has the shape of its base, which it names from the working folder or from its own.
  folder.write("peft/adapter_config.json", "{\"r\": 4, \"base_model_name_or_path\": \"" + weights + "\"}");
  EXPECT_EQ(parse(text, {"init_from=" + folder.path() + "/peft"}).model.vocab_size, 257);
  folder.write("peft/adapter_config.json", R"({"base_model_name_or_path": "../weights"})");
  EXPECT_EQ(parse(text, {"init_from=" + folder.path() + "/peft"}).model.vocab_size, 257);
  folder.write("peft/adapter_config.json", R"({"base_model_name_or_path": "."})");  // names itself
  expect_parts(error_in(text, {"init_from=" + folder.path() + "/peft"}), {"init_from", "there is no file"});
}

}  // namespace
}  // namespace athanor
