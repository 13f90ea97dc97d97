// Multiple-choice questions from JSON lines: both kinds of members, cut contexts, and what is refused with its line.
#include "data/questions.h"

#include "data_testing.h"
#include "tokenizer/byte_tokenizer.h"
#include "tokenizer/load.h"

namespace athanor {
namespace {

using namespace testing;

struct QuestionsTest : ::testing::Test {
  TempDir dir;
  std::vector<Question> read(const std::string& text, QuestionLimits limits = {.seq_length = 50, .vocab_size = 257}) {
    write_bytes(dir / "q.jsonl", text);
    return read_questions(dir / "q.jsonl", ByteTokenizer(), limits);
  }
  void refuse(const std::string& line, const std::vector<std::string>& parts) {
    const std::string good = R"({"context": "a", "choices": ["b", "c"], "label": 0})";
    std::vector<std::string> all = {"q.jsonl", "line 3"};
    all.insert(all.end(), parts.begin(), parts.end());
    expect_parts(error_of([&] { read(good + "\n\n" + line + "\n" + good); }), all);
  }
};

TEST_F(QuestionsTest, ReadsBothJsonSchemas) {
  const auto questions = read(
      "{\"context\": \"ab\", \"choices\": [\" c\", \"dé\"], \"label\": 1}\n\n"
      "{\"ind\": 3, \"ctx\": \"A man\", \"ctx_a\": \"x\", \"endings\": [\"sits.\", \"is\", \"a\", \"b\"], \"label\": "
      "\"2\"}");
  ASSERT_EQ(questions.size(), 2u);
  EXPECT_EQ(questions[0].context, (std::vector<int32_t>{'a', 'b'}));
  EXPECT_EQ(questions[0].choices[0], (std::vector<int32_t>{' ', 'c'}));
  EXPECT_EQ(questions[0].characters, (std::vector<int64_t>{2, 2}));  // é is one character of two bytes
  EXPECT_EQ(questions[0].choices[1].size(), 3u);
  EXPECT_EQ(questions[0].label, 1);
  EXPECT_EQ(questions[1].context.size(), 5u);
  EXPECT_EQ(questions[1].choices[1], (std::vector<int32_t>{' ', 'i', 's'}));  // HellaSwag's endings follow a space
  EXPECT_EQ(questions[1].characters[1], 2);
  EXPECT_EQ(questions[1].label, 2);
}

// A tokenizer that puts a space in front of a text does not in front of a choice.
TEST_F(QuestionsTest, ChoicesAreTokenizedAsContinuations) {
  write_bytes(dir / "q.jsonl", R"({"context": "Hello", "choices": [" world", "the"], "label": 1})");
  const auto tokenizer = load_tokenizer("tests/tokenizer/fixtures/sentencepiece/llama.model");
  const auto questions = read_questions(dir / "q.jsonl", *tokenizer, {.seq_length = 50, .vocab_size = 620});
  auto both = questions[0].context;
  both.insert(both.end(), questions[0].choices[0].begin(), questions[0].choices[0].end());
  EXPECT_EQ(both, tokenizer->encode("Hello world"));
}

TEST_F(QuestionsTest, EmptyContextBecomesEndOfDocument) {
  EXPECT_EQ(read(R"({"context": "", "choices": ["a", "b"], "label": 0})")[0].context, std::vector<int32_t>{256});
}

// After an empty context a choice is tokenized as a document is, with a space in front.
TEST_F(QuestionsTest, ChoicesOfEmptyContextsAreTokenizedAsDocuments) {
  write_bytes(dir / "q.jsonl", R"({"context": "", "choices": ["Hello", "the"], "label": 1})");
  const auto tokenizer = load_tokenizer("tests/tokenizer/fixtures/sentencepiece/llama.model");
  const auto questions = read_questions(dir / "q.jsonl", *tokenizer, {.seq_length = 50, .vocab_size = 620});
  EXPECT_EQ(questions[0].context, std::vector<int32_t>{tokenizer->eod_id()});
  EXPECT_EQ(questions[0].choices[0], tokenizer->encode("Hello"));
}

TEST_F(QuestionsTest, InvalidLinesAreNamed) {
  refuse("{", {"JSON object"});
  refuse("[1]", {"JSON object"});
  refuse(std::string(200'000, '['), {"nested deeper"});
  refuse(R"({"context": "a", "label": 0})", {"choices", "endings"});
  refuse(R"({"choices": ["a", "b"], "label": 0})", {"\"context\""});
  refuse(R"({"context": 3, "choices": ["a", "b"], "label": 0})", {"\"context\""});
  refuse(R"({"context": "a", "choices": ["a"], "label": 0})", {"2 to 256", "got 1"});
  refuse(R"({"context": "a", "choices": ["a", 5], "label": 0})", {"expected texts", "5"});
  refuse(R"({"context": "a", "choices": ["a", ""], "label": 0})", {"choice 1 is empty"});
  refuse(R"({"context": "a", "choices": ["a", "b"], "label": 2})", {"label", "0 to 1", "got 2"});
  refuse(R"({"context": "a", "choices": ["a", "b"], "label": "-1"})", {"label", "-1"});
  refuse(R"({"context": "a", "choices": ["a", "b"], "label": "1x"})", {"label", "1x"});
  refuse(R"({"context": "a", "choices": ["a", "b"]})", {"label", "none"});
  refuse(cat(R"({"context": "a", "choices": ["a", ")", std::string(51, 'b'), R"("], "label": 1})"),
         {"choice 1", "51 tokens", "50"});
  write_bytes(dir / "q.jsonl", R"({"context": "a", "choices": [" ", "b"], "label": 1})");
  const auto trims = load_tokenizer("tests/tokenizer/fixtures/sentencepiece/rules.model");
  EXPECT_ERROR(read_questions(dir / "q.jsonl", *trims, {.seq_length = 9, .vocab_size = 1000}), "line 1",
               "choice 0 has no token");
  EXPECT_ERROR(read("\n \n"), "q.jsonl", "no question");
  EXPECT_ERROR(read(R"({"context": "z", "choices": ["a", "b"], "label": 1})", {.seq_length = 9, .vocab_size = 100}),
               "token 122", "100", "tokenizer");
}

TEST_F(QuestionsTest, AMissingFileIsAUsageError) {  // exit code 2: `athanor launch` does not start the ranks again
  try {
    read_questions(dir / "none.jsonl", ByteTokenizer(), {.seq_length = 9, .vocab_size = 1000});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::usage) << e.what();
  }
}

}  // namespace
}  // namespace athanor
