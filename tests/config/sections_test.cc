// Sections: options of one feature are an object. Overrides and messages name them by dotted keys, and the flat keys of
// earlier versions are read, too.
#include <nlohmann/json.hpp>

#include "tests/config/helpers.h"

namespace athanor {
namespace {

using nlohmann::json;

const std::string kAdapters =
    "\"lora\": {\"rank\": 8, \"alpha\": 4, \"targets\": [\"q_proj\"]},\n\"init_from\": \"x\",\n";
const std::string kFormerAdapters =
    "\"lora_rank\": 8, \"lora_alpha\": 4, \"lora_targets\": [\"q_proj\"],\n\"init_from\": \"x\",\n";

TEST(Sections, OptionsAreReadFromTheirObject) {
  std::vector<std::string> notices;
  const Config c = parse(small_config(kAdapters), {}, &notices);
  EXPECT_EQ(c.lora_rank, 8);
  EXPECT_EQ(c.lora_alpha, 4.0);
  EXPECT_EQ(c.lora_targets, std::vector<std::string>{"q_proj"});
  EXPECT_EQ(notices, std::vector<std::string>{});
  EXPECT_EQ(parse(small_config("\"lora\": {},\n")).lora_rank, 0);
}

TEST(Sections, OldKeysAreReadWithANotice) {
  std::vector<std::string> notices;
  const Config c = parse(small_config(kFormerAdapters), {"log_level=debug", "adapter=folder"}, &notices);
  EXPECT_EQ(dump_resolved(c),
            dump_resolved(parse(small_config(kAdapters), {"logging.level=debug", "lora.adapter=folder"})));
  const std::vector<std::string> expected = {
      "run.json:2: lora_rank is read as lora.rank", "run.json:2: lora_alpha is read as lora.alpha",
      "run.json:2: lora_targets is read as lora.targets", "--set log_level: log_level is read as logging.level",
      "--set adapter: adapter is read as lora.adapter"};
  EXPECT_EQ(notices, expected);
}

TEST(Sections, OptionGivenTwiceIsRefused) {
  expect_parts(error_in(small_config("\"lora\": {\"rank\": 8},\n\"lora_rank\": 4,\n")),
               {"run.json:3: lora_rank and lora.rank are one option; keep lora.rank"});
  expect_parts(error_in(small_config("\"lora_rank\": 4,\n\"lora\": {\"rank\": 8},\n")),
               {"run.json:3: lora.rank and lora_rank are one option; keep lora.rank"});
  expect_parts(error_in(small_config("\"adam\": {\"beta1\": 0.5}, \"beta1\": 0.5,\n")), {"keep adam.beta1"});
}

TEST(Sections, OverridesWinUnderEveryKey) {
  EXPECT_EQ(parse(small_config(kAdapters), {"lora.rank=2"}).lora_rank, 2);
  EXPECT_EQ(parse(small_config(kAdapters), {"lora_rank=2"}).lora_rank, 2);
  EXPECT_EQ(parse(small_config(kFormerAdapters), {"lora.rank=2"}).lora_rank, 2);
  EXPECT_EQ(parse(small_config(kFormerAdapters), {"lora.rank=2"}).lora_alpha, 4.0);
  EXPECT_EQ(parse(small_config(), {"lora.rank=2", "init_from=x", "lora_rank=3"}).lora_rank, 3);
  const Config whole = parse(small_config(kFormerAdapters), {"lora={\"rank\": 2}"});
  EXPECT_EQ(whole.lora_rank, 2);
  EXPECT_EQ(whole.lora_alpha, Config().lora_alpha) << "the override is the whole section";
}

TEST(Sections, MessagesNameTheNearestKey) {
  const auto wrong = [](const std::string& text) { return error_in(small_config(text + ",\n")); };
  expect_parts(wrong("\"lora\": {\"rnak\": 8}"),
               {"run.json:2: unknown key \"lora.rnak\"; did you mean \"lora.rank\"?"});
  expect_parts(wrong("\"lora\": {\"lora_rank\": 8}"), {"\"lora.lora_rank\"", "\"lora.rank\"?"});
  expect_parts(wrong("\"lora\": {\"learning_rate\": 8}"),
               {"\"lora.learning_rate\"", "did you mean \"learning_rate\"?"});
  expect_parts(wrong("\"lora_rnak\": 8"), {"\"lora_rnak\"", "\"lora.rank\"?"});
  expect_parts(wrong("\"lroa\": {\"rank\": 8}"), {"\"lroa\"", "\"lora\"?"});
  expect_parts(wrong("\"mask_from\": \"x\""), {"\"mask_from\"", "\"pruning.mask_from\"?"});
  expect_parts(wrong("\"momentum\": 0.9"), {"\"momentum\"", "\"sgd.momentum\" or \"muon.momentum\"?"});
  expect_parts(wrong("\"lora.rank\": 8"), {"unknown key \"lora.rank\"", "\"lora.rank\"?"});
  expect_parts(wrong("\"lora\": 8"), {"run.json:2: lora: expected an object such as {\"rank\": 0}, got 8"});
  expect_parts(wrong("\"lora\": {\"rank\": \"x\"}"), {"lora.rank: expected an integer", "got the string \"x\""});
  refused({"lora.rnak=8"}, {"--set lora.rnak: unknown key \"lora.rnak\"", "\"lora.rank\"?"});
}

TEST(Sections, ResumeComparesValuesAndIgnoresSpelling) {
  const Config now = parse(small_config(kAdapters));
  json old = json::parse(dump_resolved(now));
  for (const auto& [name, value] : old["lora"].items())
    old[name == "adapter" || name.starts_with("base_") ? name : "lora_" + name] = value;
  old.erase("lora");
  EXPECT_TRUE(resume_changes(old.dump(), now).empty());
  EXPECT_EQ(dump_resolved(parse(old.dump())), dump_resolved(now));
  const auto changes = resume_changes(old.dump(), parse(small_config(kAdapters), {"lora.rank=9"}));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].key, "lora.rank");
  EXPECT_EQ(changes[0].old_value + " " + changes[0].new_value, "8 9");
}

TEST(Sections, SchemaHasTitlesAndOmitsOldKeys) {
  const json schema = json::parse(json_schema());
  size_t keys = 0;
  for (const json& group : schema["allOf"]) {
    for (const auto& [key, value] : group["properties"].items()) {
      keys += !value.value("description", "").starts_with("the same as");
      EXPECT_NE(key, "lora_rank");
      if (!value.contains("additionalProperties")) continue;
      EXPECT_FALSE(value["title"].get<std::string>().empty()) << key;
      EXPECT_FALSE(value["description"].get<std::string>().empty()) << key;
      EXPECT_EQ(value["additionalProperties"], false) << key;
      EXPECT_FALSE(value["properties"].empty()) << key;
    }
  }
  EXPECT_LE(keys, 100u) << "a new feature has one key, of an object";
}

TEST(Sections, DumpUsesDottedKeys) {
  const std::string_view without[] = {"logging.level", "threads"};
  const std::string lines = dump_lines(parse(small_config(kAdapters)), without);
  expect_parts(lines, {"\nlora.rank: 8\n", "\nmodel.vocab_size: 257\n", "\nlogging.progress: ", "\nfim.level: "});
  EXPECT_EQ(lines.find("logging.level"), std::string::npos);
  EXPECT_EQ(lines.find("\nthreads"), std::string::npos);
}

}  // namespace
}  // namespace athanor
