// Expert parallelism, on threads: gives the same run as one rank. Rows are sent to the ranks of their experts and back.
#include <gtest/gtest.h>

#include "comm/network.h"
#include "infer/text_scores.h"
#include "ops/moe.h"
#include "perf/traffic.h"
#include "tests/temp_dir.h"
#include "tests/train/ranks_rig.h"
#include "tests/train/trainer_ranks.h"

namespace athanor {
namespace {

using ranks::Curve;
using ranks::Setting;

// Two steps of a model whose experts contribute to its gradients.
struct Steps {
  std::vector<double> routing;  // counts of the routers of all ranks
  std::vector<double> losses, norms;
};
Steps two_steps(const Setting& s) {
  Steps steps;
  std::mutex mutex;
  ModelConfig model = ranks::tiny(s);
  model.initializer_range = 0.4;
  const auto body = [&](Engine& engine, ProcessMesh&, const CpuBackend&) {
    Steps mine;
    for (int64_t step = 0; step < 2; ++step) {
      ranks::accumulate(engine, step);
      const StepState state = engine.finish_step();
      mine.losses.push_back(state.loss / state.loss_targets), mine.norms.push_back(state.grad_norm);
    }
    mine.routing = engine.take_routing();
    const std::lock_guard lock(mutex);
    steps.losses = mine.losses, steps.norms = mine.norms;
    steps.routing.resize(mine.routing.size());
    for (size_t i = 0; i < mine.routing.size(); ++i) steps.routing[i] += mine.routing[i];
  };
  ranks::on_ranks(s, ranks::options(s), body, model);
  return steps;
}

void expect_same_bits(const Curve& a, const Curve& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.norms, b.norms) << what;
  EXPECT_EQ(a.masters, b.masters) << what;
  EXPECT_EQ(a.evaluation, b.evaluation) << what;
}

Setting dots(int replicas, int shards, int experts) {
  return {.type = ModelType::dots1, .replicas = replicas, .shards = shards, .experts = experts};
}

// Also with replicas of the experts: their gradients are summed only over the replicas, and counted once in the norm.
TEST(ExpertParallel, MatchesOneRank) {
  const Curve want = ranks::train(dots(1, 1, 1));
  for (const Setting& s : {dots(1, 2, 2), dots(1, 3, 3), dots(2, 2, 2), dots(1, 4, 2), dots(1, 6, 6)})
    ranks::expect_same(want, ranks::train(s), 1e-5, s.name());
}

TEST(ExpertParallel, MatchesOneRankInEveryFamilyModeAndOptimizer) {
  using Mode = Recompute::Granularity;
  for (Setting s : {Setting{.type = ModelType::qwen3_moe, .accumulation = 2, .recompute = Mode::full, .sequences = 90},
                    Setting{.type = ModelType::olmoe, .recompute = Mode::selective, .masked = true, .sequences = 90},
                    Setting{.type = ModelType::mixtral, .sequences = 90, .ema = 0.9},
                    Setting{.type = ModelType::qwen3_moe, .lr = 1e-2, .sequences = 90, .rule = RuleName::sgd}}) {
    const Curve want = ranks::train(s);
    s.shards = s.experts = 5;
    ranks::expect_same(want, ranks::train(s), 1e-5, s.name());
  }
}

// With two replicas of the experts, each expert is sharded over two ranks; with one, each rank holds its experts whole,
// next to shards of all other weights.
TEST(ExpertParallel, MatchesOneRankWithShards) {
  const Curve want = ranks::train(dots(1, 1, 1));
  for (const int stage : {1, 2, 3})
    for (Setting s : {dots(1, 4, 2), dots(1, 2, 2), dots(2, 2, 2)}) {
      s.stage = stage;
      s.accumulation = stage == 1 ? 1 : 2;
      ranks::expect_same(want, ranks::train(s), 1e-5, s.name());
    }
  Setting bf16 = dots(1, 4, 2);
  bf16.precision = "bf16", bf16.master = DType::i16, bf16.stage = 2;
  expect_same_bits(ranks::train(bf16), ranks::train(bf16), bf16.name());
}

// Sequence-parallel ranks route their own rows of the residual stream; the router's loss is that of whole sequences.
TEST(ExpertParallel, MatchesOneRankWithTensorAndContextParallelism) {
  for (const ModelType type : {ModelType::qwen2_moe, ModelType::qwen3_moe, ModelType::dots1}) {
    Setting s{.type = type, .length = 8, .balance = 2};
    const Curve want = ranks::train(s);
    s.tensor = 2, s.sequence = true;
    ranks::expect_same(want, ranks::train(s), 1e-5, s.name());
    for (const bool ring : {false, true})
      for (const int tensor : {1, 2}) {
        s.tensor = tensor, s.sequence = tensor > 1, s.context = 2, s.ring = ring;
        ranks::expect_same(want, ranks::train(s), 1e-5, s.name());
      }
  }
  for (const ModelType type : {ModelType::dots1, ModelType::qwen2_moe}) {
    Setting s{.type = type, .length = 8};
    const Curve want = ranks::train(s);
    s.shards = s.experts = 2;
    for (const auto& [context, tensor, stage] : {std::tuple{2, 1, 0}, {2, 1, 3}, {1, 2, 1}, {2, 2, 1}}) {
      s.context = context, s.tensor = tensor, s.sequence = tensor > 1, s.stage = stage;
      ranks::expect_same(want, ranks::train(s), 1e-5, s.name());
    }
  }
}

// A rank's micro-batch is one of several that one rank accumulates.
TEST(ExpertParallel, AuxLossOfMicroBatchesMatchesOneRankThatAccumulates) {
  Setting s = dots(1, 1, 1);
  s.accumulation = 4, s.length = 8, s.balance = 2, s.scope = AuxLossScope::micro_batch;
  const Curve want = ranks::train(s);
  s.accumulation = 2;
  EXPECT_GT(std::abs(ranks::train(s).norms[2] / want.norms[2] - 1), 1e-3) << "micro-batches of another size";
  s.replicas = 2;
  ranks::expect_same(want, ranks::train(s), 1e-5, s.name());
  s.replicas = 1, s.shards = s.experts = 2;
  ranks::expect_same(want, ranks::train(s), 1e-5, s.name());
  s.accumulation = 4, s.shards = s.experts = 1, s.context = s.tensor = 2, s.sequence = true;
  ranks::expect_same(want, ranks::train(s), 1e-5, s.name());
}

// Loads are those of all ranks' sequences in the micro-batches so far.
TEST(ExpertParallel, AuxLossOfTheGlobalBatchMatchesOneRank) {
  for (const int accumulation : {1, 2}) {
    Setting s = dots(1, 1, 1);
    s.length = 8, s.balance = 2, s.accumulation = accumulation;
    const Curve of_sequences = ranks::train(s);
    s.scope = AuxLossScope::global_batch;
    const Curve want = ranks::train(s);
    EXPECT_GT(std::abs(of_sequences.norms[2] / want.norms[2] - 1), 1e-3);
    s.replicas = 2, s.recompute = Recompute::Granularity::full;
    ranks::expect_same(want, ranks::train(s), 1e-5, s.name());
    s.replicas = 1, s.shards = s.experts = 2, s.stage = 1;
    ranks::expect_same(want, ranks::train(s), 1e-5, s.name());
    s.shards = s.experts = 1, s.stage = 0, s.context = s.tensor = 2, s.sequence = true;
    ranks::expect_same(want, ranks::train(s), 1e-5, s.name());
  }
}

// An expert's matrices are whole on one rank, or sharded over several.
TEST(ExpertParallel, WholeMatrixOptimizersMatchOneRank) {
  for (const RuleName rule : {RuleName::muon, RuleName::normuon}) {
    Setting s = dots(1, 1, 1);
    s.rule = rule;
    const Curve want = ranks::train(s);
    for (const auto& [shards, stage] : {std::pair{2, 0}, {2, 1}, {4, 1}, {4, 3}}) {
      s.shards = shards, s.experts = 2, s.stage = stage;
      ranks::expect_same(want, ranks::train(s), 1e-5, s.name());
    }
    s.experts = 1;
  }
}

TEST(ExpertParallel, IsDeterministic) {
  for (const char* precision : {"fp32", "bf16"}) {
    Setting s = dots(2, 2, 2);
    s.precision = precision;
    expect_same_bits(ranks::train(s), ranks::train(s), s.name());
  }
}

// Numbers of tokens of every expert and of dropped choices, losses and norms. Weights of the second step differ by the
// rounding of sums over ranks, which is smaller than the gap between any two router logits.
void expect_same_steps(const Steps& want, const Steps& got, const std::string& what) {
  const RouterStatistics at{6};
  ASSERT_EQ(got.routing.size(), want.routing.size());
  for (size_t i = 0; i < want.routing.size(); ++i) {
    const int64_t column = int64_t(i) % at.size();
    if (column >= at.experts && column != at.dropped()) continue;
    EXPECT_EQ(got.routing[i], want.routing[i]) << what << " layer " << int64_t(i) / at.size() << " column " << column;
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], 1e-5 * want.losses[i]) << what;
    EXPECT_NEAR(got.norms[i], want.norms[i], 1e-5 * want.norms[i]) << what;
  }
}

