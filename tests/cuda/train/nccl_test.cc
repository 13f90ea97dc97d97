// Ranks over NCCL as threads of one process: collectives are those of the threads transport, training with every
// sharding is the run of one rank, graphs change no bit, and whatever fails ends all ranks with one message. On the
// emulated GPU every rank has a GPU of its own and NCCL is a fake; on a real one all share it if NCCL permits
// (NCCL_MULTI_RANK_GPU_ENABLE=1, 2.30 or later).
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "comm/threads.h"
#include "config/config.h"
#include "cuda/libraries/open.h"
#include "cuda/libraries/specs.h"
#include "cuda/make_cuda.h"
#include "tests/comm/collective_laws.h"
#include "tests/train/harness.h"
#ifdef ATHANOR_EMULATED_GPU
#include "emulator/emulator.h"
#include "emulator/libraries/nccl/fake_nccl.h"
#include "emulator/runtime/control.h"
#endif

namespace athanor {
namespace {

using testing::contribution;

// What ranks in processes of their own learn of each other through the rendezvous.
struct Board {
  std::mutex mutex;
  std::string failure;
  void tell(const std::string& why) {
    const std::lock_guard lock(mutex);
    if (failure.empty()) failure = why;
  }
  std::string told() {
    const std::lock_guard lock(mutex);
    return failure;
  }
  NcclOptions options(int rank, double timeout) {
    NcclOptions o;
    o.place = [rank] { return cat("rank ", rank, " (here) at step 3"); };
    o.timeout = timeout;
    o.fail = [this, rank](const std::string& why) { tell(cat("rank ", rank, " failed: ", why)); };
    o.failure = [this] { return told(); };
    return o;
  }
};

struct Rank {
  CudaBackend cuda;
  std::unique_ptr<Communicator> nccl;

  Tensor upload(const std::vector<std::byte>& bytes, DType dtype) {
    void* memory = cuda.device->allocate(bytes.size(), Mem::device);
    blocks.push_back({memory, bytes.size()});
    cuda.device->copy(memory, bytes.data(), bytes.size(), Lane::compute);
    cuda.device->sync();
    return {memory, dtype, {int64_t(bytes.size() / size_of(dtype))}};
  }
  std::vector<std::byte> read(const Tensor& t) {
    std::vector<std::byte> bytes(t.bytes());
    cuda.device->sync();
    cuda.device->copy(bytes.data(), t.data, t.bytes(), Lane::compute);
    cuda.device->sync();
    return bytes;
  }
  // Before memory is freed, which on a shared GPU waits for the kernels of all ranks, and they perhaps for this rank.
  void quiet(Communicator& hosts, Board& board) {
    if (!board.told().empty()) return;  // some rank has left already
    cuda.device->sync();
    hosts.barrier();
  }
  void free_blocks() {
    for (const auto& [memory, bytes] : blocks) cuda.device->release(memory, bytes, Mem::device);
    blocks.clear();
  }
  std::vector<std::pair<void*, size_t>> blocks;
};

class Nccl : public ::testing::Test {
 protected:
  static constexpr int kMostRanks = 4;

