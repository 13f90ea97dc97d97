// Fine-tuning data: the first sample is logged with its trained tokens marked; a step's loss is the mean over trained
// tokens, whatever the micro-batches.
#include <gtest/gtest.h>

#include <fstream>

#include "data/tokenize_chats.h"
#include "tests/train/trainer_rig.h"
#include "tokenizer/load.h"
#include "train/masked_sample.h"

namespace athanor {
namespace {

class ChatRun : public TrainerTest {
 protected:
  ChatRun() {
    std::ofstream out(dir_.path() + "/in.jsonl");
    for (int i = 0; i < 40; ++i)  // answers of very different lengths
      out << R"({"prompt": "ab", "completion": ")" << std::string(i % 7 == 0 ? 11 : 1, 'c') << "\"}\n";
    out.close();
    tokenize_chats({.inputs = {dir_.path() + "/in.jsonl"},
                    .output_prefix = dir_.path() + "/chats/x",
                    .form = ChatTemplate::plain,
                    .pack = 16,
                    .valid_every = 0});
  }
  std::vector<std::string> set(std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"train_data=" + dir_.path() + "/chats/x_train.ds",
                                    "valid_data=[]",
                                    "model.vocab_size=257",
                                    "documents.reset_attention_mask=true",
                                    "documents.reset_position_ids=true",
                                    "documents.max_per_sequence=8"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_F(ChatRun, FirstSampleMarksTrainedTokens) {
  const Dataset data = Dataset::open({{.path_glob = dir_.path() + "/chats/x_train.ds"}}, 16, 257);
  ASSERT_TRUE(data.has_loss_mask());
  const auto tokenizer = find_tokenizer(data.first_shard());
  const std::string text = masked_sample(data, {}, {.shuffled = false}, 0, *tokenizer);
  EXPECT_NE(text.find("12 of them learnt"), std::string::npos) << text;
  EXPECT_NE(text.find("ab>>ccccccccccc"), std::string::npos) << text;
}

TEST_F(ChatRun, FirstBestFitPackedSampleMarksTrainedTokens) {
  Dataset data = Dataset::open({{.path_glob = dir_.path() + "/chats/x_train.ds"}}, 16, 257);
  data.pack({.eod_id = 256});
  const auto tokenizer = find_tokenizer(data.first_shard());
  const std::string text = masked_sample(data, {}, {.shuffled = false}, 0, *tokenizer);
  EXPECT_NE(text.find("ab>>c"), std::string::npos) << text;
}

TEST_F(ChatRun, LossIsTheMeanOverTargetsOfTheGlobalBatch) {
  ASSERT_EQ(run(config("one", set({"micro_batch_size=4"}))), Exit::done);
  ASSERT_EQ(run(config("four", set({"micro_batch_size=1"}))), Exit::done);
  const auto one = history("one"), four = history("four");
  ASSERT_EQ(one.steps.size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(one.steps[i].loss, four.steps[i].loss, 1e-5) << i;
}

}  // namespace
}  // namespace athanor