TEST(ExpertParallel, RoutesEveryTokenAndSumsEveryGradientOnce) {
  Setting parts = dots(1, 2, 2);
  parts.context = 2, parts.length = 8, parts.balance = 2;
  for (const Setting& s : {dots(1, 2, 2), dots(1, 4, 2), dots(2, 2, 2), parts}) {
    Setting one = dots(1, 1, 1);
    one.length = s.length, one.balance = s.balance;
    expect_same_steps(two_steps(one), two_steps(s), s.name());
  }
}

// The capacity of experts is counted over whole sequences, on however many ranks a sequence is.
TEST(ExpertParallel, DropsTheSameChoicesAsOneRank) {
  Setting one = dots(1, 1, 1);
  one.length = 8, one.balance = 0, one.capacity = 0.9;
  const Steps want = two_steps(one);
  const RouterStatistics at{6};
  const double dropped = want.routing.at(size_t(at.size() + at.dropped()));
  EXPECT_GT(dropped, 0.1 * 2 * 2 * 96 * 8) << "a capacity below equal shares";
  Setting recomputed = one, sharded = one, divided = one, parts = one, ring = one, rows = one;
  recomputed.recompute = Recompute::Granularity::full, recomputed.accumulation = 3;
  sharded.shards = 4, sharded.experts = 2, sharded.stage = 3;
  divided.shards = divided.experts = 2, divided.recompute = Recompute::Granularity::full;
  parts.context = 2, parts.shards = parts.experts = 2;
  ring.context = 2, ring.ring = true, ring.tensor = 2, ring.sequence = true;
  rows.tensor = 2, rows.sequence = rows.pieces = true, rows.shards = rows.experts = 2;
  for (const Setting& s : {recomputed, sharded, divided, parts, ring, rows})
    expect_same_steps(want, two_steps(s), s.name());
}

