// Laws of the arena: live blocks never overlap, runs repeat their recording or say at which buffer they do not.
#include "device/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <numeric>

#include "base/poison.h"
#include "base/rng.h"
#include "tests/expect_error.h"

namespace athanor {
namespace {

bool alive_together(const PlannedBlock& a, const PlannedBlock& b) { return a.born < b.died && b.born < a.died; }

size_t peak(const std::vector<PlannedBlock>& blocks) {
  size_t most = 0;
  for (const PlannedBlock& at : blocks) {
    size_t live = 0;
    for (const PlannedBlock& b : blocks)
      if (b.born <= at.born && at.born < b.died) live += b.bytes;
    most = std::max(most, live);
  }
  return most;
}

void expect_sound(const std::vector<PlannedBlock>& blocks, size_t total) {
  size_t used = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const PlannedBlock& a = blocks[i];
    used = std::max(used, a.offset + a.bytes);
    for (size_t j = 0; j < i; ++j) {
      const PlannedBlock& b = blocks[j];
      if (!alive_together(a, b)) continue;
      ASSERT_TRUE(a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset) << i << " " << j;
    }
  }
  EXPECT_EQ(total, used);
  EXPECT_GE(total, peak(blocks));
}

// Random births and deaths; sizes over four orders of magnitude.
std::vector<PlannedBlock> random_blocks(uint64_t seed, int64_t count) {
  std::vector<PlannedBlock> blocks(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const auto r = philox(seed, 0, uint64_t(i));
    PlannedBlock& b = blocks[size_t(i)];
    b.bytes = kArenaAlign * (1 + (r[0] % 16 << r[1] % 10));
    b.born = r[2] % (2 * count);
    b.died = b.born + 1 + r[3] % (i % 7 ? 12 : 2 * count);
  }
  return blocks;
}

TEST(Pack, NoTwoLiveBlocksShareAByte) {
  double worst = 1;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(cat("seed ", seed));
    auto blocks = random_blocks(seed, 10 + int64_t(seed) * 5);
    const size_t total = pack(blocks);
    expect_sound(blocks, total);
    worst = std::max(worst, double(total) / double(peak(blocks)));
  }
  EXPECT_LT(worst, 1.35);  // greedy by size is no optimum, but near it
}

// Compares every pair of blocks: the slow reference for pack().
size_t pack_plainly(std::vector<PlannedBlock>& blocks) {
  std::vector<size_t> order(blocks.size()), placed;
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  size_t total = 0;
  for (const size_t i : order) {
    PlannedBlock& b = blocks[i];
    std::vector<std::pair<size_t, size_t>> busy;
    for (const size_t j : placed)
      if (blocks[j].born < b.died && b.born < blocks[j].died)
        busy.emplace_back(blocks[j].offset, blocks[j].offset + blocks[j].bytes);
    std::sort(busy.begin(), busy.end());
    b.offset = 0;
    for (const auto& [begin, end] : busy) {
      if (b.offset + b.bytes <= begin) break;
      b.offset = std::max(b.offset, end);
    }
    total = std::max(total, b.offset + b.bytes);
    placed.push_back(i);
  }
  return total;
}

TEST(Pack, PlacesBuffersBySizeAtTheLowestFreeOffset) {
  for (uint64_t seed = 100; seed < 140; ++seed) {
    SCOPED_TRACE(cat("seed ", seed));
    auto blocks = random_blocks(seed, 5 + int64_t(seed - 100) * 8), plain = blocks;
    EXPECT_EQ(pack(blocks), pack_plainly(plain));
    for (size_t i = 0; i < blocks.size(); ++i) EXPECT_EQ(blocks[i].offset, plain[i].offset) << i;
  }
}

// Saved activations of 2,000 layers and short-lived buffers between them: comparing pairs would take a minute.
TEST(Pack, TimeGrowsAlmostLinearlyWithBlocks) {
  constexpr int64_t kLayers = 2000, kSaved = 12, kShort = 12;
  constexpr size_t kSizes[] = {65536, 16384, 65536, 512, 131072, 32768};
  std::vector<PlannedBlock> blocks;
  int64_t clock = 0;
  size_t saved_bytes = 0;
  std::vector<size_t> saved;
  for (int64_t l = 0; l < kLayers; ++l) {
    for (int64_t s = 0; s < kSaved; ++s) {
      saved.push_back(blocks.size());
      blocks.push_back({.name = "saved", .bytes = kSizes[s % 6], .born = clock++});
      saved_bytes += kSizes[s % 6];
    }
    for (int64_t s = 0; s < kShort; ++s, clock += 2)
      blocks.push_back({.name = "short", .bytes = kSizes[s % 5], .born = clock, .died = clock + 3});
  }
  for (; !saved.empty(); saved.pop_back()) {
    blocks.push_back({.name = "gradient", .bytes = blocks[saved.back()].bytes, .born = clock, .died = clock + 4});
    blocks[saved.back()].died = clock += 2;
  }
  const std::clock_t begin = std::clock();  // CPU time of this process: other processes may keep the cores busy
  const size_t total = pack(blocks);
  EXPECT_LT(double(std::clock() - begin) / CLOCKS_PER_SEC, 10);
  EXPECT_LT(double(total), 1.05 * double(saved_bytes));
}