  void SetUp() override {
#ifdef ATHANOR_EMULATED_GPU
    (void)emu::take_report();
    emu::simulate(std::vector<emu::GpuModel>(kMostRanks, emu::gpu_h200()));
    emu::seed(++schedule_);
#else
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
    const char* shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (count < kMostRanks && (!shared || std::string(shared) != "1"))
      GTEST_SKIP() << count << " GPUs, and NCCL_MULTI_RANK_GPU_ENABLE is not 1";
    try {
      const auto nccl = open_nccl(search_places(library_specs()));
      if (count < kMostRanks && nccl.library.version < Version{2, 30, 0})
        GTEST_SKIP() << "NCCL " << nccl.library.version << " wants a GPU for each rank; 2.30 may share one";
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
#endif
  }
  void TearDown() override {
#ifdef ATHANOR_EMULATED_GPU
    const emu::Report report = emu::take_report();
    EXPECT_EQ(report.fault, emu::Fault::kNone) << report.text;
    EXPECT_EQ(fake_leaks(), std::vector<std::string>{});
    emu::simulate({emu::gpu_h200()});
#endif
  }

  // body on each rank, in a thread with a GPU, a communicator and the hosts' own way to talk.
  void run(int ranks, const std::function<void(Rank&, Communicator& hosts)>& body, double timeout = 60) {
    board_.failure.clear();
    run_ranks(ranks, [&](std::unique_ptr<Communicator> hosts) {
      int count = 0;
      ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
      // The ranks' captures are each other's "other threads" here.
      cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
      ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
      Rank rank{make_cuda({.index = hosts->rank() % count}), nullptr, {}};
      rank.nccl =
          make_nccl(*rank.cuda.device, board_.options(hosts->rank(), timeout), hosts->split(0, hosts->rank())).world;
      body(rank, *hosts);
      rank.quiet(*hosts, board_);
      rank.free_blocks();
    });
  }

  Board board_;
#ifdef ATHANOR_EMULATED_GPU
  static emu::fakes::FakeNccl& fake() {
    (void)open_nccl({});  // makes it
    return emu::fakes::Installed<emu::fakes::FakeNccl>::get();
  }
  static std::vector<std::string> fake_leaks() { return fake().leaks(); }
  static inline uint64_t schedule_ = 0;
#endif
};

std::vector<double> numbers(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<double> out;
  for (size_t at = 0; at < bytes.size(); at += size_of(dtype)) {
    const auto load = [&]<class T>(T x) {
      std::memcpy(&x, bytes.data() + at, sizeof x);
      if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)
        out.push_back(double(to_float(x)));
      else
        out.push_back(double(x));
    };
    switch (dtype) {
      case DType::f32:
        load(float{});
        break;
      case DType::bf16:
        load(bf16{});
        break;
      case DType::f16:
        load(f16{});
        break;
      case DType::i32:
        load(int32_t{});
        break;
      case DType::u8:
        load(uint8_t{});
        break;
      case DType::i64:
        load(int64_t{});
        break;
      case DType::i16:
        load(int16_t{});
        break;
      case DType::f64:
        load(double{});
        break;
    }
  }
  return out;
}

// Sums of a few normal numbers of size 8, in another order.
double tolerance(DType dtype) {
  return dtype == DType::bf16 ? 0.5 : dtype == DType::f16 ? 0.06 : dtype == DType::f32 ? 1e-5 : 0;
}

void expect_same(const std::vector<std::byte>& got, const std::vector<std::byte>& want, DType dtype,
                 const std::string& what) {
  const auto g = numbers(got, dtype), w = numbers(want, dtype);
  ASSERT_EQ(g.size(), w.size()) << what;
  const double most = dtype == DType::f64 ? 1e-12 : tolerance(dtype);
  for (size_t i = 0; i < g.size(); ++i) ASSERT_NEAR(g[i], w[i], most) << what << " at " << i;
}

TEST_F(Nccl, AllReduceIsThatOfThreads) {
  for (const int ranks : {2, 4})
    run(ranks, [&](Rank& rank, Communicator& hosts) {
      for (const DType dtype : testing::kAllTypes)
        for (const Reduce how : {Reduce::sum, Reduce::avg, Reduce::max})
          for (const int64_t n : {1, 7, 300}) {
            if (how == Reduce::avg && testing::is_integer(dtype)) continue;
            auto want = contribution(hosts.rank(), n, dtype);
            const Tensor x = rank.upload(want, dtype);
            hosts.all_reduce({want.data(), dtype, {n}}, how, Lane::compute);
            rank.nccl->all_reduce(x, how, n == 7 ? Lane::comm : Lane::compute);
            expect_same(rank.read(x), want, dtype, cat("all_reduce ", int(how), " of ", n, " ", dtype));
          }
      int32_t one = 1;
      EXPECT_THROW(rank.nccl->all_reduce({&one, DType::i32, {1}}, Reduce::avg, Lane::compute), Error);
    });
}

TEST_F(Nccl, ShardsAreThoseOfThreads) {
  run(4, [&](Rank& rank, Communicator& hosts) {
    for (const DType dtype : testing::kAllTypes)
      for (const bool in_place : {false, true}) {
        const int64_t n = 65, all = n * hosts.size();
        const size_t part = size_t(n) * size_of(dtype);
        auto host_full = contribution(hosts.rank(), all, dtype);
        std::vector<std::byte> host_shard(part), host_gathered(part * size_t(hosts.size()));
        const Tensor full = rank.upload(host_full, dtype);
        const Tensor shard =
            in_place ? full.slice(hosts.rank() * n, (hosts.rank() + 1) * n) : rank.upload(host_shard, dtype);
        const auto before = host_full;
        hosts.reduce_scatter({host_shard.data(), dtype, {n}}, {host_full.data(), dtype, {all}}, Reduce::sum,
                             Lane::compute);
        rank.nccl->reduce_scatter(shard, full, Reduce::sum, Lane::compute);
        expect_same(rank.read(shard), host_shard, dtype, cat("reduce_scatter of ", dtype));
        if (!in_place) {
          EXPECT_EQ(rank.read(full), before) << "the contribution stays as it was";
        }
        hosts.all_gather({host_gathered.data(), dtype, {all}}, {host_shard.data(), dtype, {n}}, Lane::compute);
        rank.nccl->all_gather(full, shard, Lane::compute);
        expect_same(rank.read(full), host_gathered, dtype, cat("all_gather of ", dtype));
      }
    EXPECT_THROW(rank.nccl->all_gather({nullptr, DType::f32, {7}}, {nullptr, DType::f32, {2}}, Lane::compute), Error);
  });
}

TEST_F(Nccl, BroadcastAndMessages) {
  run(3, [&](Rank& rank, Communicator& hosts) {
    const int me = hosts.rank(), next = (me + 1) % 3, before = (me + 2) % 3;
    for (int root = 0; root < 3; ++root) {
      const Tensor x = rank.upload(contribution(me, 50, DType::bf16), DType::bf16);
      rank.nccl->broadcast(x, root, Lane::comm);
      EXPECT_EQ(rank.read(x), contribution(root, 50, DType::bf16));
    }
    const Tensor out = rank.upload(contribution(me, 90, DType::f32), DType::f32);
    const Tensor in = rank.upload(std::vector<std::byte>(360), DType::f32);
    for (int turn = 0; turn < 2; ++turn) {
      if (me % 2 == 0) rank.nccl->send(out, next, Lane::compute);
      rank.nccl->recv(in, before, Lane::compute);
      if (me % 2 == 1) rank.nccl->send(out, next, Lane::compute);
      EXPECT_EQ(rank.read(in), contribution(before, 90, DType::f32));
    }
    if (me < 2) {
      rank.nccl->exchange(out, in, 1 - me, Lane::compute);
      EXPECT_EQ(rank.read(in), contribution(1 - me, 90, DType::f32));
    }
    EXPECT_THROW(rank.nccl->exchange(out, in, 3, Lane::compute), Error);
    EXPECT_THROW(rank.nccl->send(out, me, Lane::compute), Error);
    EXPECT_THROW(rank.nccl->broadcast(out, 3, Lane::compute), Error);
    rank.nccl->barrier();
  });
}

TEST_F(Nccl, GroupsAreOrderedByKeyAndWorkAlone) {
  run(4, [&](Rank& rank, Communicator& hosts) {
    const int me = hosts.rank();
    const auto pair = rank.nccl->split(me % 2, -me);  // odd and even ranks, last first
    ASSERT_EQ(pair->size(), 2);
    EXPECT_EQ(pair->rank(), me < 2 ? 1 : 0);
    const Tensor x = rank.upload(contribution(me, 9, DType::i32), DType::i32);
    const Tensor both = rank.upload(std::vector<std::byte>(72), DType::i32);
    pair->all_gather(both, x, Lane::compute);
    auto want = contribution(me % 2 + 2, 9, DType::i32);
    const auto second = contribution(me % 2, 9, DType::i32);
    want.insert(want.end(), second.begin(), second.end());
    EXPECT_EQ(rank.read(both), want);
    const auto alone = pair->split(me, 0), twin = rank.nccl->split(0, me);
    EXPECT_EQ(alone->size(), 1);
    alone->all_reduce(x, Reduce::sum, Lane::compute);
    for (int turn = 0; turn < 3; ++turn) {  // several groups by turns
      pair->broadcast(x, 0, Lane::compute);
      twin->broadcast(x, 1, Lane::compute);
    }
    EXPECT_EQ(rank.read(x), contribution(3, 9, DType::i32));
  });
}

// Order between lanes is that of events alone, the host never waits, and a graph repeats it all.
TEST_F(Nccl, LanesAndGraphsKeepTheOrder) {
  run(2, [&](Rank& rank, Communicator& hosts) {
    Device& device = *rank.cuda.device;
    const std::vector<std::byte> mine = contribution(hosts.rank(), 40, DType::f32);
    const Tensor x = rank.upload(mine, DType::f32), y = rank.upload(mine, DType::f32);
    const Tensor start = rank.upload(mine, DType::f32);
    const auto work = [&] {
      device.copy(x.data, start.data, x.bytes(), Lane::compute);
      device.wait(Lane::comm, *device.record(Lane::compute));
      rank.nccl->all_reduce(x, Reduce::sum, Lane::comm);
      device.wait(Lane::compute, *device.record(Lane::comm));
      device.copy(y.data, x.data, x.bytes(), Lane::compute);
      rank.nccl->all_reduce(y, Reduce::max, Lane::compute);
    };
    const int64_t waits = device.host_waits();
    work();
    device.begin_capture();
    work();
    const auto graph = device.end_capture();
    for (int turn = 0; turn < 3; ++turn) device.launch(*graph);
    EXPECT_EQ(device.host_waits(), waits);
    auto want = mine;
    hosts.all_reduce({want.data(), DType::f32, {40}}, Reduce::sum, Lane::compute);
    expect_same(rank.read(y), want, DType::f32, "replayed");
  });
}

// ---- training

constexpr int64_t kSequences = 24, kLength = 6, kVocab = 40;

ModelConfig tiny(ModelType type) {
  ModelConfig m = model_defaults(type);
  m.vocab_size = kVocab;
  m.hidden_size = 32;
  m.num_hidden_layers = 2;
  m.num_attention_heads = 2;
  m.num_key_value_heads = type == ModelType::gpt2 ? 2 : 1;
  m.head_dim = 16;
  m.intermediate_size = 48;
  m.max_position_embeddings = 8;
  m.tie_word_embeddings = type == ModelType::gpt2;
  return m;
}

struct Setting {
  ModelType type = ModelType::llama;
  const char* precision = "fp32";
  int replicas = 1, shards = 1, stage = 0;
  int64_t accumulation = 1;
  bool graphs = true;
  int64_t leaves = 0;  // rank-invariant sums; micro-batches are then of six sequences
  std::string name() const {
    return cat(name_of(type), " ", precision, " stage ", stage, " ranks ", replicas, "x", shards, " accumulation ",
               accumulation, graphs ? " captured" : " eager");
  }
};

EngineOptions options(const Setting& s) {
  EngineOptions o;
  o.recipe = make_recipe(s.precision, DType::f32);
  o.seq_length = kLength;
  o.micro_batch_size = s.leaves > 0 ? 6 : kSequences / (s.accumulation * s.replicas * s.shards);
  o.logical_shards = s.leaves;
  o.global_batch_size = kSequences;
  o.zero_stage = s.stage;
  o.graphs = s.graphs;
  o.seed = o.adamw.seed = 5;
  o.schedule = {.style = DecayStyle::constant, .lr = 3e-3, .min_lr = 3e-3};
  o.clip_grad = 0.5;
  return o;
}

// The micro-batches of one rank in one step, as the loader deals them out.
void accumulate(Engine& engine, int64_t step) {
  PhaseClock clock;
  const int64_t rows = engine.options().micro_batch_size;
  for (int64_t m = 0; m < engine.micro_batches(); ++m) {
    std::vector<int32_t> tokens, targets;
    for (int64_t i = 0; i < rows * kLength; ++i) {
      const int64_t turn = engine.turn(), before = (m / turn * engine.ranks() + engine.rank()) * turn + m % turn;
      const int64_t first = step * kSequences + before * rows;
      const auto at = uint64_t(first * kLength + i);
      tokens.push_back(int32_t(random_bits(1, 0, at) % kVocab));
      targets.push_back(int32_t(random_bits(1, 1, at) % kVocab));
    }
    engine.micro_batch(tokens, targets, clock);
  }
}

struct Curve {
  std::vector<double> losses;
  std::vector<float> norms;
  bool operator==(const Curve&) const = default;
};

class NcclTraining : public Nccl {
 protected:
  Curve train(const Setting& s, int64_t steps = 3) {
    std::mutex mutex;
    Curve curve;
    run(s.replicas * s.shards, [&](Rank& rank, Communicator& hosts) {
      ProcessMesh mesh(rank.nccl->split(0, rank.nccl->rank()), {1, s.replicas, s.shards, 1, 1, 1});
      Engine engine(tiny(s.type), options(s), {*rank.cuda.device, *rank.cuda.ops, mesh});
      engine.commit();
      hosts.barrier();
      engine.init_weights();
      Curve mine;
      const auto collect = [&] {
        const StepState state = engine.collect().state;
        mine.losses.push_back(state.loss / state.loss_targets);
        mine.norms.push_back(state.grad_norm);
      };
      for (int64_t step = 0; step < steps; ++step) {
        const int64_t waits = rank.cuda.device->host_waits();
        accumulate(engine, step);
        PhaseClock clock;
        engine.close_step(clock);
        EXPECT_EQ(rank.cuda.device->host_waits(), waits) << "the host waits inside of a step";
        while (engine.uncollected() > 1) collect();
      }
      while (engine.uncollected() > 0) collect();
      rank.quiet(hosts, board_);
      const std::lock_guard lock(mutex);
      if (curve.losses.empty()) curve = mine;
      EXPECT_EQ(curve, mine) << "all ranks report one loss";
    });
    return curve;
  }

