// Evaluation tasks: which text each format makes, what is scored of it, and the accuracies that forward passes of one
// text at a time give; what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <utility>

#include "base/error.h"
#include "infer/eval_tasks.h"
#include "tests/temp_dir.h"
#include "tests/tiny_model.h"
#include "tests/train/harness.h"
#include "tokenizer/load.h"

namespace athanor {
namespace {

using testing::Rig;
constexpr int64_t kT = 48, kV = 257;

struct EvalTasks : ::testing::Test {
  testing::TempDir dir;
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer({.source = "byte"});

  void write(const std::string& name, const std::string& text) const { std::ofstream(dir / name) << text; }
  // One task of such items.
  std::vector<EvalTask> read(const std::string& type, const std::string& items, const std::string& more = "",
                             int64_t max_items = 0) const {
    write("items.jsonl", items);
    write("tasks.json", cat(R"({"icl_tasks": [{"label": "t", "dataset_uri": "items.jsonl", "icl_task_type": ")", type,
                            "\"", more, "}]}"));
    return read_eval_tasks(dir / "tasks.json", *tokenizer,
                           {.seq_length = kT, .vocab_size = kV, .max_items = max_items});
  }
  std::string refusal(const std::string& type, const std::string& items, const std::string& more = "") const {
    try {
      read(type, items, more);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::usage);
      return e.what();
    }
    return "nothing was refused";
  }
  // The text before the scored part, and the scored part.
  std::pair<std::string, std::string> parts(const ScoredText& text) const {
    EXPECT_EQ(text.tokens[0], tokenizer->eod_id());
    const auto cut = text.tokens.end() - text.scored;
    return {tokenizer->decode(std::vector<int32_t>(text.tokens.begin() + 1, cut)),
            tokenizer->decode(std::vector<int32_t>(cut, text.tokens.end()))};
  }
};

using Parts = std::pair<std::string, std::string>;

TEST_F(EvalTasks, MultipleChoiceScoresTheDifferingContinuations) {
  const auto tasks = read("multiple_choice", R"({"query": "Q", "choices": ["ab", "ac", "d"], "gold": 2})"
                                             "\n\n");
  ASSERT_EQ(tasks.size(), 1u);
  const TaskItem& item = tasks[0].items.at(0);
  EXPECT_EQ(item.gold, 2);
  EXPECT_EQ(parts(item.options[0]), Parts("Q ", "ab"));
  EXPECT_EQ(parts(item.options[2]), Parts("Q ", "d"));
  const auto same = read("multiple_choice", R"({"query": "Q", "choices": ["ab", "ac"], "gold": 0})",
                         R"(, "continuation_delimiter": "\nA:")");
  EXPECT_EQ(parts(same[0].items[0].options[1]), Parts("Q\nA:a", "c"));
}

TEST_F(EvalTasks, SchemaScoresTheCommonContinuation) {
  const auto tasks =
      read("schema", R"({"context_options": ["The cup", "The box"], "continuation": "is full", "gold": 1})");
  EXPECT_EQ(parts(tasks[0].items[0].options[0]), Parts("The cup", " is full"));
  EXPECT_EQ(parts(tasks[0].items[0].options[1]), Parts("The box", " is full"));
}

TEST_F(EvalTasks, LanguageModelingScoresTheContinuationWithItsLeadingSpace) {
  const auto tasks = read("language_modeling", R"({"context": " One two ", "continuation": "three"})");
  ASSERT_EQ(tasks[0].items[0].options.size(), 1u);
  EXPECT_EQ(parts(tasks[0].items[0].options[0]), Parts("One two", " three"));
}

TEST_F(EvalTasks, FewShotExamplesAreOtherItemsWithCorrectAnswers) {
  std::string items;
  for (int i = 0; i < 6; ++i)
    items += cat(R"({"query": "q)", i, R"(", "choices": ["n)", i, R"(", "y)", i, R"("], "gold": 1})", "\n");
  const auto tasks = read("multiple_choice", items, R"(, "num_fewshot": [2])", 4);
  EXPECT_EQ(tasks[0].few_shot, 2);
  ASSERT_EQ(tasks[0].items.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    const auto [before, scored] = parts(tasks[0].items[size_t(i)].options[1]);
    EXPECT_EQ(scored, cat("y", i));
    ASSERT_EQ(before.size(), 2 * std::string("q0 y0\n\n").size() + 3) << before;
    EXPECT_EQ(before.substr(14), cat("q", i, " "));
    EXPECT_NE(before[1], before[8]);
    for (const size_t at : {0, 7}) {
      EXPECT_EQ(before.substr(at, 7), cat("q", before[at + 1], " y", before[at + 1], "\n\n"));
      EXPECT_NE(before[at + 1], char('0' + i));
    }
  }
  EXPECT_EQ(parts(read("multiple_choice", items, R"(, "num_fewshot": 2)")[0].items[3].options[0]).first,
            parts(tasks[0].items[3].options[0]).first);
}