// Fewer rows are sent, received and computed with.
TEST(ExpertParallel, CapacityReducesPlannedRows) {
  Setting s = dots(1, 2, 2);
  s.length = 8;
  const Curve any = ranks::train(s, 1);
  s.capacity = 0.9;  // 3 of a sequence's rows per expert, of 3 on a rank: 9 instead of 16
  EXPECT_LT(ranks::train(s, 1).planned.at(0), any.planned.at(0));
}

// Buffers sized by a factor are smaller than those for any routing. If they suffice, the bits are the same.
TEST(ExpertParallel, BuffersSizedByAFactorAreSmallerAndBitExact) {
  using Mode = Recompute::Granularity;
  for (Setting s : {dots(1, 2, 2), Setting{.type = ModelType::qwen3_moe,
                                   .precision = "bf16",
                                   .shards = 5,
                                   .recompute = Mode::full,
                                   .sequences = 90,
                                   .experts = 5}}) {
    const Curve any = ranks::train(s);
    s.room = s.shards == 2 ? 1.7 : 2.1;
    const Curve got = ranks::train(s);
    expect_same_bits(any, got, s.name());
    for (size_t rank = 0; rank < any.planned.size(); ++rank)
      EXPECT_LT(got.planned[rank], any.planned[rank]) << s.name();
  }
}

// Moves the selection of the router to the experts of the first rank, on this rank only.
void push_to_first_rank(Engine& engine, Device& device, float bias) {
  const Tensor to = engine.model().params().value(engine.model().router_bias());  // [layers, 6]
  std::vector<float> values(size_t(to.numel()), 0);
  for (size_t i = 0; i < values.size(); ++i)
    if (i % 6 < 3) values[i] = bias;
  device.copy(to.data, values.data(), to.bytes(), Stream::compute);
  device.sync();
}

