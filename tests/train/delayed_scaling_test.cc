// Delayed scaling: every scale used in a step matches a small model in double, on one rank and on several; the amax
// history survives a resume, other numbers of ranks, skipped steps and discarded steps; planted mistakes are detected.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>

#include "tests/sanitized.h"
#include "tests/train/curve.h"
#include "tests/train/ranks_rig.h"

namespace athanor::delayed {
namespace {

using testing::Curve;
using testing::Rig;

constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
const DType kCodes[kMatrices] = {DType::f8_e4m3, DType::f8_e4m3, DType::f8_e5m2};

// Expected scale of one matrix: the format's maximum over the maximum amax of the last `length` steps, over 2^margin.
struct Model {
  int64_t length = 1;
  int margin = 0;
  std::deque<double> past = {};
  void end_step(double amax) {
    if (!std::isfinite(amax)) return;
    past.push_front(amax);
    if (int64_t(past.size()) > length) past.pop_back();
  }
  float factor(DType quantized) const {
    double amax = 0;
    for (const double a : past) amax = std::max(amax, a);
    return amax == 0 ? 0 : float(double(max_code(quantized)) / amax * std::exp2(-margin));
  }
};

TEST(DelayedScales, MatchAReferenceModelOver20Steps) {
  const double planted[] = {0, 2, 3, 1, 1, 1, kInf, 0.5, 0.5, 0.5, 0.5, 1e-6, 1e-6, 7e4, 2, kNan, 2, 2, 2, 2};
  for (const int64_t length : {1, 4, 1024})
    for (const int margin : {0, 2}) {
      Rig rig;
      std::vector<float> history(size_t(length) * kMatrices), amax(kMatrices), factors(kMatrices, -1.0f);
      StepState state;
      const int64_t n = kMatrices;
      DelayedScales op{.histories = {{history.data(), DType::f32, {n * length}}},
                       .amax = {amax.data(), DType::f32, {1, n}},
                       .factors = {factors.data(), DType::f32, {1, n}},
                       .state = {&state, DType::u8, {int64_t(sizeof state)}},
                       .quantized = {kCodes[0], kCodes[1], kCodes[2]},
                       .length = length,
                       .margin = margin};
      Model models[kMatrices] = {{length, margin}, {length, margin}, {length, margin}};
      for (size_t step = 0; step < std::size(planted); ++step) {
        state.skip = step % 7 == 3;
        for (size_t m = 0; m < kMatrices; ++m) {
          amax[m] = float(planted[step] * double(m + 1));
          if (!state.skip) models[m].end_step(double(amax[m]));
        }
        op.check();
        rig.ops->run(op, nullptr);
        for (size_t m = 0; m < kMatrices; ++m) {
          EXPECT_FLOAT_EQ(factors[m], models[m].factor(kCodes[m])) << "step " << step << " matrix " << m;
          EXPECT_EQ(amax[m], 0) << "the next step begins anew";
        }
      }
    }
}

// Compares every Quantize of a run on ranks with the model.

constexpr int64_t kHistory = 3;
enum class Mistake : uint8_t { none, factor_of_another_matrix, history_shifted, no_reduction };

// Shared by all ranks of a run.
struct Judge {
  std::mutex mutex;
  std::map<int64_t, Model> models;  // key: parameter * kMatrices + matrix
  std::map<int64_t, double> amax;   // of the step, over all ranks
  int64_t checked = 0, scaled = 0, deviations = 0;

  void end_step() {
    for (auto& [index, found] : amax) models.try_emplace(index, Model{kHistory}).first->second.end_step(found);
    amax.clear();
  }
};

class Watch final : public Decorated<Watch> {
 public:
  Watch(Ops& inner, Judge& judge, Mistake mistake) : inner_(inner), judge_(judge), mistake_(mistake) {}
  const Ops& inner() const { return inner_; }
  const ParamStore* params = nullptr;  // set once memory is allocated

  template <class Op>
  void on(const Op& op, void* scratch) {
    if constexpr (std::is_same_v<Op, Quantize>)
      watch(op, scratch);
    else if constexpr (std::is_same_v<Op, DelayedScales>)
      scale(op, scratch);
    else
      inner_.run(op, scratch);
  }

