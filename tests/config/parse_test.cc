// Reading JSON: exact types, ranges, lines in messages, aliases, hostile text.
#include <fstream>
#include <random>

#include "tests/config/helpers.h"
#include "tests/files.h"

namespace athanor {
namespace {

TEST(Parse, SetsDefaultsAndDerivedValues) {
  const Config c = parse(small_config());
  EXPECT_EQ(c.seed, 1234);
  EXPECT_EQ(c.seq_length, 32);       // max_position_embeddings
  EXPECT_EQ(c.lr_decay_iters, 10);   // train_iters
  EXPECT_DOUBLE_EQ(c.min_lr, 1e-4);  // a tenth of learning_rate
  EXPECT_EQ(c.micro_batch_size, 0);  // auto
  EXPECT_EQ(c.precision, Precision::bf16);
  EXPECT_EQ(c.model.intermediate_size, 256);
  EXPECT_EQ(c.model.head_dim, 16);
  EXPECT_TRUE(c.model.tie_word_embeddings);
  ASSERT_EQ(c.train_data.size(), 1u);
  EXPECT_EQ(c.train_data[0].path, "a.bin");
}

TEST(Parse, ReadsEveryKindOfValue) {
  const Config c = parse(small_config(
      R"("micro_batch_size": 4, "logging": {"tensorboard": false}, "clip_grad": 2, "schedule": {"lr_decay_style": "WSD"},
         "save": "runs/x",
"valid_data": ["v1.bin", {"path": "v2/*.bin", "weight": 2.5, "dtype": "uint32"}],
)"));
  EXPECT_EQ(c.micro_batch_size, 4);
  EXPECT_FALSE(c.tensorboard);
  EXPECT_EQ(c.clip_grad, 2.0);
  EXPECT_EQ(c.lr_decay_style, DecayStyle::wsd);
  EXPECT_EQ(c.lr_wsd_decay_iters, 4);
  EXPECT_EQ(c.save, "runs/x");
  ASSERT_EQ(c.valid_data.size(), 2u);
  EXPECT_EQ(c.valid_data[1].path, "v2/*.bin");
  EXPECT_EQ(c.valid_data[1].weight, 2.5);
  EXPECT_EQ(c.valid_data[1].dtype, TokenDtype::uint32);
}

TEST(Parse, UnknownKeyNamesLineAndNearest) {
  expect_parts(error_in(small_config("\"lerning_rate\": 1,\n")),
               {"run.json:2: ", "lerning_rate", "\"learning_rate\"?"});
  expect_parts(error_in(small_config("\n\n\"train_itres\": 1,\n")), {"run.json:4: ", "\"train_iters\"?"});
  expect_parts(error_in(small_config("\"zzzzzzzz\": 1,\n")), {"zzzzzzzz", "configs/README.md"});
  expect_parts(error_in(small_config("", R"({"model_type": "gpt2", "hiden_size": 3})")),
               {"run.json:2: ", "model.hiden_size", "\"hidden_size\"?"});
  expect_parts(error_in(small_config("\"valid_data\": [{\"path\": \"a\", \"wieght\": 1}],\n")),
               {"valid_data[0].wieght", "\"weight\"?"});
}

TEST(Parse, WrongTypesSayWhatWasExpected) {
  const auto wrong = [](const std::string& line) { return error_in(small_config("\n" + line + ",\n")); };
  expect_parts(wrong("\"seed\": \"1\""), {"run.json:3: seed: expected an integer >= 0, got the string \"1\""});
  expect_parts(wrong("\"seed\": 1.5"), {"seed: expected an integer", "got 1.5"});
  expect_parts(wrong("\"seed\": 1e3"), {"seed: expected an integer", "got 1e3"});
  expect_parts(wrong("\"seed\": true"), {"seed", "got true"});
  expect_parts(wrong("\"seed\": null"), {"seed", "got null"});
  expect_parts(wrong("\"weight_decay\": \"0.1\""), {"weight_decay: expected a number >= 0", "the string"});
  expect_parts(wrong("\"logging\": {\"tensorboard\": 1}"), {"tensorboard: expected true or false, got 1"});
  expect_parts(wrong("\"save\": 3"), {"save: expected a string, got 3"});
  const std::string zero_byte = wrong("\"save\": \"a\\u0000b\"");
  expect_parts(zero_byte, {"save", "zero byte"});
  EXPECT_EQ(zero_byte.find("save: "), zero_byte.rfind("save: ")) << "named once: " << zero_byte;
  expect_parts(wrong("\"precision\": \"bf61\""), {"fp32, tf32, bf16, fp16", "did you mean \"bf16\"?"});
  expect_parts(wrong("\"micro_batch_size\": \"autp\""), {"micro_batch_size", "or \"auto\""});
  expect_parts(wrong("\"valid_data\": 3"), {"valid_data: expected an object, got 3"});
  expect_parts(wrong("\"valid_data\": [\"\"]"), {"valid_data[0]", "not empty"});
  expect_parts(error_in(small_config("", "[]")), {"model: expected an object, got a list"});
  expect_parts(error_in("[1]"), {"run.json:1: ", "expected an object, got a list"});
}

TEST(Parse, RangesAreEnforced) {
  const auto wrong = [](const std::string& line) { return error_in(small_config(line + ",\n")); };
  expect_parts(wrong("\"seed\": -1"), {"seed", ">= 0", "got -1"});
  expect_parts(wrong("\"threads\": 65536"), {"threads", "0 ... 8192", "got 65536"});
  expect_parts(wrong("\"fp16\": {\"loss_scale_window\": 2147483648}"), {"loss_scale_window", "1 ... 2147483647"});
  expect_parts(wrong("\"fp16\": {\"hysteresis\": 2147483648}"), {"hysteresis", "1 ... 2147483647"});
  expect_parts(wrong("\"micro_batch_size\": 0"), {"micro_batch_size", "1 ... 2147483648"});
  expect_parts(wrong("\"adam\": {\"beta1\": 1}"), {"adam.beta1", ">= 0 and < 1", "got 1"});
  for (const char* eps : {"0", "1e-50"})
    expect_parts(wrong(cat("\"adam\": {\"eps\": ", eps, "}")), {"adam.eps", "> 0", cat("got ", eps)});
  expect_parts(wrong("\"seed\": 18446744073709551615"), {"seed", "got 18446744073709551615"});
  expect_parts(wrong("\"seed\": 99999999999999999999999"), {"seed"});
  expect_parts(wrong("\"seed\": 9007199254740993"), {"seed"});  // 2^53 + 1 is no double
  expect_parts(wrong("\"weight_decay\": 1e400"), {"run.json:2: ", "finite"});
  expect_parts(wrong("\"weight_decay\": NaN"), {"run.json:2:", "not valid JSON"});
}

// The bound is named where it is exceeded.
TEST(Parse, NumbersAboveTheGlobalBoundNameIt) {
  for (const char* text : {"1e18", "1000000000000000000", "99999999999999999999"})
    expect_parts(error_in(small_config(cat("\"seed\": ", text, ",\n"))),
                 {"seed: expected an integer >= 0 and <= 9007199254740991", text});
  expect_parts(error_in(small_config("\"weight_decay\": 1e18,\n")), {"weight_decay", "<= 9007199254740991", "1e18"});
  refused({"learning_rate=1e39"}, {"learning_rate: expected a number > 0 and <= 3.4028", "1e39"});
  EXPECT_EQ(error_in(small_config("\"seed\": -1,\n")).find("9007199254740991"), std::string::npos);
}

TEST(Parse, PathsMayBeginWithTheHomeFolder) {
  const std::string home = std::getenv("HOME") ? std::getenv("HOME") : "";
  if (home.empty()) GTEST_SKIP() << "HOME is not set";
  const Config c = parse(small_config("\"save\": \"~/runs/a\", \"load\": \"~/b\", \"profile\": \"./~\",\n"),
                         {"train_data=[\"~/x.bin\", {\"path\": \"~/y*.bin\"}]", "init_from=", "valid_data=~/v.bin"});
  EXPECT_EQ(c.save, home + "/runs/a");
  EXPECT_EQ(c.load, home + "/b");
  EXPECT_EQ(c.profile, "./~");
  EXPECT_EQ(c.train_data[0].path, home + "/x.bin");
  EXPECT_EQ(c.train_data[1].path, home + "/y*.bin");
  EXPECT_EQ(c.valid_data[0].path, home + "/v.bin");
  expect_parts(error_in(small_config("\"save\": \"~other/a\",\n")), {"run.json:2: save", "~other/a", "expected ~/"});
}

TEST(Parse, MissingKeysAreNamed) {
  expect_parts(error_in("{}"), {"run.json:1: model is required"});
  expect_parts(error_in(small_config("", R"({"model_type": "gpt2"})")), {"model.vocab_size is required"});
  expect_parts(error_in(small_config("", R"({"vocab_size": 3})")), {"model.model_type is required"});
  expect_parts(error_in(small_config("\"valid_data\": [{}],\n")), {"valid_data[0].path is required"});
  const std::string no_length =
      cat("{\"model\": ", kSmallModel, ", \"train_data\": \"a\", \"global_batch_size\": 1, \"learning_rate\": 1}");
  expect_parts(error_in(no_length), {"run.json: train_iters is required", "train_tokens"});
}

TEST(Parse, DuplicateKeysAreErrors) {
  expect_parts(error_in(small_config("\"seed\": 1,\n\"seed\": 2,\n")),
               {"run.json:3: ", "\"seed\" is given twice", "first at run.json:2"});
  expect_parts(error_in(small_config("", R"({"model_type": "gpt2", "model_type": "llama"})")), {"given twice"});
}

TEST(Parse, AliasesAreReadWithANotice) {
  std::vector<std::string> notices;
  const std::string text = cat("{\"model\": ", kSmallModel, ",\n\"train_data\": \"a\", \"max_iters\": 7,\n",
                               "\"train_batch_size\": 8, \"lr\": 0.5, \"block_size\": 16, \"batch_size\": 2}");
  const Config c = parse(text, {}, &notices);
  EXPECT_EQ(c.train_iters, 7);
  EXPECT_EQ(c.global_batch_size, 8);
  EXPECT_EQ(c.learning_rate, 0.5);
  EXPECT_EQ(c.seq_length, 16);
  EXPECT_EQ(c.micro_batch_size, 2);
  ASSERT_EQ(notices.size(), 5u);
  EXPECT_EQ(notices[0], "run.json:2: max_iters is read as train_iters");
  expect_parts(error_in(small_config("\"lr\": 1,\n")), {"learning_rate and lr are one option", "keep learning_rate"});
}

TEST(Parse, RemovedKeysAreRefusedUnlessSetToTheRemainingBehavior) {
  std::vector<std::string> notices;
  parse(small_config("\"transport\": \"tcp\",\n"), {}, &notices);
  EXPECT_EQ(notices, (std::vector<std::string>{"run.json:2: transport was removed and has no effect"}));
  expect_parts(error_in(small_config("\"transport\": \"mpi\",\n")),
               {"run.json:2: transport: \"mpi\" was removed", "TCP alone; delete the key"});
  expect_parts(error_in(small_config(), {"transport=mpi"}), {"--set transport: ", "was removed", "TCP alone"});
}

TEST(Parse, RemovedValuesSayWhatToUseInstead) {
  expect_parts(error_in(small_config("\"optimizer\": \"adam_mini\",\n")),
               {"run.json:2: optimizer: \"adam_mini\" was removed: use adamw_8bit or adafactor"});
  expect_parts(error_in(small_config(), {"attention=ordered"}),
               {"--set attention: attention: \"ordered\" was removed: use builtin"});
  expect_parts(error_in(small_config(), {"optimizer=adamw_fp8"}), {"--set optimizer: ", "use adamw_8bit"});
  expect_parts(error_in(small_config(R"("param_groups": [{"match": "*", "optimizer": "adamw_fp8"}],)")),
               {"param_groups[0].optimizer: \"adamw_fp8\" was removed"});
}

TEST(Parse, SyntaxErrorsNameLineAndColumn) {
  expect_parts(error_in("{\n  \"seed\": 1,\n  oops\n}"), {"run.json:3:3: not valid JSON"});
  expect_parts(error_in("{\"seed\": 1"), {"run.json:1:", "not valid JSON"});
  expect_parts(error_in(""), {"run.json:1:1: not valid JSON"});
  expect_parts(error_in("{} x"), {"run.json:1:4: not valid JSON"});
  expect_parts(error_in("{\"seed\": \"\xff\"}"), {"run.json:1:", "not valid JSON"});
  expect_parts(error_in("// remark\n{}"), {"run.json:1:", "not valid JSON"});
}

TEST(Parse, DepthAndSizeAreLimited) {
  expect_parts(error_in(std::string(100000, '[')), {"nested deeper than 32 levels"});
  std::string objects;
  for (int i = 0; i < 5000; ++i) objects += "{\"a\":";
  expect_parts(error_in(objects), {"nested deeper"});
  expect_parts(error_in(std::string(2 << 20, ' ')), {"1048576"});
  std::string wide = "{";
  for (int i = 0; i < 5000; ++i) wide += cat("\"k", i, "\": 1,\n");
  expect_parts(error_in(wide + "\"z\": 1}"), {"run.json:", "more than 4096 keys"});
}

TEST(Parse, LinesAreCountedForNumbersBeforeALineBreak) {
  expect_parts(error_in("{\n\"seed\": -1\n}"), {"run.json:2: seed"});
  expect_parts(error_in("{\n\"seed\":\n\n-1\n\n}"), {"run.json:2: seed"});
}

TEST(Parse, TruncatedTextAlwaysThrowsError) {
  const std::string text = read_bytes("configs/llama-1b.json");
  ASSERT_GT(text.size(), 100u);
  for (size_t n = 0; n + 2 < text.size(); ++n) {
    EXPECT_FALSE(error_in(text.substr(0, n)).empty()) << n;
  }
}

TEST(Parse, MutatedTextNeverThrowsAnotherException) {
  const std::string text = read_bytes("configs/llama-1b.json");
  std::mt19937 random(42);  // seed 42: printed by the assertion below
  for (int round = 0; round < 2000; ++round) {
    std::string mutant = text;
    for (int k = 0; k < 3; ++k) mutant[random() % mutant.size()] = char(random());
    EXPECT_NO_THROW(error_in(mutant)) << "seed 42, round " << round;
  }
}

}  // namespace
}  // namespace athanor
