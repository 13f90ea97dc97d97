// Laws of the memory plan: one allocation, disjoint zeroed tensors, and an error that says what to make smaller.
#include "device/memory_plan.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "base/int.h"
#include "tests/expect_error.h"

namespace athanor {
namespace {

class FakeDevice final : public Device {
 public:
  std::string description() const override { return "fake"; }
  void* allocate(size_t bytes, Mem where) override {
    ++allocations;
    if (where == Mem::pinned) pinned += bytes;
    live += bytes;
    void* p = std::aligned_alloc(4096, round_up<size_t>(bytes, 4096));
    std::memset(p, 0, bytes);
    return p;
  }
  void release(void* memory, size_t bytes, Mem) override {
    live -= bytes;
    std::free(memory);
  }
  void copy(void* dst, const void* src, size_t bytes, Stream) override { std::memcpy(dst, src, bytes); }
  std::unique_ptr<Event> record(Stream) override { return std::make_unique<Event>(); }
  void wait(Stream, const Event&) override {}
  void sync() override {}
  size_t capacity(Mem) const override { return 1 << 20; }
  size_t allocated() const override { return live; }
  size_t live = 0, pinned = 0;
  int allocations = 0;
};

TEST(MemoryPlan, IsOneAllocationOfDisjointZeroedTensors) {
  FakeDevice device;
  {
    Tensor a, b, c;
    Arena arena;
    arena.record("p");
    (void)arena.alloc("x", DType::u8, {1000});
    arena.finish_recording();
    MemoryPlan plan;
    plan.add(MemoryKind::weights, "a", DType::f32, {3, 5}, &a);
    plan.add(MemoryKind::optimizer, "b", DType::f64, {100}, &b);
    plan.add(arena);
    plan.add(MemoryKind::weights, "c", DType::u8, {1}, &c);
    EXPECT_TRUE(a && b && c);  // present before commit, for the dry run
    EXPECT_EQ(plan.total(), 256u + 1024 + 1024 + 256);
    EXPECT_EQ(plan.total(MemoryKind::weights), 512u);
    EXPECT_EQ(plan.total(MemoryKind::activations), 1024u);
    EXPECT_EQ(plan.total(MemoryKind::cache), 0u);
    plan.commit(device);
    EXPECT_EQ(device.allocations, 1);
    EXPECT_EQ(device.live, plan.total());
    EXPECT_EQ(a.shape, (Shape{3, 5}));
    arena.begin("p");
    Buffer x = arena.alloc("x", DType::u8, {1000});
    std::vector<std::pair<char*, size_t>> ranges;
    for (const Tensor& t : {a, b, c, x.t}) {
      ranges.push_back({static_cast<char*>(t.data), t.bytes()});
      EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data) % kArenaAlign, 0u);
    }
    for (const Tensor& t : {a, b, c})
      for (size_t i = 0; i < t.bytes(); ++i) ASSERT_EQ(static_cast<char*>(t.data)[i], 0);
    for (size_t i = 0; i < ranges.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        EXPECT_TRUE(ranges[i].first + ranges[i].second <= ranges[j].first ||
                    ranges[j].first + ranges[j].second <= ranges[i].first);
    x = Buffer();
    arena.end();
  }
  EXPECT_EQ(device.live, 0u);
}

TEST(MemoryPlan, RefusesARunThatDoesNotFitAndNamesOptions) {
  Tensor a, b;
  MemoryPlan plan;
  plan.add(MemoryKind::weights, "a", DType::u8, {1 << 20}, &a);
  plan.add(MemoryKind::cache, "b", DType::u8, {3 << 20}, &b);
  EXPECT_EQ(error_of([&] { plan.require_fits(4 << 20, 0); }), "no error");
  const std::string text = error_of([&] { plan.require_fits(4 << 20, 1); });
  EXPECT_TRUE(has(text, "the run needs 4.0 MiB + 0.0 MiB reserve, but 4.0 MiB may be used")) << text;
  EXPECT_LT(text.find("cache 3.0 MiB"), text.find("weights 1.0 MiB")) << text;
  EXPECT_TRUE(has(text, plan.knobs(MemoryKind::cache))) << text;
  EXPECT_FALSE(has(text, "optimizer")) << text;
  try {
    plan.require_fits(1, 0);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::usage);
  }
}