TEST(Pack, IsOptimalForNestedLifetimes) {  // as of forward and backward through a stack of layers
  std::vector<PlannedBlock> blocks;
  constexpr int64_t kLayers = 24;
  for (int64_t l = 0; l < kLayers; ++l)
    blocks.push_back({.name = "saved", .bytes = 1024, .born = l, .died = 3 * kLayers - l});
  for (int64_t l = 0; l < kLayers; ++l)
    blocks.push_back({.name = "gradient", .bytes = 512, .born = kLayers + l, .died = kLayers + l + 2});
  const size_t total = pack(blocks);
  expect_sound(blocks, total);
  EXPECT_EQ(total, peak(blocks));
}

TEST(Pack, ReusesFreedMemoryDeterministically) {
  std::vector<PlannedBlock> blocks;
  for (int64_t i = 0; i < 100; ++i) blocks.push_back({.name = "x", .bytes = 4096, .born = 2 * i, .died = 2 * i + 1});
  EXPECT_EQ(pack(blocks), 4096u);
  auto once = random_blocks(9, 200), again = once;
  EXPECT_EQ(pack(once), pack(again));
  for (size_t i = 0; i < once.size(); ++i) EXPECT_EQ(once[i].offset, again[i].offset);
  std::vector<PlannedBlock> none;
  EXPECT_EQ(pack(none), 0u);
}

// A program of random allocations and releases, the same for recording and running.
void play(Arena& arena, uint64_t seed, std::vector<std::pair<Buffer, uint8_t>>* live, bool write) {
  for (uint64_t i = 0; i < 200; ++i) {
    const auto r = philox(seed, 1, i);
    if (live->empty() || r[0] % 5 < 3) {
      Buffer b = arena.alloc(cat("buffer", r[1] % 3), DType::u8, {1 + r[2] % 3000});
      const auto mark = uint8_t(i);
      if (write) std::fill_n(static_cast<uint8_t*>(b.t.data), b.t.bytes(), mark);
      live->emplace_back(std::move(b), mark);
    } else {
      const size_t at = r[1] % live->size();
      const auto& [b, mark] = (*live)[at];
      const auto* data = static_cast<uint8_t*>(b.t.data);
      ASSERT_TRUE(!write || std::all_of(data, data + b.t.bytes(), [m = mark](uint8_t x) { return x == m; }));
      live->erase(live->begin() + int64_t(at));
    }
  }
  live->clear();
}

TEST(Arena, ValuesLiveUntilTheirBufferDies) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(cat("seed ", seed));
    Arena arena;
    std::vector<std::pair<Buffer, uint8_t>> live;
    arena.record("step");
    EXPECT_TRUE(arena.recording());
    play(arena, seed, &live, false);
    arena.finish_recording();
    EXPECT_FALSE(arena.recording());
    const ArenaPhase& phase = arena.phases().at(0);
    EXPECT_EQ(arena.bytes(), phase.packed_bytes);
    EXPECT_EQ(phase.peak_live, peak(phase.blocks));
    EXPECT_EQ(arena.least_bytes(), phase.peak_live);
    expect_sound(phase.blocks, phase.packed_bytes);
    std::vector<uint8_t> memory(arena.bytes());
    arena.commit(memory.data());
    for (int run = 0; run < 3; ++run) {
      arena.begin("step");
      play(arena, seed, &live, true);
      arena.end();
    }
  }
}

#ifdef ATHANOR_POISONS
TEST(ArenaDeathTest, AddressSanitizerReportsReadsOfFreedBlocks) {
  Arena arena;
  arena.record("p");
  (void)arena.alloc("a", DType::f32, {100});
  arena.finish_recording();
  std::vector<char> memory(arena.bytes());
  arena.commit(memory.data(), true);
  arena.begin("p");
  const volatile float* freed;
  {
    const Buffer a = arena.alloc("a", DType::f32, {100});
    freed = a.t.as<float>();
    EXPECT_EQ(freed[99], 0.0F);
  }
  EXPECT_DEATH((void)freed[99], "use-after-poison");
  arena.end();
  unpoison(memory.data(), memory.size());
}
#endif

