// Conversations: every JSON schema gives the same turns; each template's text and its trained part match the published
// ones; rows hold whole conversations, and shards have masks of trained tokens.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "data/dataset.h"
#include "data/glob.h"
#include "data/tokenize.h"
#include "data/tokenize_chats.h"
#include "data_testing.h"
#include "tests/expect_error.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

using Role = ChatMessage::Role;

const Conversation kShort = {{Role::user, "Hi"}, {Role::assistant, "Hello"}};
const Conversation kLong = {{Role::system, "Be kind."},
                            {Role::user, "Hi"},
                            {Role::assistant, "Hello"},
                            {Role::user, "And?"},
                            {Role::assistant, " Bye "}};

std::string chat_error(std::string_view line, std::optional<ChatShape> shape = {}) {
  try {
    parse_chat(line, shape);
    return "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::usage);
    return e.what();
  }
}

TEST(Chat, RecognizesEveryJsonSchema) {
  for (const char* line :
       {R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]})",
        R"({"prompt": "Hi", "completion": "Hello"})",
        R"({"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "Hello"}]})",
        R"({"instruction": "Hi", "input": "", "output": "Hello"})", R"({"instruction": "Hi", "output": "Hello"})",
        R"({"id": 3, "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]})"})
    EXPECT_EQ(parse_chat(line), kShort) << line;
  EXPECT_EQ(parse_chat(R"({"instruction": "Add", "input": "1 2", "output": "3"})")[0].content, "Add\n\n1 2");
  EXPECT_EQ(parse_chat(R"({"prompt": "x", "completion": "y", "messages": [{"role": "user", "content": "Hi"}]})",
                       ChatShape::prompt)[0]
                .content,
            "x");
}

TEST(Chat, InvalidLinesReportWhatWasExpected) {
  EXPECT_NE(chat_error("{").find("not JSON"), std::string::npos);
  EXPECT_NE(chat_error("[1]").find("expected an object, got array"), std::string::npos);
  EXPECT_NE(chat_error(R"({"text": "a"})").find("messages, prompt, instruction, conversations"), std::string::npos);
  EXPECT_NE(chat_error(R"({"messages": []})").find("a list of turns"), std::string::npos);
  EXPECT_NE(chat_error(R"({"messages": [{"role": "tool", "content": "a"}]})").find("messages[0]: the role \"tool\""),
            std::string::npos);
  EXPECT_NE(chat_error(R"({"messages": [{"role": "user", "content": 3}]})").find("expected a string, got number"),
            std::string::npos);
  EXPECT_NE(chat_error(R"({"prompt": "a"})").find("completion"), std::string::npos);
  EXPECT_NE(chat_error(R"({"messages": []})", ChatShape::sharegpt).find("conversations"), std::string::npos);
}

// The text of a conversation, with the trained parts in brackets.
std::string written(ChatTemplate which, const Conversation& chat) {
  std::string text;
  for (const ChatSegment& s : apply_template(which, chat)) {
    const std::string part = s.kind == ChatSegment::Kind::end ? "<eod>" : s.text;
    text += s.learnt ? cat("[", part, "]") : part;
  }
  return text;
}

TEST(Chat, TemplatesMatchPublishedOnes) {
  EXPECT_EQ(written(ChatTemplate::chatml, kLong),
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n[Hello][<|im_end|>]\n<|im_start|>user\nAnd?<|im_end|>\n"
            "<|im_start|>assistant\n[ Bye ][<|im_end|>]\n");
  EXPECT_EQ(written(ChatTemplate::llama3, kLong),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[Hello][<|eot_id|>]"
            "<|start_header_id|>user<|end_header_id|>\n\nAnd?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[Bye][<|eot_id|>]");
  EXPECT_EQ(written(ChatTemplate::llama2, kLong),
            "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHi [/INST][ Hello ][</s>]<s>[INST] And? [/INST][ Bye ][</s>]");
  EXPECT_EQ(written(ChatTemplate::mistral, kShort), "<s>[INST] Hi [/INST][ Hello][</s>]");
  EXPECT_EQ(written(ChatTemplate::gemma, kLong),
            "<bos><start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n<start_of_turn>model\n[Hello][<end_of_turn>]\n"
            "<start_of_turn>user\nAnd?<end_of_turn>\n<start_of_turn>model\n[Bye][<end_of_turn>]\n");
  EXPECT_EQ(written(ChatTemplate::plain, kShort), "Hi[Hello][<eod>]");
}

TEST(Chat, TurnsOutOfOrderAreRefused) {
  const Conversation twice = {{Role::user, "a"}, {Role::user, "b"}, {Role::assistant, "c"}};
  for (const ChatTemplate which : {ChatTemplate::llama2, ChatTemplate::mistral, ChatTemplate::gemma})
    EXPECT_THROW(apply_template(which, twice), Error);
  EXPECT_FALSE(apply_template(ChatTemplate::chatml, twice).empty());
}

TEST(BestFit, FillsRowsWithTheLargestPiecesFirst) {
  const std::vector<int64_t> sizes = {3, 7, 2, 8, 5, 5};
  const auto rows = best_fit(sizes, 10);
  EXPECT_EQ(rows, (std::vector<std::vector<size_t>>{{3, 2}, {1, 0}, {4, 5}}));
}