  void expect_same_run(const Curve& want, const Setting& s, double tolerance, int64_t steps = 3) {
    const Curve got = train(s, steps);
    ASSERT_EQ(got.losses.size(), want.losses.size());
    for (size_t i = 0; i < want.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * want.losses[i]) << s.name() << " step " << i;
  }
};

struct Layout {
  int replicas, shards, stage;
};
// Every stage and every way to share out; on a GPU all of them together.
std::vector<Layout> layouts() {
#ifdef ATHANOR_EMULATED_GPU
  return {{1, 2, 0}, {1, 2, 1}, {1, 4, 2}, {2, 2, 3}};
#else
  std::vector<Layout> all;
  for (const auto& [replicas, shards] : {std::pair{1, 2}, {1, 4}, {2, 2}})
    for (const int stage : {0, 1, 2, 3}) all.push_back({replicas, shards, stage});
  return all;
#endif
}

TEST_F(NcclTraining, LossesAreThoseOfOneRank) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2}) {
    const Curve want = train({.type = type});
    for (const auto& [replicas, shards, stage] : layouts())
      expect_same_run(want,
                      {.type = type,
                       .replicas = replicas,
                       .shards = shards,
                       .stage = stage,
                       .accumulation = type == ModelType::llama ? 2 : 1},
                      1e-5);
  }
}

