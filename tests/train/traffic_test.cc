// The traffic model, by unit and group: it predicts the purposes that the collectives of a step have, and its parts sum
// to the whole.
#include "perf/traffic.h"

#include <set>

#include "comm/network.h"
#include "comm/observed.h"
#include "perf/step_profile.h"
#include "tests/train/ranks_rig.h"

namespace athanor::ranks {
namespace {

TEST(Traffic, OverlapIsSplitProportionally) {
  Traffic t;
  t.add({"a", "dp_shard"}, 100, 1, 3, 1);  // of 3 s, one is exposed
  t.add({"b", "dp_shard"}, 50, 1, 1, 0);
  std::map<LayerGroup, double> all;
  t.add_exposed(all, 1);
  EXPECT_DOUBLE_EQ(all.at({"a", "dp_shard"}), 1 + 2 * 2.0 / 3);
  EXPECT_DOUBLE_EQ(all.at({"b", "dp_shard"}), 2.0 / 3);
  EXPECT_DOUBLE_EQ(t.exposed(1), 3);
  EXPECT_EQ(t.bytes, 350);
  t.add_exposed(all, 100);
  EXPECT_DOUBLE_EQ(all.at({"a", "dp_shard"}), 2 + 2 * 2.0 / 3);
  EXPECT_DOUBLE_EQ(all.at({"b", "dp_shard"}), 2.0 / 3);
}

// Records what the collectives of this thread were for.
class Purposes final : public CollectiveObserver {
 public:
  explicit Purposes(const ParamStore& params) : params_(params) {}
  void begins(std::string_view, std::string_view group) override {
    seen.insert({layer_of(params_, CollectiveSubject::name()), std::string(group)});
  }
  void ends() override {}
  std::set<LayerGroup> seen;

 private:
  const ParamStore& params_;
};

std::vector<Setting> all_settings() {
  std::vector<Setting> all;
  for (const int stage : {0, 1, 2, 3}) {
    all.push_back({.shards = 2, .stage = stage});
    all.push_back({.type = ModelType::gpt2, .tied = true, .replicas = 2, .shards = 2, .stage = stage});
    for (const bool ring : {false, true})
      all.push_back({.shards = 2, .stage = stage, .accumulation = 2, .context = 2, .ring = ring, .length = 8});
  }
  for (const ModelType type : {ModelType::llama, ModelType::gpt2})
    for (const auto& [sequence, beside] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}})
      all.push_back({.type = type, .shards = 2, .stage = 3, .tensor = 2, .sequence = sequence, .beside = beside});
  all.push_back({.shards = 2, .stage = 1, .rule = RuleName::normuon});
  for (const int stage : {1, 2})
    all.push_back({.precision = "bf16", .replicas = 2, .shards = 2, .stage = stage, .packed = {true, true}});
  for (const int tensor : {1, 2})
    all.push_back({.shards = 2, .stage = 1, .tensor = tensor, .workers = 2, .outer = {.steps = 1}});
  for (const int delay : {0, 1})
    all.push_back(
        {.shards = 2, .stage = 1, .workers = 2, .outer = {.steps = 3, .delay = delay, .deltas = DeltaDtype::fp4}});
  for (const int stage : {0, 1, 3})
    all.push_back({.type = ModelType::dots1, .shards = 4, .stage = stage, .experts = 2});
  return all;
}

// Calls look(engine, mesh, observer) on rank 0 after a step of all ranks; each rank has its own Observer(params).
template <class Observer, class Look>
void observe_a_step(const Setting& s, Look&& look) {
  run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
    const CpuBackend cpu = make_cpu({.threads = 1});
    CollectiveWatch watch;
    ProcessMesh mesh(observed(std::move(world), watch), s.mesh());
    Engine engine(tiny(s), options(s), {*cpu.device, *cpu.ops, mesh});
    engine.commit();
    engine.init_weights();
    Observer observer(engine.model().params());
    watch.observer = &observer;
    accumulate(engine, 0);
    engine.finish_step();
    engine.end_rounds(1, true);
    watch.observer = nullptr;
    if (mesh.world().rank() == 0) look(engine, mesh, observer);
  });
}