 private:
  void watch(Quantize op, void* scratch) {
    if (mistake_ == Mistake::factor_of_another_matrix && op.quantized.dtype == DType::f8_e4m3)
      op.factor.data = op.factor.as<float>() + 1;
    find_first(op);
    const int64_t index = op.factor.as<float>() - first_;
    double amax = 0;
    for (int64_t i = 0; i < op.x.numel(); ++i) amax = std::max(amax, std::abs(double(to_float(op.x.as<bf16>()[i]))));
    const std::lock_guard lock(judge_.mutex);
    // Identifies the matrix by its content, not by the position of its scale.
    const Matrix matrix = op.quantized.dtype == DType::f8_e5m2 ? Matrix::dy : weight(op.x) >= 0 ? Matrix::w : Matrix::x;
    const bool right = Matrix(index % int64_t(kMatrices)) == matrix &&
                       (matrix != Matrix::w || index / int64_t(kMatrices) == weight(op.x)) &&
                       (!op.step_amax || op.step_amax.as<float>() - first_amax_ == index);
    const float want = judge_.models[index].factor(op.quantized.dtype), factor = *op.factor.as<float>();
    judge_.models[index].length = kHistory;
    ++judge_.checked;
    judge_.scaled += want > 0;
    judge_.deviations += !right || std::abs(factor - want) > 1e-6f * want;
    if (op.step_amax) judge_.amax[index] = std::max(judge_.amax[index], amax);
    local_[index] = std::max(local_[index], amax);
    inner_.run(op, scratch);
  }
  void scale(const DelayedScales& op, void* scratch) {
    if (mistake_ == Mistake::history_shifted && op.state)
      for (const Tensor& h : op.histories)
        for (int64_t i = 0; i < h.numel(); ++i) h.as<float>()[i] = i % kHistory == 0 ? 0 : h.as<float>()[i - 1];
    if (mistake_ == Mistake::no_reduction && op.state)
      for (const auto& [index, amax] : local_) op.amax.as<float>()[index] = float(amax);
    local_.clear();
    inner_.run(op, scratch);
  }
  // The parameter whose weight is x; -1: none.
  int64_t weight(const Tensor& x) const {
    for (int id = 0; id < int(params->specs().size()); ++id)
      if (params->spec({id}).low_precision && params->value({id}).data == x.data) return id;
    return -1;
  }
  // Finds where the scales and amaxes of parameter 0 are stored.
  void find_first(const Quantize& op) {
    if (first_) return;
    const int64_t id = weight(op.x);
    CHECK(id >= 0, "the first matrix of a run is a weight");
    const int64_t index = id * int64_t(kMatrices) + int64_t(Matrix::w);
    first_ = op.factor.as<float>() - index;
    first_amax_ = op.step_amax.as<float>() - index;
  }
  Ops& inner_;
  Judge& judge_;
  Mistake mistake_;
  const float *first_ = nullptr, *first_amax_ = nullptr;
  std::map<int64_t, double> local_;
};

ranks::Setting setting(int ranks) {
  return {.precision = "fp8_delayed", .replicas = ranks, .accumulation = ranks == 1 ? 2 : 1};
}

void judge(Judge& judge, int ranks, Mistake mistake, int64_t steps = 6) {
  run_ranks(ranks, [&](std::unique_ptr<Communicator> world) {
    const CpuBackend cpu = make_cpu({.threads = 1});
    ProcessMesh mesh(std::move(world), setting(ranks).mesh());
    Watch watch(*cpu.ops, judge, mistake);
    EngineOptions o = ranks::options(setting(ranks));
    o.recipe.delayed.history = kHistory;
    Engine engine(ranks::tiny(setting(ranks)), o, {*cpu.device, watch, mesh});
    engine.commit();
    watch.params = &engine.model().params();
    engine.init_weights();
    for (int64_t step = 0; step < steps; ++step) {
      ranks::accumulate(engine, step);
      mesh.world().barrier();
      if (mesh.world().rank() == 0) {
        const std::lock_guard lock(judge.mutex);
        judge.end_step();
      }
      mesh.world().barrier();
      engine.finish_step();
    }
  });
}

TEST(DelayedScaling, EveryScaleOfARunMatchesTheReferenceModel) {
  for (const int ranks : {1, 2, 3, 4}) {
    if (kSanitized && ranks > 2) continue;
    Judge found;
    judge(found, ranks, Mistake::none);
    EXPECT_GT(found.checked, 100) << ranks;
    EXPECT_GT(found.scaled, found.checked / 2) << ranks << ": only the first step has scales of its own";
    EXPECT_EQ(found.deviations, 0) << ranks;
  }
}

TEST(DelayedScaling, DetectsPlantedMistakes) {
  for (const Mistake mistake : {Mistake::factor_of_another_matrix, Mistake::history_shifted, Mistake::no_reduction}) {
    Judge found;
    judge(found, 2, mistake, 4);
    EXPECT_GT(found.deviations, 0) << int(mistake);
  }
}

using Matrices = std::map<std::string, std::vector<std::byte>>;

Matrices histories(const std::string& folder) {
  Matrices found;
  for (auto& [name, bytes] : ranks::tensors_of(folder))
    if (name.find(kAmaxHistory) != std::string::npos) found.emplace(name, bytes);
  return found;
}

TEST(DelayedScaling, ResumesBitExactlyOnAnyRanks) {
  const testing::TempDir dir;
  const auto root = [&](const std::string& name) { return dir.path() + "/" + name; };
  const auto at = [&](const std::string& name, int64_t step) { return root(name) + "/" + step_folder(step); };
  ranks::Setting one{.precision = "fp8_delayed", .leaves = 4}, two = one, four = one;
  two.shards = 2, two.stage = 1, four.replicas = 2, four.shards = 2, four.stage = 3;
  const auto whole = ranks::run_part(one, "", 0, 5, root("whole"));
  const Matrices want = histories(at("whole", 5));
  EXPECT_EQ(want.size(), 6u) << "one for each linear layer in 8 bits";
  ranks::run_part(two, "", 0, 3, root("half"));
  for (const ranks::Setting& s : {one, two, four}) {
    const std::string name = cat("rest", s.ranks());
    const auto rest = ranks::run_part(s, at("half", 3), 3, 5, root(name));
    EXPECT_EQ(rest, std::vector(whole.begin() + 3, whole.end())) << name;
    EXPECT_EQ(histories(at(name, 5)), want) << name;
    EXPECT_EQ(ranks::tensors_of(at(name, 5)), ranks::tensors_of(at("whole", 5))) << name;
  }
  // A history that is not loaded is detected.
  ranks::run_part(one, "", 0, 3, root("other"));
  EXPECT_NE(histories(at("other", 3)), want);
}

// A tensor-parallel rank has 24 of the 48 inputs of the last layer of a block, which is then in bf16.
TEST(DelayedScaling, LayersWithoutAHistoryResumeOnOtherRanks) {
  const testing::TempDir dir;
  ranks::Setting one{.precision = "fp8_delayed", .hidden = 32, .intermediate = 48};
  ranks::Setting two = one;
  two.tensor = 2;
  ranks::run_part(two, "", 0, 3, dir / "two");
  ranks::run_part(one, "", 0, 3, dir / "one");
  const std::string of_two = cat(dir / "two", "/", step_folder(3)), of_one = cat(dir / "one", "/", step_folder(3));
  EXPECT_LT(histories(of_two).size(), histories(of_one).size());
  const double want = ranks::run_part(one, of_one, 3, 5, dir / "same").back();
  EXPECT_NEAR(ranks::run_part(one, of_two, 3, 5, dir / "fewer").back(), want, 0.01 * want);
  EXPECT_NEAR(ranks::run_part(two, of_one, 3, 5, dir / "more").back(), want, 0.01 * want);
}

EngineOptions options(int64_t history) {
  EngineOptions o = ranks::options(setting(1));
  o.recipe.delayed.history = history;
  o.quantized = true;
  return o;
}

std::vector<float> history_of(Rig& rig, Engine& engine) {
  const auto& states = engine.model().params().state_specs();
  const auto at = std::ranges::find(states, kAmaxHistory, &StateSpec::name) - states.begin();
  std::vector<float> all;
  for (const auto& unit : engine.model().params().units())
    if (const Tensor& t = unit->states[size_t(at)].t) std::ranges::copy(rig.read<float>(t), std::back_inserter(all));
  return all;
}

// Neither a step without an update nor a discarded step changes anything later.
TEST(DelayedScaling, SkippedAndDiscardedStepsChangeNothing) {
  Rig rig;
  Engine plain(ranks::tiny(setting(1)), options(4), rig.backend()),
      troubled(ranks::tiny(setting(1)), options(4), rig.backend());
  for (Engine* engine : {&plain, &troubled}) engine->commit(), engine->init_weights();
  for (int64_t step = 0; step < 3; ++step) {
    for (Engine* engine : {&plain, &troubled}) ranks::accumulate(*engine, step), engine->finish_step();
    const auto before = history_of(rig, troubled);
    EXPECT_GT(before[0], 0);
    ranks::accumulate(troubled, step + 50);
    troubled.poison_step();
    EXPECT_EQ(troubled.finish_step().skip, 1);
    EXPECT_EQ(history_of(rig, troubled), before);
    ranks::accumulate(troubled, step + 70);
    troubled.discard_step();
    EXPECT_EQ(history_of(rig, troubled), history_of(rig, plain)) << step;
    EXPECT_EQ(testing::weights_of(rig, troubled), testing::weights_of(rig, plain)) << step;
  }
}

// A non-finite amax must not enter the history.
TEST(DelayedScaling, NonFiniteAmaxDoesNotEnterTheHistory) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Rig rig;
    Engine engine(ranks::tiny(setting(1)), options(4), rig.backend());
    engine.commit(), engine.init_weights();
    ranks::accumulate(engine, 0);
    engine.finish_step();
    const auto before = history_of(rig, engine);
    const Tensor& master = engine.model().params().units()[2]->master;
    const float kept = rig.read<float>(master)[100];
    rig.write(master, 100, bad);
    engine.refresh_values();
    ranks::accumulate(engine, 1);
    EXPECT_EQ(engine.finish_step().skip, 1) << bad;
    EXPECT_EQ(history_of(rig, engine), before) << bad;
    rig.write(master, 100, kept);
    engine.refresh_values();
    ranks::accumulate(engine, 1);
    EXPECT_EQ(engine.finish_step().skip, 0) << bad;
    for (const float x : history_of(rig, engine)) EXPECT_TRUE(std::isfinite(x));
  }
}