TEST_F(NcclTraining, GraphsChangeNoBit) {
  for (const auto& [replicas, shards, stage] : layouts()) {
    Setting s{.precision = "bf16", .replicas = replicas, .shards = shards, .stage = stage};
    const Curve captured = train(s);
    s.graphs = false;
    EXPECT_EQ(captured, train(s)) << s.name();
  }
}

TEST_F(NcclTraining, InvariantSumsAreTheSameBitsOnAnyRanks) {
  Setting s{.precision = "bf16", .leaves = 4};
  const Curve want = train(s);
  for (const auto& [replicas, shards, stage] : layouts()) {
    s.replicas = replicas, s.shards = shards, s.stage = stage;
    EXPECT_EQ(want, train(s)) << s.name();
  }
}

TEST_F(NcclTraining, ManyStepsInBf16) {
#ifdef ATHANOR_EMULATED_GPU
  constexpr int64_t kMany = 5;
#else
  constexpr int64_t kMany = 20;
#endif
  const Curve want = train({.precision = "bf16"}, kMany);
  for (const auto& [replicas, shards, stage] : layouts())
    expect_same_run(want, {.precision = "bf16", .replicas = replicas, .shards = shards, .stage = stage}, 5e-3, kMany);
}

// ---- failures

// What a rank says at its end.
struct End {
  std::string what;
  Exit code = Exit::done;
  double seconds = 0;
};