Arena* one_phase(Arena& arena) {  // "a" and "b" live together, then "c"
  arena.record("p");
  { const Buffer a = arena.alloc("a", DType::f32, {100}), b = arena.alloc("b", DType::u8, {1}); }
  (void)arena.alloc("c", DType::f32, {64});
  arena.finish_recording();
  return &arena;
}

TEST(Arena, ReturnsPlannedAlignedOffsets) {
  Arena arena;
  one_phase(arena);
  std::vector<char> memory(arena.bytes());
  EXPECT_EQ(memory.size(), 768u);
  arena.commit(memory.data());
  arena.begin("p");
  const auto& blocks = arena.phases()[0].blocks;
  {
    const Buffer a = arena.alloc("a", DType::f32, {100}), b = arena.alloc("b", DType::u8, {1});
    EXPECT_EQ(a.t.data, memory.data() + blocks[0].offset);
    EXPECT_EQ(b.t.data, memory.data() + blocks[1].offset);
    EXPECT_EQ(a.t.shape, Shape{100});
    EXPECT_EQ(blocks[1].bytes, kArenaAlign);
  }
  Buffer c = arena.alloc("c", DType::f32, {64});
  c = Buffer();
  arena.end();
  for (const PlannedBlock& b : blocks) EXPECT_EQ(b.offset % kArenaAlign, 0u);
}

// Buffers that a run keeps while other runs execute are in its frame; all other memory is shared.
TEST(Arena, ConcurrentRunsHaveTheirOwnFrames) {
  Arena arena;
  struct Run {
    Buffer kept;
    void forward(Arena& a) {
      (void)a.alloc("scratch", DType::u8, {3000});
      kept = a.alloc("kept", DType::u8, {1000});
      (void)a.alloc("scratch", DType::u8, {2000});
    }
    void backward(Arena& a) {
      (void)a.alloc("scratch", DType::u8, {3000});
      kept = {};
    }
  };
  Run recorded;
  arena.record("p", 3);
  recorded.forward(arena);
  arena.pause();
  recorded.backward(arena);
  arena.finish_recording();
  arena.record("other");
  (void)arena.alloc("x", DType::u8, {4000});
  arena.finish_recording();
  EXPECT_EQ(arena.phases()[0].frame_bytes, 0u) << "not chosen yet";
  EXPECT_EQ(arena.bytes(), 3072u + 3 * 1024u);
  EXPECT_EQ(arena.phases()[0].frame_bytes, 1024u);
  EXPECT_LE(arena.least_bytes(), arena.bytes());
  std::vector<char> memory(arena.bytes());
  arena.commit(memory.data());
  Run runs[3];
  const void* first = nullptr;
  for (int step = 0; step < 2; ++step) {
    for (int i = 0; i < 3; ++i) {
      arena.begin("p", i);
      runs[i].forward(arena);
      EXPECT_EQ(runs[i].kept.t.data, memory.data() + 3072 + i * 1024);
      arena.pause();
    }
    if (!first) first = runs[0].kept.t.data;
    EXPECT_EQ(runs[0].kept.t.data, first);
    for (const int i : {1, 2, 0}) {
      arena.resume("p", i);
      runs[i].backward(arena);
      arena.end();
    }
    arena.begin("other");
    (void)arena.alloc("x", DType::u8, {4000});
    arena.end();
  }
  arena.begin("p", 1);
  EXPECT_TRUE(has(error_of([&] { arena.pause(); }), "where the recording was not"));
  runs[0].forward(arena), runs[0].backward(arena);
  arena.end();
  EXPECT_TRUE(has(error_of([&] { arena.begin("p", 3); }), "frame 3 of phase p, planned for 3"));
}

// As a stage's last chunk does, whose backward follows its forward, while micro-batches of other chunks are under way.
TEST(Arena, PhaseWithoutEndKeepsOtherFrames) {
  Arena arena;
  Buffer kept;
  arena.record("left", 1);
  kept = arena.alloc("kept", DType::u8, {1000});
  arena.pause();
  kept = {};
  arena.finish_recording();
  arena.record("never left", 1);
  (void)arena.alloc("x", DType::u8, {4000});
  arena.finish_recording();
  arena.record("alone");
  (void)arena.alloc("x", DType::u8, {3000});
  arena.finish_recording();
  EXPECT_EQ(arena.bytes(), 4096u + 1024u);
  std::vector<char> memory(arena.bytes());
  arena.commit(memory.data());
  arena.begin("left");
  kept = arena.alloc("kept", DType::u8, {1000});
  arena.pause();
  arena.begin("never left");
  EXPECT_LE(static_cast<char*>(arena.alloc("x", DType::u8, {4000}).t.data) + 4000, kept.t.data);
  arena.end();
  EXPECT_TRUE(has(error_of([&] { arena.begin("alone"); }), "phase alone begins while phase left is under way"));
  arena.resume("left", 0);
  kept = {};
  arena.end();
}

