// The coordinate check of muP [Yang et al. 2022]: after a few steps activations of models of any width are of one size,
// for AdamW, Lion and Muon; without it they are not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "config/config.h"
#include "ops/decorate.h"
#include "tests/train/harness.h"
#include "train/setup.h"

namespace athanor {
namespace {

using testing::Rig;

constexpr int64_t kBase = 64, kVocab = 64, kTime = 16, kSequences = 8, kSteps = 5;

// Root mean squares of what products and attention make, in the order of launches.
class Sizes final : public Decorated<Sizes> {
 public:
  Sizes(Ops& work, Rig& rig) : work_(work), rig_(rig) {}
  const Ops& inner() const { return work_; }
  template <class Op>
  void on(const Op& op, void* scratch) {
    work_.run(op, scratch);
    if constexpr (std::is_same_v<Op, Gemm>) note(op.d);
    if constexpr (std::is_same_v<Op, AttentionFwd>) note(op.y);
  }
  std::vector<double> all;

 private:
  void note(const Tensor& t) {
    double sum = 0;
    for (const float x : rig_.read<float>(t)) sum += double(x) * double(x);
    all.push_back(std::sqrt(sum / double(t.numel())));
  }
  Ops& work_;
  Rig& rig_;
};

std::vector<int32_t> tokens_of(int64_t step) {
  std::vector<int32_t> tokens(size_t(kSequences * kTime));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = int32_t(random_bits(3, stream_of("tokens"), uint64_t(step) << 32 | i) % uint64_t(kVocab));
  return tokens;
}

std::vector<double> sizes_after_steps(const std::string& model, int64_t width, const std::string& keys) {
  const std::string json =
      cat(R"({"model": {"model_type": ")", model, R"(", "vocab_size": )", kVocab, R"(, "hidden_size": )", width,
          R"(, "num_hidden_layers": 2, "num_attention_heads": )", width / 16,
          R"(, "head_dim": 16, "intermediate_size": )", 3 * width, R"(, "max_position_embeddings": )", kTime,
          R"(}, "train_iters": 100, "global_batch_size": )", kSequences, R"(, "micro_batch_size": )", kSequences,
          R"(, "precision": "fp32", "lr_decay_style": "constant", )", keys, "}");
  const Config config = parse_config(json, "test", ".");
  Rig rig;
  Engine engine(config.model, engine_options(config, true), rig.backend());
  engine.commit();
  engine.init_weights();
  PhaseClock clock;
  for (int64_t step = 0; step < kSteps; ++step) {
    engine.micro_batch(tokens_of(step), tokens_of(step), clock);
    engine.finish_step();
  }
  Sizes sizes(*rig.ops, rig);
  engine.set_ops(sizes);
  engine.evaluate(tokens_of(0), tokens_of(0));
  engine.set_ops(*rig.ops);
  return sizes.all;
}

// The largest ratio over the widths of what any one launch makes.
double spread(const std::string& model, const std::string& keys) {
  std::vector<double> least, most;
  for (const int64_t width : {kBase, 3 * kBase / 2, 2 * kBase, 3 * kBase}) {
    const std::vector<double> sizes = sizes_after_steps(model, width, keys);
    if (least.empty()) least = most = sizes;
    EXPECT_EQ(sizes.size(), least.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      least[i] = std::min(least[i], sizes[i]);
      most[i] = std::max(most[i], sizes[i]);
    }
  }
  EXPECT_EQ(least.size(), 2 * 5 + 1U) << "products and attention of two blocks, and the head's";
  double worst = 0;
  for (size_t i = 0; i < least.size(); ++i) {
    worst = std::max(worst, most[i] / least[i]);
  }
  return worst;
}

TEST(Mup, ActivationsAreFlatOverWidths) {
  const std::string base = cat(", \"mup_base_width\": ", kBase);
  for (const char* model : {"gpt2", "llama"})
    for (const char* keys : {R"("learning_rate": 0.006)", R"("optimizer": "lion", "learning_rate": 0.003)",
                             R"("optimizer": "muon", "muon_scale": "spectral", "learning_rate": 0.02)"}) {
      EXPECT_LT(spread(model, keys + base), 1.3) << model << " " << keys;
      EXPECT_GT(spread(model, keys), 1.3) << model << " " << keys << ": without muP";
    }
}

}  // namespace
}  // namespace athanor