class NcclFailure : public Nccl {
 protected:
  using BeforeEach = std::function<void(int rank, int turn)>;
  // Three ranks reduce for as long as it goes well, one by one or in a replayed graph.
  std::vector<End> ends(const BeforeEach& before_each, bool captured, double timeout = 60) {
    std::vector<End> all(3);
    ended_ = 0;
    run(
        3,
        [&](Rank& rank, Communicator& hosts) {
          Device& device = *rank.cuda.device;
          const Tensor x = rank.upload(contribution(hosts.rank(), 64, DType::f32), DType::f32);
          const auto begin = std::chrono::steady_clock::now();
          std::unique_ptr<Graph> graph;
          End& end = all[size_t(hosts.rank())];
          try {
            for (int turn = 0; turn < 6; ++turn) {
              before_each(hosts.rank(), turn);
              if (captured && turn == 1) device.begin_capture();
              if (!captured || turn < 2) rank.nccl->all_reduce(x, Reduce::max, Lane::compute);
              if (captured && turn == 1) graph = device.end_capture();
              if (graph) device.launch(*graph);
              device.sync();
            }
          } catch (const Error& e) {
            end.what = e.what(), end.code = e.code();
          }
          end.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
          ++ended_;
          rank.free_blocks();
        },
        timeout);
    return all;
  }
  void stay_away() const {
    while (ended_ < 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  static void expect_lost(const End& end, std::initializer_list<std::string> parts, double seconds = 10) {
    EXPECT_EQ(end.code, Exit::peer_lost) << end.what;
    for (const std::string& part : parts)
      EXPECT_NE(end.what.find(part), std::string::npos) << part << " in " << end.what;
    EXPECT_LT(end.seconds, seconds) << end.what;
  }
  std::atomic<int> ended_{0};
};

TEST_F(NcclFailure, ARankThatStaysAwayEndsTheOthersInTime) {
  for (const bool captured : {false, true}) {
    const auto all =
        ends([&](int rank, int turn) { return rank == 2 && turn == 3 ? stay_away() : void(); }, captured, 1);
    for (int r : {0, 1})
      expect_lost(all[size_t(r)],
                  {"all_reduce of [64] f32 over 3 ranks, collective 4", cat("rank ", r, " (here) at step 3")});
    EXPECT_NE((all[0].what + all[1].what).find("has not ended for 1 s"), std::string::npos) << all[0].what;
    expect_lost(all[2], {"has not ended for 1 s", "; rank 2 (here) at step 3, was in "});
  }
}

// As the rendezvous tells of a process that was killed.
TEST_F(NcclFailure, ALostPeerEndsTheOthersAtOnce) {
  const auto all = ends(
      [&](int rank, int turn) {
        if (rank != 2 || turn != 3) return;
        board_.tell("rank 2 is gone: its process ended");
        stay_away();
      },
      false);
  for (int r : {0, 1})
    expect_lost(all[size_t(r)], {"rank 2 is gone: its process ended; rank ", "was in all_reduce of [64] f32"}, 3);
}

TEST_F(NcclFailure, ARankThatNeverComesIsGivenUp) {
  try {
    board_.failure.clear();
    run_ranks(3, [&](std::unique_ptr<Communicator> hosts) {
      int count = 0;
      ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
      const CudaBackend cuda = make_cuda({.index = hosts->rank() % count});
      auto control = hosts->split(0, hosts->rank());
      if (hosts->rank() == 2) {
        std::vector<std::byte> id(128);  // sizeof(ncclUniqueId); this rank then hangs
        control->broadcast({id.data(), DType::u8, {128}}, 0, Lane::compute);
        hosts->barrier();
      }
      make_nccl(*cuda.device, board_.options(hosts->rank(), 1), std::move(control));
    });
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::peer_lost);
    EXPECT_NE(std::string(e.what()).find("making a communicator of 3 ranks has not ended for 1 s"), std::string::npos)
        << e.what();
  }
}

#ifdef ATHANOR_EMULATED_GPU
TEST_F(NcclFailure, AHangingCollectiveIsNamed) {
  for (const bool captured : {false, true}) {
    fake().hang(1, 5);
    for (const End& end : ends([](int, int) {}, captured, 1))
      expect_lost(end, {"all_reduce of [64] f32 over 3 ranks, collective 5", "has not ended for 1 s"});
  }
}

TEST_F(NcclFailure, AnAsynchronousErrorEndsAllRanks) {
  for (const bool captured : {false, true}) {
    fake().fail_asynchronously(1, 4, ncclSystemError);
    for (const End& end : ends([](int, int) {}, captured))
      expect_lost(end, {" (here) at step 3", "all_reduce of [64] f32 over 3 ranks", "NCCL: "}, 5);
  }
}

TEST_F(NcclFailure, InitialisationThatFailsIsNamed) {
  for (const char* function : {"ncclGetUniqueId", "ncclCommInitRank"}) {
    emu::fail_next(function, 1, ncclSystemError);
    try {
      run(3, [](Rank&, Communicator&) {});
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::peer_lost);
      EXPECT_NE(std::string(e.what()).find("NCCL: unhandled system error"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("on here: "), std::string::npos) << e.what();
    }
  }
}

TEST_F(NcclFailure, TwoRanksOnOneGpuAreRefusedByNccl) {
  emu::simulate({emu::gpu_h200()});
  try {
    run(2, [](Rank&, Communicator&) {});
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("making a communicator of 2 ranks: NCCL: "), std::string::npos) << e.what();
  }
}
#endif