TEST(Traffic, IsAttributedToTheSendingLayers) {
  for (const Setting& s : all_settings())
    observe_a_step<Purposes>(s, [&](Engine& engine, ProcessMesh& mesh, const Purposes& purposes) {
      const StepTraffic traffic = step_traffic(engine, mesh, {1e9, 1e9, 8});
      double by_group = 0;
      for (const char* group :
           {"dp_shard", "dp_replicate", "dp", "cp", "tp", "workers", "ep", "expert_dp_replicate", "expert_dp_shard"})
        by_group += traffic.bytes_of(group);
      EXPECT_NEAR(by_group / traffic.bytes(), 1, 1e-12) << s.name();
      const auto micros = double(engine.micro_batches());
      const std::map<LayerGroup, double> bare = traffic.exposed_by_layer(0, micros, 0);
      std::set<LayerGroup> expected;
      for (const auto& [of, seconds] : bare) {
        EXPECT_GT(seconds, 0) << s.name() << ": " << of.layer << " " << of.group;
        expected.insert(of);
      }
      std::set<LayerGroup> sent = purposes.seen;
      for (std::set<LayerGroup>* set : {&expected, &sent})  // some collectives of the whole step are not modelled
        std::erase_if(*set, [](const LayerGroup& of) { return of.layer.empty(); });
      EXPECT_FALSE(sent.empty());
      const auto in_words = [](const std::set<LayerGroup>& set) {
        std::string words;
        for (const LayerGroup& of : set) words += cat(of.layer, " ", of.group, "\n");
        return words;
      };
      EXPECT_EQ(in_words(expected), in_words(sent)) << s.name();
      for (const auto& [compute, products] : {std::pair{0.0, 0.0}, {1e-4, 1e-5}, {1e-3, 1e-4}, {1.0, 0.5}}) {
        double sum = 0;
        for (const auto& [of, seconds] : traffic.exposed_by_layer(compute, micros, products)) sum += seconds;
        const double whole = traffic.exposed(compute, micros, products);
        EXPECT_NEAR(sum / whole, 1, 1e-12) << s.name();
      }
    });
}

TEST(Traffic, FourBitDeltasReduceItSevenfold) {
  const auto sent = [](DeltaDtype deltas) {
    double bytes = 0;
    observe_a_step<Purposes>({.workers = 2, .outer = {.steps = 3, .deltas = deltas}},
                             [&](Engine& engine, ProcessMesh& mesh, const Purposes&) {
                               bytes = step_traffic(engine, mesh, {1e9, 1e9, 8}).bytes_of("workers");
                             });
    return bytes;
  };
  EXPECT_NEAR(sent(DeltaDtype::fp32) / sent(DeltaDtype::fp4), 32 / 4.5, 1e-9);
}

// The groups in which whole matrices and NorMuon's per-output values are sent.
class GroupsOfMatrices final : public CollectiveObserver {
 public:
  explicit GroupsOfMatrices(const ParamStore&) {}
  void begins(std::string_view, std::string_view group) override {
    const std::string& subject = CollectiveSubject::name();
    if (subject == "whole matrices" || subject == "numbers of outputs") seen.insert({"", std::string(group)});
  }
  void ends() override {}
  std::set<LayerGroup> seen;
};

// Also with tensor parallelism: whole matrices are sent in the group that the model names.
TEST(Traffic, NamesTheGroupOfMatrices) {
  for (const int tensor : {1, 2}) {
    const Setting s{.shards = 2, .stage = 1, .rule = RuleName::normuon, .tensor = tensor};
    observe_a_step<GroupsOfMatrices>(s, [&](Engine& engine, ProcessMesh& mesh, const GroupsOfMatrices& groups) {
      const StepTraffic traffic = step_traffic(engine, mesh, {1e9, 1e9, 8});
      ASSERT_EQ(groups.seen.size(), 1U);
      const LayerGroup& group = *groups.seen.begin();
      EXPECT_EQ(group.group, tensor == 1 ? "dp" : "world");
      EXPECT_EQ(traffic.matrices.parts.size(), 1U);
      EXPECT_TRUE(traffic.matrices.parts.contains(group));
      EXPECT_TRUE(traffic.ends.parts.contains(group)) << "of NorMuon's numbers";
    });
  }
}

// If collectives are not timed, a profile shows only the model. CPU ranks alternate between communicating and
// computing.
TEST(Traffic, IsEstimatedInProfilesWithoutCollectiveTimes) {
  const Setting s{.shards = 2, .stage = 3};
  run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
    const CpuBackend cpu = make_cpu({.threads = 1});
    ProcessMesh mesh(std::move(world), s.mesh());
    const Backend backend{*cpu.device, *cpu.ops, mesh, nullptr, nullptr, {1e9, 1e9, 2}};
    Engine engine(tiny(s), options(s), backend);
    engine.commit();
    engine.init_weights();
    StepProfile profile(engine, backend, {.limits = {.most = {1e9, 1e9}}});
    for (int64_t step = 0; profile.steps() < 1; ++step) {
      accumulate(engine, step);
      engine.finish_step();
      profile.end_step(1);
    }
    const auto expected =
        step_traffic(engine, mesh, backend.network).exposed_by_layer(0, double(engine.micro_batches()), 0);
    const auto& units = engine.model().params().units();
    const std::vector<CommunicationRow> rows = profile.communication();
    ASSERT_EQ(rows.size(), units.size());
    for (size_t u = 0; u < units.size(); ++u) {
      EXPECT_EQ(rows[u].of, (LayerGroup{units[u]->name, "dp_shard"}));
      EXPECT_TRUE(std::isnan(rows[u].calls) && std::isnan(rows[u].exposed) && std::isnan(rows[u].seconds));
      EXPECT_EQ(rows[u].modelled, expected.at(rows[u].of));
    }
    const std::string table = profile.table(1);
    EXPECT_NE(table.find(" - "), std::string::npos) << table;
    EXPECT_NE(table.find("at 1 GB/s to ranks of the same machine"), std::string::npos) << table;
  });
}

}  // namespace
}  // namespace athanor::ranks
