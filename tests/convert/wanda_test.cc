// Pruning by Wanda: rows by hand, and folders in which the other weights keep their bits.
#include "convert/wanda.h"

#include "convert/floats.h"
#include "convert/hf_folder.h"
#include "tests/convert/model_scratch.h"

namespace athanor::test {
namespace {

class Wanda : public ModelScratch {};

TEST_F(Wanda, RowsLoseTheSmallestProductsOfWeightAndInput) {
  // |w| |x|: 4, 1, 3, 2, 0.5, 6, 0, 5
  const std::vector<double> squares = {1, 1, 9, 4, 0.25, 4, 0, 25};
  const std::vector<float> weights = {4, -1, 1, -1, 1, 3, 100, -1};
  std::vector<float> row = weights;
  prune_row(row, squares, {.sparsity = 0.5});
  EXPECT_EQ(row, (std::vector<float>{4, 0, 1, 0, 0, 3, 0, -1}));
  row = weights;
  prune_row(row, squares, {.pattern = PrunePattern::two_of_four});
  EXPECT_EQ(row, (std::vector<float>{4, 0, 1, 0, 0, 3, 0, -1}));
  row = weights;
  prune_row(row, squares, {.sparsity = 0.25});
  EXPECT_EQ(row, (std::vector<float>{4, -1, 1, -1, 0, 3, 0, -1}));
  row = {1, 1, 1, 1};
  prune_row(row, std::vector<double>(4, 1), {.pattern = PrunePattern::two_of_four});
  EXPECT_EQ(row, (std::vector<float>{0, 0, 1, 1})) << "of equal weights the first";
}

TEST_F(Wanda, SharesAreReadAndOthersAreNot) {
  EXPECT_EQ(wanda_named("0.3")->sparsity, 0.3);
  EXPECT_EQ(wanda_named("2:4")->pattern, PrunePattern::two_of_four);
  for (const char* text : {"", "0", "1", "-0.5", "nan", "50%", "2:8", "0.5x"}) EXPECT_FALSE(wanda_named(text)) << text;
}

TEST_F(Wanda, FoldersKeepTheOtherWeights) {
  fill(shape(ModelType::llama), DType::bf16);
  const ModelFolder model(write("model"));
  Importance inputs;
  for (const auto& w : model.weights())
    if (w.role == Role::matrix)
      for (int64_t i = 0; i < w.shape[1]; ++i) inputs[w.name].sums.push_back(1 + double(i * 5 % 7));
  WandaPruning wanda{.sparsity = 0.5, .inputs = &inputs};
  write_hf_folder(model, at("pruned"), {.wanda = wanda});
  const ModelFolder pruned(at("pruned"));
  std::vector<std::byte> bytes;
  std::vector<float> before, after;
  for (const auto& w : model.weights()) {
    model.read(w, 0, w.shape[0], bytes);
    to_floats(bytes, w.dtype, before);
    pruned.read(pruned.at(w.name), 0, w.shape[0], bytes);
    to_floats(bytes, pruned.at(w.name).dtype, after);
    const auto zeros = std::ranges::count(after, 0.0f);
    EXPECT_EQ(zeros, w.role == Role::matrix ? w.shape.numel() / 2 : std::ranges::count(before, 0.0f)) << w.name;
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(after[i] == 0 || after[i] == before[i]) << w.name;
  }
}

}  // namespace
}  // namespace athanor::test
