// The command line says what is wrong with a word or a number, and what was probably meant.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "command/command.h"

namespace athanor {
namespace {

struct Ran {
  int code;
  std::string error;
};
Ran run(std::vector<std::string> words) {
  words.insert(words.begin(), "athanor");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::testing::internal::CaptureStderr();
  const int code = run_cli(int(words.size()), argv.data());
  return {code, ::testing::internal::GetCapturedStderr()};
}
void expect_refused(const std::vector<std::string>& words, const std::vector<std::string>& parts) {
  const Ran ran = run(words);
  EXPECT_EQ(ran.code, int(Exit::usage));
  for (const std::string& part : parts)
    EXPECT_NE(ran.error.find(part), std::string::npos) << ran.error << "lacks " << part;
  EXPECT_LT(ran.error.size(), 300u) << ran.error;
}

TEST(Cli, SuggestsTheNearestVerbAndOption) {
  expect_refused({"tran", "x.json"}, {"no verb \"tran\"", "did you mean \"train\"?"});
  expect_refused({"frobnicate"}, {"no verb \"frobnicate\"", "athanor --help"});
  expect_refused({}, {"expected a verb", "athanor --help"});
  expect_refused({"data", "inof", "x"}, {"athanor data: there is no verb \"inof\"", "\"info\"?"});
  expect_refused({"bench"}, {"athanor bench: expected a verb"});
  expect_refused({"sample", "--checkpoint", "x", "--temprature", "1"},
                 {"athanor sample: there is no option \"--temprature\"", "did you mean \"--temperature\"?"});
  expect_refused({"sample", "--checkpoint=x", "--nonsense"}, {"no option \"--nonsense\"", "athanor sample --help"});
  expect_refused({"sample"}, {"--checkpoint is required"});
  expect_refused({"train", "a.json", "\x1b[2J"}, {"\\x1b[2J"});
  EXPECT_LT(run({"devices", std::string(100'000, 'A')}).error.size(), 1100u);
}

// The launcher refuses the command line once and starts no rank.
TEST(Cli, LauncherRefusesInvalidCommandLinesOnce) {
  for (const char* ranks : {"1", "3"}) {
    const Ran ran = run({"launch", "--ranks", ranks, "tran", "x.json"});
    EXPECT_EQ(ran.code, int(Exit::usage));
    EXPECT_EQ(ran.error,
              "athanor: there is no verb \"tran\"; did you mean \"train\"?\nRun with --help for more information.\n");
  }
  expect_refused({"launch", "-n", "2", "train", "x.json", "--sett", "a=1"},
                 {"athanor train: there is no option \"--sett\""});
  expect_refused({"launch", "-n", "2", "train"}, {"config is required"});
  expect_refused({"launch", "-n", "2", "train", "-"}, {"launch: ranks cannot share standard input"});
}

TEST(Cli, MalformedAndOutOfRangeNumbersAreRefused) {
  const auto sample = [](const char* option, const char* value) {
    return std::vector<std::string>{"sample", "--checkpoint", "x", option, value};
  };
  expect_refused(sample("--max-tokens", "0"), {"--max-tokens: expected a number above 0, got 0"});
  expect_refused({"eval", "x", "--samples", "-1"}, {"--samples: expected", "got -1"});
  for (const char* flag : {"--max-kl", "--max-loss-increase", "--min-same-top", "--check-samples"})
    expect_refused({"export", "x", "y", flag, "1"}, {flag, " requires --check"});
  expect_refused({"export", "x", "y", "--calibrate-samples", "1"}, {" requires --calibrate"});
  expect_refused({"export", "x", "y", "--group-size", "32"}, {"--group-size works only with --dtype w4a16"});
  for (const char* format : {"gguf", "peft"})
    expect_refused({"export", "x", "y", "--format", format, "--max-shard-size", "1MB"},
                   {"--max-shard-size works only with --format hf, compressed-tensors and gptq", format});
  expect_refused({"export", "x", "y", "--dtype", "w4a16"}, {"; take --format compressed-tensors or gptq"});
  expect_refused({"plan", "x", "--ranks", "4", "--simulate"}, {"plan --simulate", "with --gpus"});
  expect_refused({"plan", "x", "--gpu", "h200", "--search"}, {"plan --search", "--ranks, at least 1"});
  expect_refused({"plan", "x", "--gpu", "h200", "--ranks", "0", "--json"}, {"plan --json", "--ranks 1 or more"});
  expect_refused({"eval", "x", "--max-items", "1"}, {" requires --tasks"});
  expect_refused({"data", "info", "x", "--ngram-valid", "y"}, {" requires --ngram"});
  expect_refused({"data", "info", "x", "--vocab-size", "-3"}, {"--vocab-size: expected", "got -3"});
  expect_refused({"data", "verify", "x", "--vocab-size", "0"}, {"--vocab-size: expected", "got 0"});
  expect_refused({"data", "info", "x", "--eod-id", "-7"}, {"--eod-id: expected", "got -7"});
  expect_refused({"data", "images", "x"}, {"--output-prefix"});
  expect_refused({"data", "images", "x", "--output-prefix", "p", "--split", "test"}, {"--split", "test", "val"});
  expect_refused({"data", "images", "x", "--output-prefix", "p", "--size", "0"}, {"--size: expected", "got 0"});
  expect_refused({"report", "x", "--every", "3"}, {" requires --watch"});
  expect_refused(sample("--max-tokens", "1.5"), {"--max-tokens: expected a whole number, got 1.5"});
  expect_refused(sample("--max-tokens", "010"), {"expected a whole number"});
  expect_refused(sample("--temperature", "nan"), {"--temperature: expected a finite number, got nan"});
  expect_refused(sample("--temperature", "-1"), {"--temperature: expected 0 or more, got -1"});
  expect_refused(sample("--top-p", "nan"), {"--top-p: expected a finite number, got nan"});
  expect_refused(sample("--top-p", "1.5"), {"--top-p: expected 0 to 1, got 1.5"});
  expect_refused(sample("--temperature", "1e999"), {"expected a finite number"});
  expect_refused(sample("--seed", "18446744073709551616"),
                 {"--seed: expected a whole number from 0 to 18446744073709551615"});
  expect_refused(sample("--seed", "-1"), {"--seed: expected a whole number"});
  for (const char* size : {"-5GB", "0", "1.5GB", "5XB", "010GB", "99999999999GB", "nan", ""})
    expect_refused({"export", "x", "y", "--max-shard-size", size},
                   {cat("--max-shard-size: expected a whole number of bytes above 0, with or without a unit (5GB, "
                        "500MiB), got ",
                        size)});
  expect_refused({"launch", "-n", "99999999999", "train"}, {"expected a whole number"});
  expect_refused({"plan", "x.json", "--gpu", "h200", "--ranks", "99999"}, {"--ranks: expected 0 to 65536, got 99999"});
}

// An unset variable of a shell gives an empty text, which would otherwise mean the default.
TEST(Cli, EmptyTextsAreRefused) {
  const auto expect_empty_refused = [](std::vector<std::string> words, const std::string& option) {
    words.emplace_back();
    expect_refused(words, {cat(option, ": expected a value, got an empty text; ", option, ": ")});
  };
  expect_refused({"plan", "x", "--gpu", ""}, {"--gpu: expected a value, got an empty text; --gpu: ", "h200, h100"});
  expect_refused({"plan", "x", "--gpu="}, {"--gpu"});
  expect_empty_refused({"plan", "x", "--schedule-svg"}, "--schedule-svg");
  expect_empty_refused({"plan", "x", "--set"}, "--set");
  expect_empty_refused({"train"}, "config");
  expect_empty_refused({"train", "x", "--load"}, "--load");
  expect_empty_refused({"tokenize", "x", "--output-prefix"}, "--output-prefix");
  expect_empty_refused({"sample", "--checkpoint", "x", "--stop"}, "--stop");
  expect_empty_refused({"sample", "--checkpoint", "x", "--prompts"}, "--prompts");
  expect_empty_refused({"data", "info", "x"}, "files");
  EXPECT_EQ(run({"sample", "--checkpoint", "missing", "--prompt", ""}).error.find("empty"), std::string::npos);
}

}  // namespace
}  // namespace athanor