// The router of one rank sends all choices to one peer. No rank updates its weights in that step or the next one, which
// the host may have launched already.
TEST(ExpertParallel, OverflowIsDetectedByAllRanksAndChangesNoWeight) {
  Setting tensor = dots(1, 2, 2);
  tensor.tensor = 2, tensor.sequence = true, tensor.length = 8;
  Setting recomputed = dots(2, 2, 2);
  recomputed.recompute = Recompute::Granularity::full, recomputed.accumulation = 2, recomputed.stage = 3;
  for (Setting s : {dots(1, 2, 2), tensor, recomputed}) {
    s.room = 1.7;
    ranks::on_ranks(s, [&](Engine& engine, ProcessMesh& mesh, const CpuBackend& cpu) {
      const bool pushed = mesh.world().rank() == s.ranks() - 1;
      const auto step = [&](int64_t number, float bias) {
        push_to_first_rank(engine, *cpu.device, pushed ? bias : 0);
        ranks::accumulate(engine, number);
        return engine.finish_step();
      };
      EXPECT_EQ(step(0, 0).skip, 0) << s.name();
      EXPECT_EQ(engine.least_buffer_factors(), std::vector<double>(2, 0.0));
      push_to_first_rank(engine, *cpu.device, 0);
      const auto before = testing::all_masters(engine, *cpu.device);
      for (const float bias : {100.0F, 0.0F}) {
        const StepState state = step(1, bias);
        EXPECT_EQ(state.skip, 1) << s.name();
        EXPECT_TRUE(std::isinf(state.loss)) << s.name() << " " << state.loss;
      }
      EXPECT_EQ(engine.least_buffer_factors(), (std::vector<double>{0, 2})) << s.name() << ": all rows for one of two";
      push_to_first_rank(engine, *cpu.device, 0);
      EXPECT_EQ(testing::all_masters(engine, *cpu.device), before) << s.name();
      engine.discard_step();
      EXPECT_EQ(step(1, 0).skip, 0) << s.name() << " after the overflow was cleared";
      push_to_first_rank(engine, *cpu.device, pushed ? 100 : 0);
      std::vector<int32_t> tokens, targets;
      for (int64_t row = 0; row < engine.options().micro_batch_size; ++row)
        ranks::append_sample(row, tokens, targets, false, s.vocab, s.length);
      engine.evaluate(tokens, targets);
      EXPECT_EQ(engine.least_buffer_factors(), (std::vector<double>{0, 2})) << s.name() << ": of an evaluation";
      engine.discard_overflows();
      EXPECT_EQ(step(2, 0).skip, 0) << s.name() << " after the evaluation's overflow was discarded";
    });
  }
}

// Short texts leave most rows without one, and the last rank has none at all. If these rows had one token, its expert's
// rank would overflow.
TEST(ExpertParallel, RowsWithoutTextDoNotOverflow) {
  Setting s{.type = ModelType::mixtral, .shards = 2, .sequences = 8, .length = 32, .documents = true, .experts = 2};
  s.room = 1.9;
  ModelConfig model = ranks::tiny(s);
  model.num_experts = 6, model.num_experts_per_tok = 1, model.initializer_range = 0.4;
  const auto body = [&](Engine& engine, ProcessMesh& mesh, const CpuBackend&) {
    std::vector<ScoredText> texts;
    for (int32_t i = 0; i < 5; ++i) texts.push_back({{i, i + 7, 3 * i + 12, 2 * i + 30}, 2});
    const std::vector<TextScore> scores = score_texts(engine, texts, {.control = &mesh.world()});
    EXPECT_EQ(engine.least_buffer_factors(), std::vector<double>(2, 0.0));
    for (const TextScore& score : scores) EXPECT_LT(score.log_probability, 0);
  };
  ranks::on_ranks(s, ranks::options(s), body, model);
}

// Shared experts compute while the rows of the output and of its gradient are exchanged. With a slow GPU the model
// hides these exchanges.
TEST(ExpertParallel, ExchangesOverlappedWithSharedExpertsAreBitExact) {
  using Mode = Recompute::Granularity;
  for (const auto& [type, recompute] : {std::pair{ModelType::dots1, Mode::none},
                                        {ModelType::dots1, Mode::selective},
                                        {ModelType::dots1, Mode::full},
                                        {ModelType::qwen2_moe, Mode::selective},
                                        {ModelType::qwen2_moe, Mode::full}}) {
    Setting s = dots(1, 2, 2);
    s.type = type, s.recompute = recompute, s.accumulation = 2, s.stage = 3;
    const Curve want = ranks::train(s);
    s.beside = true;
    expect_same_bits(want, ranks::train(s), s.name());
    ranks::on_ranks(s, [&](Engine& engine, ProcessMesh& mesh, const CpuBackend&) {
      const TensorSums& sums = engine.micro_expert_sums();
      EXPECT_EQ(std::ssize(sums.overlaps), s.recompute == Mode::full ? 3 : 2) << s.name();
      const Network network{1e9, 1e9, 8};
      const Roofline slow{.most = {1e3, 1e3}}, fast{.most = {1e30, 1e30}};
      const auto waits = [&](const Roofline& limits) {
        return step_traffic(engine, mesh, network, &limits).experts.waits;
      };
      double hidden = 0;
      for (const TensorSums::Overlap& each : sums.overlaps)
        hidden += double(s.accumulation) * network.seconds_to_all(double(each.bytes) / 2, 0, 2);
      EXPECT_NEAR(waits(fast) - waits(slow), hidden, 1e-6 * hidden) << s.name();
    });
  }
}

