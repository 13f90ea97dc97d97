// Amax passed to Quantize by the op that produced the matrix, with fp8_tensorwise: each equals the one that Quantize
// would compute, so that no bit changes, with every recomputation granularity; planted mistakes are detected; other
// recipes and layers in 16 bits do not request it.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>

#include "base/rng.h"
#include "config/choices.h"
#include "ops/decorate.h"
#include "tests/tiny_model.h"
#include "tests/train/curve.h"

namespace athanor::amax {
namespace {

using testing::Curve;
using testing::Rig;
using G = Recompute::Granularity;

enum class Given : uint8_t { as_left, dropped, of_the_step_before, not_rounded };

// CPU ops that check the amax passed to Quantize, or change it.
class AmaxOps final : public Decorated<AmaxOps> {
 public:
  AmaxOps(Ops& inner, Given given) : inner_(inner), given_(given) {}
  const Ops& inner() const { return inner_; }
  template <class Op>
  void on(const Op& op, void* scratch) {
    if constexpr (std::is_same_v<Op, Quantize>)
      if (op.amax) return quantize(op, scratch);
    constexpr bool reads = std::is_same_v<Op, Quantize> || std::is_same_v<Op, DelayedScales> ||
                           std::is_same_v<Op, AmaxOfPart> || std::is_same_v<Op, QuantizePart>;
    if constexpr (requires { op.amax; } && !reads) left += bool(op.amax);
    inner_.run(op, scratch);
  }
  int64_t left = 0, taken = 0, wrong = 0;  // numbers of launches

 private:
  void quantize(Quantize op, void* scratch) {
    const float now = *op.amax.as<float>();
    ++taken;
    wrong += std::bit_cast<uint32_t>(now) != found(op.x);
    float planted = now;
    if (given_ == Given::of_the_step_before) planted = before_.emplace(op.amax.data, now).first->second;
    if (given_ == Given::not_rounded) planted = now * 1.001f;
    before_[op.amax.data] = now;
    op.amax.data = &planted;
    if (given_ == Given::dropped) op.amax = {};
    inner_.run(op, scratch);
  }
  static uint32_t found(const Tensor& x) {
    uint32_t most = 0;
    by_float(x.dtype, [&]<class T>() {
      for (int64_t i = 0; i < x.numel(); ++i)
        most = std::max(most, std::bit_cast<uint32_t>(to_float(x.as<T>()[i])) & 0x7fffffffu);
    });
    return most;
  }
  Ops& inner_;
  Given given_;
  std::map<void*, float> before_;
};

struct Setting {
  ModelType type = ModelType::llama;
  std::string precision = "fp8_tensorwise";
  Given given = Given::as_left;
  Recompute recompute = {};
  HighLayers high = {};
  int64_t steps = 10;
};
constexpr int64_t kLength = 16, kSequences = 4, kVocab = 67, kLayers = 3;

EngineOptions options(const Setting& s) {
  EngineOptions o;
  o.recipe = make_recipe(s.precision, DType::f32);
  o.high_layers = s.high;
  o.recompute = s.recompute;
  o.seq_length = kLength;
  o.micro_batch_size = o.global_batch_size = kSequences;
  o.seed = o.optimizer.seed = 7;
  o.schedule = {.style = DecayStyle::constant, .lr = 3e-3, .min_lr = 3e-3};
  o.clip_grad = 1;
  return o;
}

struct Outcome {
  Curve curve;
  int64_t left = 0, taken = 0, wrong = 0;  // as in AmaxOps; the first two per step
};
Outcome train(const Setting& s) {
  Rig rig;
  Backend backend = rig.backend();
  AmaxOps ops(backend.ops, s.given);
  const ModelConfig model = testing::tiny_model(s.type, {.vocab = kVocab,
                                                         .hidden = 32,
                                                         .layers = kLayers,
                                                         .heads = 4,
                                                         .kv_heads = 2,
                                                         .intermediate = 144,
                                                         .positions = kLength});
  Engine engine(model, options(s), {backend.device, ops, backend.mesh});
  Outcome run;
  run.curve = curve_of(rig, engine, s.steps, [](Engine& e, int64_t step) {
    std::vector<int32_t> tokens, targets;
    for (int64_t i = 0; i < kSequences * kLength; ++i) {
      const auto token = int32_t(random_bits(3, stream_of("tokens"), uint64_t(step * 64 + i)) % kVocab);
      tokens.push_back(token), targets.push_back(token * 7 % kVocab);
    }
    PhaseClock clock;
    e.micro_batch(tokens, targets, clock);
  });
  run.left = ops.left / s.steps, run.taken = ops.taken / s.steps, run.wrong = ops.wrong;
  return run;
}

// The inputs of a block's four linear layers (backward quantizes the attention output once more), and the output
// gradients of three of them: not the one computed by attention.
TEST(Amax, MatchesTheQuantizeKernelBitExactly) {
  for (const ModelType type : {ModelType::gpt2, ModelType::llama, ModelType::qwen3}) {
    const Outcome found = train({.type = type, .given = Given::dropped});
    for (const Recompute r : {Recompute{}, Recompute{G::selective, 1}, Recompute{G::full, 1}, Recompute{G::full, 2}}) {
      const Outcome run = train({.type = type, .recompute = r});
      EXPECT_EQ(run.curve, found.curve) << name_of(type) << " " << to_text(r);
      EXPECT_EQ(run.wrong, 0) << name_of(type) << " " << to_text(r);
      const int64_t again = r.granularity == G::selective ? 3 * kLayers : 0;
      if (r.granularity != G::full) {
        EXPECT_EQ(run.taken, 8 * kLayers + again) << "selective recomputation quantizes inputs again";
        EXPECT_EQ(run.left, 7 * kLayers) << name_of(type) << " each is found once";
      } else {
        EXPECT_GE(run.taken, 8 * kLayers);
      }
    }
  }
}

TEST(Amax, MistakesAreNoticed) {
  for (const ModelType type : {ModelType::gpt2, ModelType::llama}) {
    const Curve want = train({.type = type}).curve;
    for (const Given given : {Given::of_the_step_before, Given::not_rounded})
      EXPECT_NE(train({.type = type, .given = given}).curve.weights, want.weights) << int(given);
  }
}

TEST(Amax, IsComputedOnlyWhereItIsRead) {
  for (const char* precision : {"bf16", "fp8_delayed", "fp8_rowwise", "fp8_rowwise_gw_hp", "fp8_blockwise", "mxfp8"}) {
    const Outcome run = train({.precision = precision, .steps = 1});
    EXPECT_EQ(run.left + run.taken, 0) << precision;
  }
  // Without the last block and the down projections: 3 inputs, one of them twice, and 2 gradients in each of two
  // blocks.
  const Outcome run = train({.high = {.last = 1, .match = {"*down_proj*"}}, .steps = 2});
  EXPECT_EQ(run.left, 10);
  EXPECT_EQ(run.taken, 12);
  EXPECT_EQ(run.wrong, 0);
}

}  // namespace
}  // namespace athanor::amax