// Others notice in the middle of captured steps; nothing of the engine waits for ever.
TEST_F(NcclTraining, ARankThatFailsEndsTheRunOfAll) {
  std::atomic<int> lost{0};
  EXPECT_THROW(run(3,
                   [&](Rank& rank, Communicator&) {
                     const int me = rank.nccl->rank();
                     ProcessMesh mesh(rank.nccl->split(0, me), {1, 1, 3, 1, 1, 1});
                     const Setting s{.shards = 3, .stage = 3};
                     Engine engine(tiny(s.type), options(s), {*rank.cuda.device, *rank.cuda.ops, mesh});
                     engine.commit();
                     engine.init_weights();
                     try {
                       for (int64_t step = 0; step < 5; ++step) {
                         if (me == 1 && step == 3) {
                           board_.tell("rank 1 failed: no more data");
                           throw Error("no more data");
                         }
                         accumulate(engine, step);
                         engine.finish_step();
                       }
                     } catch (const Error& e) {
                       if (me != 1) {
                         EXPECT_EQ(e.code(), Exit::peer_lost);
                         EXPECT_EQ(std::string(e.what()).rfind("rank 1 failed: no more data; rank ", 0), 0u)
                             << e.what();
                         ++lost;
                       }
                       throw;
                     }
                   }),
               Error);
  EXPECT_EQ(lost, 2);
}

}  // namespace
}  // namespace athanor