class ExpertRuns : public testing::TrainerRanks {
 protected:
  Config of_factor(const std::string& run, double factor) {
    return config(run, {"model.model_type=mixtral", "model.num_experts=8", "model.num_experts_per_tok=2",
                        "expert_parallel_size=2", "zero_stage=0", cat("moe.expert_buffer_factor=", factor)});
  }
  void expect_refused(const Config& c, bool ahead, const std::string& where) {
    for (const testing::Ended& e : run_all(c, {.ahead = ahead}))
      for (const std::string& part : {where + ": moe.expert_buffer_factor: expected at least 1.", std::string("got 1;"),
                                      std::string("or with 0")})
        EXPECT_NE(e.error.find(part), std::string::npos) << "'" << e.error << "' lacks '" << part << "'";
  }
};

// A factor of 1 only has space for equal loads. Every rank reports a factor that would suffice, and the run resumes
// with it.
TEST_F(ExpertRuns, EndAtAnOverflowAndResumeWithALargerFactor) {
  constexpr const char* kPart = "model-00001-of-00002.safetensors";
  ASSERT_EQ(run_all(of_factor("whole", 0), {})[1].code, Exit::done);
  for (const bool ahead : {false, true}) {
    const std::string name = cat("run", ahead);
    const auto stop_at = [&](int64_t at) {
      return [=](int rank, Activity activity, int64_t step, testing::Asked& asked) {
        if (rank == 1 && activity == Activity::step && step == at) asked.ask(SIGUSR1);
      };
    };
    for (const testing::Ended& e : run_all(of_factor(name, 0), {.doing = stop_at(3)})) EXPECT_EQ(e.code, Exit::requeue);
    expect_refused(of_factor(name, 1), ahead, "step 4");
    for (const testing::Ended& e : run_all(of_factor(name, 1.95), {.doing = stop_at(8)}))
      EXPECT_EQ(e.code, Exit::requeue) << e.error;
    expect_refused(of_factor(name, 1), ahead, "evaluation after step 8");
    for (const testing::Ended& e : run_all(of_factor(name, 1.95), {.ahead = ahead}))
      EXPECT_EQ(e.code, Exit::done) << e.error;
    EXPECT_EQ(bytes(name, 8, kPart), bytes("whole", 8, kPart));
  }
}

TEST(ExpertParallel, RankPlansOnlyItsExperts) {
  const Curve whole = ranks::train(dots(1, 2, 1), 1), parts = ranks::train(dots(1, 2, 2), 1);
  const int64_t experts = 6 * 3 * 16 * 24 * int64_t{sizeof(float)};  // of the one layer with experts
  constexpr int64_t kPadding = 1024;                                 // experts are separate units
  EXPECT_NEAR(double(whole.gradients - parts.gradients), double(experts) / 2, kPadding);
  EXPECT_NEAR(double(whole.optimizer - parts.optimizer), double(experts), kPadding);
}

// Checkpoints hold whole experts, independent of the ranks that wrote them.
TEST(ExpertParallel, CheckpointsResumeWithAnyExpertRanks) {
  const athanor::testing::TempDir dir;
  const auto path = [&](const char* name) { return cat(dir.path(), "/", name); };
  const std::vector<double> want = ranks::run_part(dots(1, 1, 1), "", 0, 4, path("whole"));
  ranks::run_part(dots(1, 2, 2), "", 0, 2, path("two"));
  const auto expect_end = [&](const Setting& s, const std::string& from, const char* to) {
    const std::vector<double> got = ranks::run_part(s, from, 2, 4, path(to));
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(got[i], want[i + 2], 1e-5 * want[i + 2]) << s.name();
  };
  const std::string from = cat(path("two"), "/", step_folder(2));
  expect_end(dots(1, 1, 1), from, "two-one");
  expect_end(dots(1, 3, 3), from, "two-three");
  expect_end(dots(2, 2, 2), from, "two-four");
  Setting shards = dots(1, 4, 2);
  shards.stage = 2;
  expect_end(shards, from, "two-shards");
  ranks::run_part(shards, "", 0, 2, path("shards"));
  expect_end(dots(1, 3, 3), cat(path("shards"), "/", step_folder(2)), "shards-three");
  ranks::run_part(dots(1, 1, 1), "", 0, 2, path("one"));
  expect_end(dots(1, 2, 2), cat(path("one"), "/", step_folder(2)), "one-two");
}

}  // namespace
}  // namespace athanor