TEST(Arena, BlockIsFreedWithItsLastBuffer) {
  Arena arena;
  arena.record("p");
  {
    Buffer kept;
    {
      const Buffer first = arena.alloc("x", DType::u8, {1000});
      kept = first;
    }
    (void)arena.alloc("y", DType::u8, {1000});  // x is still alive
  }
  arena.finish_recording();
  EXPECT_EQ(arena.bytes(), 2048u);
  EXPECT_FALSE(Buffer());
}

TEST(Arena, SizeIsThatOfTheLargestPhase) {
  Arena arena;
  for (int64_t n : {100, 5000, 300}) {
    arena.record(cat("phase", n));
    (void)arena.alloc("x", DType::u8, {n});
    arena.finish_recording();
  }
  EXPECT_EQ(arena.bytes(), 5120u);
}

// Runs fn in phase "p" of a committed arena and returns what it threw.
template <class Fn>
std::string divergence(Fn&& fn) {
  Arena arena;
  one_phase(arena);
  std::vector<char> memory(arena.bytes());
  arena.commit(memory.data());
  arena.begin("p");
  return error_of([&] { fn(arena); });
}

TEST(Arena, ReportsWhereARunDivergesFromItsPlan) {
  EXPECT_TRUE(has(divergence([](Arena& a) { (void)a.alloc("x", DType::f32, {100}); }),
                  "phase p diverged from its plan at buffer 0: planned 'a' of 512 bytes, got 'x' of 512"));
  EXPECT_TRUE(has(divergence([](Arena& a) { (void)a.alloc("a", DType::f32, {200}); }),
                  "planned 'a' of 512 bytes, got 'a' of 1024"));
  EXPECT_TRUE(has(divergence([](Arena& a) {
                    { const Buffer x = a.alloc("a", DType::f32, {100}), y = a.alloc("b", DType::u8, {1}); }
                    (void)a.alloc("c", DType::f32, {64});
                    (void)a.alloc("more", DType::f32, {64});
                  }),
                  "phase p allocates 'more' beyond its plan"));
  EXPECT_TRUE(has(divergence([](Arena& a) {
                    (void)a.alloc("a", DType::f32, {100});
                    a.end();
                  }),
                  "phase p used 1 of 3 planned buffers"));
}

// The plan gave the memory of a and b away; a run that still holds one of them would overwrite it.
TEST(Arena, ReportsBufferThatOutlivesItsPlan) {
  EXPECT_TRUE(has(divergence([](Arena& a) {
                    const Buffer x = a.alloc("a", DType::f32, {100});
                    { const Buffer y = a.alloc("b", DType::u8, {1}); }
                    (void)a.alloc("c", DType::f32, {64});
                  }),
                  "phase p diverged from its plan at buffer 2, 'c': 1 buffers were released, planned 2"));
}

TEST(Arena, BuffersMayNotOutliveTheirPhase) {
  Arena arena;
  Buffer kept;
  arena.record("p");
  kept = arena.alloc("x", DType::u8, {1});
  EXPECT_TRUE(has(error_of([&] { arena.finish_recording(); }), "1 buffers outlive phase p"));
  EXPECT_TRUE(has(divergence([&](Arena& a) {
                    const Buffer x = a.alloc("a", DType::f32, {100});
                    a.end();
                  }),
                  "1 buffers outlive phase p"));
}

TEST(Arena, RefusesOutOfOrderCalls) {
  Arena arena;
  EXPECT_TRUE(has(error_of([&] { (void)arena.alloc("x", DType::u8, {1}); }), "buffer x allocated outside a phase"));
  EXPECT_NE(error_of([&] { arena.finish_recording(); }), "no error");
  EXPECT_NE(error_of([&] { arena.end(); }), "no error");
  one_phase(arena);
  EXPECT_TRUE(has(error_of([&] { arena.record("p"); }), "phase p is recorded twice"));
  EXPECT_TRUE(has(error_of([&] { arena.begin("p"); }), "before commit"));
  std::vector<char> memory(arena.bytes());
  arena.commit(memory.data());
  EXPECT_TRUE(has(error_of([&] { arena.begin("q"); }), "phase q was never recorded"));
  EXPECT_TRUE(has(error_of([&] { arena.record("q"); }), "recording starts before commit"));
}

}  // namespace
}  // namespace athanor