class ChatShards : public ::testing::Test {
 protected:
  ChatShards() {
    std::ofstream out(path("in.jsonl"));
    for (int i = 0; i < 20; ++i)
      out << R"({"prompt": "question )" << i << R"(", "completion": ")" << std::string(size_t(i % 5 + 1), 'x')
          << "\"}\n\n";
    out << R"({"messages": [{"role": "user", "content": "nobody answers"}]})";
  }
  std::string path(const std::string& name) const { return dir_.path() + "/" + name; }
  ChatOptions options(int64_t pack) const {
    return {.inputs = {path("in.jsonl")},
            .output_prefix = path("out"),
            .form = ChatTemplate::plain,
            .pack = pack,
            .valid_every = 0};
  }
  testing::TempDir dir_;
};

TEST_F(ChatShards, OnlyAnswersAreTrained) {
  const std::string text = tokenize_chats(options(0));
  EXPECT_NE(text.find("21 conversations, 1 without an answer left out"), std::string::npos) << text;
  const TokenFile shard = TokenFile::open(path("out_train.ds"));
  std::vector<int32_t> tokens(size_t(shard.count()));
  std::vector<uint8_t> mask(tokens.size());
  shard.read(0, tokens);
  shard.read_mask(0, mask);
  int64_t learnt = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(mask[i] != 0, tokens[i] == 'x' || tokens[i] == 256) << i;
    learnt += mask[i];
  }
  EXPECT_EQ(learnt, 4 * (1 + 2 + 3 + 4 + 5) + 20);
  EXPECT_THROW(tokenize_chats(options(0)), Error) << "shards that are there already";
}

TEST_F(ChatShards, RowsHoldCompleteConversations) {
  tokenize_chats(options(40));
  const Dataset data = Dataset::open({{.path_glob = path("out_train.ds")}}, 40, 257);
  const PackingOptions packing{.reset_attention_mask = true, .reset_position_ids = true, .max_documents = 8};
  int64_t learnt = 0;
  for (int64_t w = 0; w < data.windows(); ++w) {
    std::vector<int32_t> tokens(40), targets(40), positions(40);
    std::vector<Document> documents(8);
    data.read_row(data.at(0, w), packing, {tokens, targets, positions, documents});
    EXPECT_EQ(tokens[0], 'q') << "a row begins with a conversation";
    for (size_t i = 0; i < 40; ++i) learnt += targets[i] >= 0;
    for (const Document& d : documents) {
      if (d.length == 0 || tokens[size_t(d.begin)] != 'q') continue;
      EXPECT_EQ(tokens[size_t(d.begin + d.length) - 1], 256);
    }
  }
  EXPECT_EQ(learnt, 4 * (1 + 2 + 3 + 4 + 5) + 20) << "every answer once";
}

TEST_F(ChatShards, DataWithoutTrainedTokensIsRefused) {
  std::ofstream(path("in.jsonl")) << R"({"messages": [{"role": "user", "content": "nobody answers"}]})";
  try {
    tokenize_chats(options(0));
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("no conversation to train on: 1 lines, 1 of them without an answer"),
              std::string::npos)
        << e.what();
  }
}

TEST_F(ChatShards, FailuresLeaveNothing) {
  {
    const FileSizeLimit limit(100);  // enough for the tokenizer and the first side file
    EXPECT_ERROR(tokenize_chats(options(0)), "out_train.ds.index");
  }
  EXPECT_EQ(match_glob(path("out_*")), std::vector<std::string>{});
  EXPECT_FALSE(std::filesystem::exists(path("tokenizer.athanor.json")));
  tokenize_chats(options(0));
  EXPECT_TRUE(std::filesystem::exists(path("tokenizer.athanor.json")));
}

TEST_F(ChatShards, TemplatesOfOtherTokenizersAreRefused) {
  ChatOptions o = options(0);
  o.form = ChatTemplate::chatml;
  try {
    tokenize_chats(o);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("line 1: the template needs the special token <|im_start|>"),
              std::string::npos)
        << e.what();
  }
}

// Shards of either kind keep the tokenizer that they were written with.
TEST_F(ChatShards, OneFolderHasOneTokenizer) {
  tokenize_chats(options(0));
  std::ofstream(path("text.txt")) << "some words";
  TokenizeOptions texts{.output_prefix = path("mine"), .overwrite = true};
  texts.documents = {.inputs = {path("text.txt")}, .valid_every = 0};
  texts.tokenizer.source = "tests/tokenizer/fixtures/sentencepiece/llama.model";
  EXPECT_ERROR(tokenize(texts), "another tokenizer", "out_train.ds");
  std::filesystem::remove(path("out_train.ds"));
  tokenize(texts);
  ChatOptions chats = options(0);
  chats.overwrite = true;
  EXPECT_ERROR(tokenize_chats(chats), "another tokenizer", "mine_train_000000.bin");
}

// A tokenizer that puts a space in front of a text does so behind a template's token, not between its texts.
TEST_F(ChatShards, AdjacentTextsAreTokenizedAsOne) {
  std::ofstream(path("in.jsonl")) << R"({"prompt": "Hello world", "completion": "the answer"})";
  ChatOptions o = options(0);
  o.tokenizer.source = "tests/tokenizer/fixtures/sentencepiece/llama.model";
  o.form = ChatTemplate::llama2;
  tokenize_chats(o);
  const TokenFile shard = TokenFile::open(path("out_train.ds"));
  std::vector<int32_t> tokens(size_t(shard.count())), expected = {1};
  shard.read(0, tokens);
  for (const int32_t id : make_tokenizer(o.tokenizer)->encode("[INST] Hello world [/INST] the answer "))
    expected.push_back(id);
  expected.push_back(2);
  EXPECT_EQ(tokens, expected);
}

}  // namespace
}  // namespace athanor