TEST_F(EvalTasks, RefusesMalformedTasks) {
  const std::string good = R"({"query": "Q", "choices": ["a", "b"], "gold": 0})";
  const auto says = [](const std::string& message, const std::vector<std::string>& all) {
    for (const std::string& part : all) EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  };
  says(refusal("exam", good), {"tasks.json", "task 0", "icl_task_type", "exam"});
  says(refusal("multiple_choice", good + "\n{}"), {"items.jsonl: line 2", "\"query\""});
  says(refusal("multiple_choice", R"({"query": "Q", "choices": ["a", "b"], "gold": 2})"), {"line 1", "gold", "0 to 1"});
  says(refusal("multiple_choice", R"({"query": "Q", "choices": ["a"], "gold": 0})"), {"choices", "2 to 256"});
  says(refusal("multiple_choice", R"({"query": "Q", "choices": ["a", "a"], "gold": 0})"), {"no token of its own"});
  says(refusal("schema", good), {"context_options"});
  says(refusal("multiple_choice", good, R"(, "num_fewshot": 1)"), {"num_fewshot", "1 examples of 1 items"});
  says(refusal("multiple_choice", good, R"(, "random_baseline": 100)"), {"random_baseline", "percent"});
  says(refusal("multiple_choice", good, R"(, "shots": 1)"), {"unknown member \"shots\""});
  says(refusal("multiple_choice", "\n"), {"holds no item"});
  says(refusal("language_modeling", cat(R"({"context": "a", "continuation": ")", std::string(60, 'x'), "\"}")),
       {"61 tokens to score", "sequence length 48"});
}

// Log probabilities and the likeliest tokens by a forward pass of the text alone.
TextScore reference(Engine& engine, const ScoredText& text) {
  std::vector<int32_t> tokens = text.tokens, in(kT, 0);
  if (int64_t(tokens.size()) > kT + 1) tokens.erase(tokens.begin(), tokens.end() - kT - 1);
  std::copy(tokens.begin(), tokens.end() - 1, in.begin());
  const std::vector<float> logits = engine.logits(in);
  TextScore score;
  for (size_t i = tokens.size() - size_t(text.scored); i < tokens.size(); ++i) {
    const auto row = logits.begin() + std::ptrdiff_t(i - 1) * kV;
    double sum = 0;
    for (int64_t v = 0; v < kV; ++v) sum += std::exp(double(row[v]));
    score.log_probability += double(row[tokens[i]]) - std::log(sum);
    score.misses += std::max_element(row, row + kV) - row != tokens[i];
  }
  return score;
}

TEST_F(EvalTasks, AccuraciesMatchSeparateForwardPasses) {
  EngineOptions o;
  o.recipe = make_recipe("fp32", DType::f32);
  o.seq_length = kT;
  o.micro_batch_size = o.global_batch_size = 1;
  o.documents_per_sequence = 4;
  o.seed = 7;
  Rig rig;
  const ModelConfig model = testing::tiny_model(
      ModelType::llama, {.vocab = kV, .hidden = 16, .heads = 2, .intermediate = 24, .positions = kT});
  Engine engine(model, o, rig.backend()), whole(model, o, rig.backend());
  for (Engine* each : {&engine, &whole}) {
    each->want_logits();
    each->commit();
    each->init_weights();
  }
  // Language modelling: the model's own greedy continuation of every second context, which is right, else another.
  std::string items;
  for (int i = 0; i < 6; ++i) {
    const std::string context = cat("context", i);
    items += cat(R"({"context": ")", context, R"(", "continuation": "w)", i, "\"}\n");
  }
  std::vector<EvalTask> tasks = read("language_modeling", items);
  for (size_t i = 0; i < tasks[0].items.size(); i += 2) {
    ScoredText& text = tasks[0].items[i].options[0];
    for (size_t at = text.tokens.size() - size_t(text.scored); at < text.tokens.size(); ++at) {
      std::vector<int32_t> in(kT, 0);
      std::copy_n(text.tokens.begin(), at, in.begin());
      const std::vector<float> logits = whole.logits(in);
      const auto row = logits.begin() + std::ptrdiff_t(at - 1) * kV;
      text.tokens[at] = int32_t(std::max_element(row, row + kV) - row);
    }
  }
  EXPECT_EQ(evaluate_task(engine, tasks[0]).accuracy, 0.5);

  std::string choices;
  for (int i = 0; i < 9; ++i)
    choices += cat(R"({"query": "some question )", i, R"(", "choices": ["yes", "no )", i * i,
                   R"(", "long text of many )", i, R"("], "gold": )", i % 3, "}\n");
  const auto questions = read("multiple_choice", choices, R"(, "random_baseline": 25)");
  int right = 0;
  std::vector<ScoredText> texts;
  for (const TaskItem& item : questions[0].items) {
    size_t best = 0;
    std::vector<double> means;
    for (const ScoredText& option : item.options) {
      const TextScore want = reference(whole, option);
      means.push_back(want.log_probability / double(option.scored));
      if (means.back() > means[best]) best = means.size() - 1;
      texts.push_back(option);
    }
    right += int64_t(best) == item.gold;
  }
  const std::vector<TextScore> found = score_texts(engine, texts, {.misses = true, .stop = {}});
  for (size_t i = 0; i < texts.size(); ++i) {
    const TextScore want = reference(whole, texts[i]);
    EXPECT_NEAR(found[i].log_probability, want.log_probability, 1e-4) << i;
    EXPECT_EQ(found[i].misses, want.misses) << i;
  }
  const TaskResult result = evaluate_task(engine, questions[0]);
  EXPECT_EQ(result.items, 9);
  EXPECT_DOUBLE_EQ(result.accuracy, right / 9.0);
  EXPECT_DOUBLE_EQ(result.centered, (right / 9.0 - 0.25) / 0.75);
  EXPECT_TRUE(score_texts(engine, texts, {.stop = [] { return true; }}).empty());
}

}  // namespace
}  // namespace athanor
