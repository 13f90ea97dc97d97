// Pruning by Wanda: rows computed by hand, and folders whose other weights keep their bits.
#include "convert/sparsity.h"

#include "convert/floats.h"
#include "convert/hf_folder.h"
#include "tests/convert/model_scratch.h"

namespace athanor::test {
namespace {

class Wanda : public ModelScratch {};

TEST_F(Wanda, PrunesTheSmallestWeightTimesInputNormPerRow) {
  // |w| |x|: 4, 1, 3, 2, 0.5, 6, 0, 5
  const std::vector<float> squares = {1, 1, 9, 4, 0.25, 4, 0, 25};
  const std::vector<float> weights = {4, -1, 1, -1, 1, 3, 100, -1};
  std::vector<float> row = weights;
  prune_by_wanda(row, squares, {.share = 0.5});
  EXPECT_EQ(row, (std::vector<float>{4, 0, 1, 0, 0, 3, 0, -1}));
  row = weights;
  prune_by_wanda(row, squares, {.pattern = PrunePattern::two_of_four});
  EXPECT_EQ(row, (std::vector<float>{4, 0, 1, 0, 0, 3, 0, -1}));
  row = weights;
  prune_by_wanda(row, squares, {.share = 0.25});
  EXPECT_EQ(row, (std::vector<float>{4, -1, 1, -1, 0, 3, 0, -1}));
  row = {1, 1, 1, 1};
  prune_by_wanda(row, std::vector<float>(4, 1), {.pattern = PrunePattern::two_of_four});
  EXPECT_EQ(row, (std::vector<float>{0, 0, 1, 1})) << "of equal weights the first";
}

TEST_F(Wanda, ParsesSparsityAndPatternNames) {
  EXPECT_EQ(sparsity_named("0.3")->share, 0.3);
  EXPECT_EQ(sparsity_named("2:4")->pattern, PrunePattern::two_of_four);
  for (const char* text : {"", "0", "1", "-0.5", "nan", "50%", "2:8", "0.5x"})
    EXPECT_FALSE(sparsity_named(text)) << text;
}

TEST_F(Wanda, PrunesFoldersTwoOfFourAndKeepsOtherWeights) {
  for (const ModelType family : {ModelType::llama, ModelType::gpt2}) {  // [out, in] and [in, out]
    fill(shape(family), DType::bf16);
    const std::string name(name_of(family));
    const ModelFolder model(write(name));
    const Sparsity half{.pattern = PrunePattern::two_of_four};
    const auto prune = [&](const std::string&, std::span<float> values, int64_t in) {
      prune_by_wanda(values, std::vector<float>(size_t(in), 1), half);
    };
    write_hf_folder(model, at(name + "-pruned"), {.pruned = PrunedExport{half, "--wanda", prune}});
    const ModelFolder pruned(at(name + "-pruned"));
    std::vector<std::byte> bytes;
    std::vector<float> before, after;
    for (const auto& w : model.weights()) {
      model.read(w, 0, w.shape[0], bytes);
      to_floats(bytes, w.dtype, before);
      pruned.read(pruned.at(w.name), 0, w.shape[0], bytes);
      to_floats(bytes, pruned.at(w.name).dtype, after);
      for (size_t i = 0; i < before.size(); ++i)
        EXPECT_TRUE(after[i] == before[i] || (after[i] == 0 && w.role == Role::matrix)) << w.name;
      if (w.role != Role::matrix) continue;
      const auto columns = size_t(w.shape[1]), next_input = family == ModelType::gpt2 ? columns : 1;
      for (size_t i = 0; i < after.size(); ++i)
        if ((family == ModelType::gpt2 ? i / columns : i % columns) % 4 == 0) {
          int zeros = 0;
          for (size_t k = 0; k < 4; ++k) zeros += after[i + k * next_input] == 0;
          EXPECT_EQ(zeros, 2) << w.name << " " << i;
        }
    }
  }
}

}  // namespace
}  // namespace athanor::test