TEST(MemoryPlan, HostMemoryHasItsOwnAllocationAndLimit) {
  FakeDevice device;
  Tensor a, b, c;
  {
    MemoryPlan plan;
    plan.add(MemoryKind::weights, "a", DType::u8, {1 << 20}, &a);
    plan.add(MemoryKind::masters, "b", DType::u8, {2 << 20}, &b, Mem::pinned);
    plan.add(MemoryKind::optimizer, "c", DType::f32, {1 << 20}, &c, Mem::pinned);
    EXPECT_EQ(plan.total(), size_t{1} << 20);
    EXPECT_EQ(plan.total(Mem::pinned), size_t{6} << 20);
    EXPECT_EQ(plan.total(MemoryKind::masters), 0u) << "of device memory";
    EXPECT_EQ(plan.total(MemoryKind::masters, Mem::pinned), size_t{2} << 20);
    EXPECT_EQ(error_of([&] { plan.require_host_fits(7 << 20, 1 << 20); }), "no error");
    const std::string text = error_of([&] { plan.require_host_fits(7 << 20, (1 << 20) + 1); });
    for (const char* part :
         {"offload.optimizer keeps 6.0 MiB", "checkpoints take 1.0 MiB there", "7.0 MiB of host memory may be used",
          "optimizer 4.0 MiB (smaller with adam.exp_avg_dtype", "masters 2.0 MiB", "checkpoint.async_save \"off\""})
      EXPECT_TRUE(has(text, part)) << part << " in " << text;
    EXPECT_TRUE(
        has(error_of([&] { plan.require_host_fits(1, 0); }), "keeps 6.0 MiB in pinned host memory, but 0.0 MiB"));
    plan.commit(device);
    EXPECT_EQ(device.allocations, 2);
    EXPECT_EQ(device.pinned, plan.total(Mem::pinned));
    EXPECT_EQ(static_cast<char*>(c.data) - static_cast<char*>(b.data), 2 << 20);
    EXPECT_EQ(c.as<float>()[(1 << 20) - 1], 0);
  }
  EXPECT_EQ(device.live, 0u);
}

TEST(MemoryPlan, RefusesChangesAfterCommit) {
  FakeDevice device;
  Tensor a, b;
  Arena arena;
  MemoryPlan plan;
  plan.add(MemoryKind::weights, "a", DType::u8, {10}, &a);
  plan.commit(device);
  EXPECT_TRUE(
      has(error_of([&] { plan.add(MemoryKind::weights, "late", DType::u8, {10}, &b); }), "late comes too late"));
  EXPECT_NE(error_of([&] { plan.add(arena); }), "no error");
  EXPECT_TRUE(has(error_of([&] { plan.commit(device); }), "committed twice"));
}

TEST(MemoryPlan, EmptyPlanAllocatesNothing) {
  FakeDevice device;
  MemoryPlan plan;
  plan.commit(device);
  EXPECT_EQ(device.allocations, 0);
}

TEST(MemoryKinds, AllHaveNamesAndOptions) {
  for (int k = 0; k < kMemoryKinds; ++k) {
    EXPECT_GT(std::string(name_of(MemoryKind(k))).size(), 3u);
    EXPECT_GT(MemoryPlan().knobs(MemoryKind(k)).size(), 3u);
  }
}

TEST(MemoryPlan, DoesNotAdviseOptionsAlreadyInUse) {
  Tensor a, b, c, d;
  MemoryPlan wide, narrow;
  wide.add(MemoryKind::weights, "a", DType::f32, {4}, &a);
  wide.add(MemoryKind::optimizer, "b", DType::f32, {4}, &b);
  narrow.add(MemoryKind::weights, "a", DType::bf16, {4}, &a);
  narrow.add(MemoryKind::masters, "b", DType::i16, {4}, &b);
  narrow.add(MemoryKind::gradients, "c", DType::f32, {4}, &c);
  narrow.add(MemoryKind::optimizer, "d", DType::bf16, {4}, &d);
  EXPECT_TRUE(has(wide.knobs(MemoryKind::weights), "bf16"));
  EXPECT_TRUE(has(wide.knobs(MemoryKind::optimizer), "bf16"));
  EXPECT_FALSE(has(wide.knobs(MemoryKind::weights), "zero_stage")) << "without gradients there are no ranks";
  EXPECT_EQ(narrow.knobs(MemoryKind::weights),
            "a smaller model, or zero_stage 3 over more ranks, on one GPU also offload.params \"auto\"");
  EXPECT_FALSE(has(narrow.knobs(MemoryKind::masters), "split"));
  EXPECT_FALSE(has(narrow.knobs(MemoryKind::optimizer), "bf16"));
  EXPECT_TRUE(has(narrow.knobs(MemoryKind::optimizer), "offload.optimizer"));
  MemoryPlan offloaded;
  offloaded.add(MemoryKind::optimizer, "d", DType::bf16, {4}, &d, Mem::pinned);
  EXPECT_FALSE(has(offloaded.knobs(MemoryKind::optimizer), "offload.optimizer"));
  offloaded.add(MemoryKind::gradients, "c", DType::f32, {4}, &c, Mem::pinned);
  EXPECT_FALSE(has(offloaded.knobs(MemoryKind::weights), "offload.params"));
}

}  // namespace
}  // namespace athanor