// Weights that suddenly grow exceed the format's maximum; a margin leaves headroom for them.
TEST(DelayedScaling, GrowthBeyondTheScaleIsCountedAsSaturation) {
  const auto saturated = [](int margin) {
    Rig rig;
    EngineOptions o = options(1);
    o.recipe.delayed.margin = margin;
    Engine engine(ranks::tiny(setting(1)), o, rig.backend());
    engine.commit(), engine.init_weights();
    for (int64_t step = 0; step < 2; ++step) ranks::accumulate(engine, step), engine.finish_step();
    const Tensor& master = engine.model().params().units()[1]->master;
    const std::vector<float> values = rig.read<float>(master);
    for (size_t i = 0; i < values.size(); ++i) rig.write(master, int64_t(i), 4 * values[i]);
    engine.refresh_values();
    engine.take_quantized();
    ranks::accumulate(engine, 2);
    double all = 0;
    for (const QuantizedOperand& q : engine.take_quantized()) all += q.statistics.saturated;
    return all;
  };
  EXPECT_GT(saturated(0), 0);
  EXPECT_LT(saturated(6), saturated(0));
}

TEST(DelayedScaling, HistoryLengthAndMarginChangeTheResult) {
  const auto train = [](int64_t history, int margin) {
    Rig rig;
    EngineOptions o = options(history);
    o.recipe.delayed.margin = margin;
    Engine engine(ranks::tiny(setting(1)), o, rig.backend());
    return curve_of(rig, engine, 5, [](Engine& e, int64_t step) { ranks::accumulate(e, step); });
  };
  const Curve want = train(1024, 0);
  EXPECT_NE(want.weights, train(1, 0).weights);
  EXPECT_NE(want.weights, train(1024, 1).weights);
  EXPECT_EQ(want, train(5, 0)) << "there were no more steps";
}

}  // namespace
}  // namespace athanor::delayed
