// The kernels of cuda/attention_*.cu run the op cases of attention, and more cases around their tile sizes. This file
// is the same on a GPU and on the emulated one, which uses a new schedule for every launch.
#include <cuda_runtime_api.h>

#include "cuda/check.h"
#include "cuda/kernels.h"
#include "tests/cuda/attention_setting.h"
#ifdef ATHANOR_EMULATED_GPU
#include "emulator/runtime/control.h"
#endif

namespace athanor {
namespace {

class Attention : public KernelTest {
 protected:
  // Each case runs twice, with different schedules.
  static void op_cases(const char* op) {
    Examiner examine(make_cuda_backend, {.threads = {2}, .only = op});
    attention_cases(examine);
    EXPECT_GE(examine.seen().at(op), 100);
    EXPECT_TRUE(examine.findings().empty()) << examine.report();
  }
};

TEST_F(Attention, ForwardMatchesReference) { op_cases(AttentionFwd::kName); }
TEST_F(Attention, BackwardMatchesReference) { op_cases(AttentionBwd::kName); }
TEST_F(Attention, SinksNeedNoAlignment) { needs_no_alignment(AttentionSinks::kName, attention_cases, 5); }
TEST_F(Attention, MergeNeedsNoAlignment) { needs_no_alignment(MergeAttention::kName, attention_cases, 5); }

// Forward and backward of each setting agree with the reference.
void settings_agree(const std::vector<Setting>& settings) {
  Examiner examine(make_cuda_backend, {.threads = {2}});
  for (const Setting& s : settings) {
    const std::string name = cat(s.shape.heads, "/", s.shape.kv_heads, "x", s.shape.head_dim, " ", s.dtype);
    OpCase<AttentionFwd> fwd{name, forward_op(s), {{"spans", listed(words_of(spans_of(s.documents)))}}};
    examine(fwd);
    examine(backward_of(examine, fwd));
  }
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

// Head sizes of every tile shape and between them; lengths that are not multiples of tiles; documents, windows, GQA.
void tiles_of_every_head_size() {
  settings_agree({{DType::bf16, heads(4, 1, 64), {131}},
                  {DType::f16, heads(2, 2, 64, 50), {70, 1, 63, 39}},
                  {DType::bf16, heads(2, 2, 80), {50, 20}},
                  {DType::f16, heads(2, 1, 96, 33), {140}},
                  {DType::bf16, heads(8, 1, 128), {40, 1, 26}},
                  {DType::f16, heads(2, 1, 128), {135}},
                  {DType::bf16, heads(2, 1, 256), {65, 10}},
                  {DType::f16, heads(1, 1, 136, 20), {67}},
                  {DType::bf16, heads(1, 1, 264), {20}}});  // larger than any tile
}

// Sparse patterns for every tile shape: groups shorter and longer than tiles, that end within them, of whole tiles, and
// without keys that all later queries see.
TEST_F(Attention, SparsePatternsMatchReference) {
  settings_agree({{DType::bf16, sparse_heads(4, 1, 64, {48, 16}), {200, 1, 70}},
                  {DType::f16, sparse_heads(1, 1, 64, {128, 64}), {450}},
                  {DType::f16, sparse_heads(2, 1, 96, {130, 3}), {300}},
                  {DType::bf16, sparse_heads(2, 2, 128, {64, 0}), {150, 40}},
                  {DType::bf16, sparse_heads(1, 1, 128, {7, 6}), {100}},
                  {DType::f16, sparse_heads(1, 1, 256, {40, 9}), {100}},
                  {DType::f32, sparse_heads(2, 1, 40, {70, 20}), {230}}});
}

TEST_F(Attention, TilesOfEveryHeadSizeMatchReference) { tiles_of_every_head_size(); }
#ifdef ATHANOR_EMULATED_GPU
TEST_F(Attention, TilesOfEveryHeadSizeMatchReferenceOnA100) {
  emu::simulate({emu::gpu_a100()});
  tiles_of_every_head_size();
  emu::simulate({emu::gpu_h200()});
}
#endif

// The launch depends only on shapes: spans are read when the graph runs.
TEST_F(Attention, CapturedGraphWorksWithOtherSpans) {
  const DeviceOp x({DType::f16, heads(2, 1, 64), {50, 20}});
  const std::vector<Span> before = spans_of({50, 20}), after = spans_of({7, 63});
  x.set_spans(before);
  const auto want_before = x.run();
  x.set_spans(after);
  const auto want_after = x.run();
  ASSERT_NE(want_before, want_after);
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  cuda::run(x.op, nullptr, stream);
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  for (const auto& [spans, want] : {std::pair{before, want_before}, {after, want_after}}) {
    x.set_spans(spans);
    CUDA_CHECK(cudaGraphLaunch(executable, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    EXPECT_EQ(x.y(), want);
  }
  CUDA_CHECK(cudaGraphExecDestroy(executable));
  CUDA_CHECK(cudaGraphDestroy(graph));
  CUDA_CHECK(cudaStreamDestroy(stream));
}

// Spans outside the tensors must cause no access there, and valid rows keep their values.
TEST_F(Attention, OutOfRangeSpansCauseNoAccess) {
  const DeviceOp x({DType::f16, heads(1, 1, 64), {30, 10, 10}});
  x.set_spans(spans_of({30, 10, 10}));
  const auto sound = x.run();
  constexpr int kFar = 2'000'000'000;
  x.set_spans({{0, 30, 0, 30, 0, 0}, {30, kFar, 40, kFar, kFar, -kFar}, {-kFar, 20, -5, 40, 0, kFar}});
  const auto y = x.run();
  EXPECT_TRUE(std::equal(y.begin(), y.begin() + 30 * 64, sound.begin()));
}

#ifdef ATHANOR_EMULATED_GPU
// Tiles of keys that no query of a block sees are not read, nor tiles of queries that see no key of one.
TEST_F(Attention, SparsePatternsSkipTiles) {
  emu::simulate({emu::gpu_a100()});
  const auto sectors = [](SparsePattern pattern) {
    DeviceOp x({DType::f16, sparse_heads(1, 1, 64, pattern), {1024}});
    x.set_spans(spans_of({1024}));
    const AttentionBwd backward = backward_of(x.op);
    void* scratch = x.backend().device->allocate(x.backend().ops->scratch(backward), Mem::device);
    emu::reset_kernel_counters();
    emu::count_accesses(true);
    x.backend().ops->run(x.op, nullptr);
    x.backend().ops->run(backward, scratch);
    x.backend().device->sync();
    emu::count_accesses(false);
    uint64_t sum = 0;
    for (const auto& [name, counters] : emu::kernel_counters()) sum += counters.global_sectors;
    return double(sum);
  };
  // Keys are read in tiles of 64; queries are read for each 128 keys, some of which are visible to all later queries if
  // any are.
  const double full = sectors({});
  EXPECT_LT(sectors({128, 16}), 0.8 * full);
  EXPECT_LT(sectors({128, 0}), 0.5 * full);
  emu::simulate({emu::gpu_h200()});
}

void keeps_its_budget() {
  emu::reset_kernel_counters();
  for (const int64_t dim : {64, 128}) {
    DeviceOp x({DType::f16, heads(2, 1, dim), {200}});
    x.op.top = {};  // as without QK-clip
    x.set_spans(spans_of({200}));
    AttentionBwd backward = backward_of(x.op);
    const auto& ops = x.backend().ops;
    void* scratch = x.backend().device->allocate(ops->scratch(backward), Mem::device);
    emu::count_accesses(true);
    ops->run(x.op, nullptr);
    ops->run(backward, scratch);
    x.backend().device->sync();
    emu::count_accesses(false);
  }
  EXPECT_EQ(emu::compare_with_budget("tests/cuda/access_budget.txt", emu::kernel_counters()), "");
}
TEST(AttentionBudget, AccessesAreCoalescedAndFreeOfConflicts) { keeps_its_budget(); }
TEST(AttentionBudget, AccessesAreCoalescedOnA100) {
  emu::simulate({emu::gpu_a100()});
  keeps_its_budget();
  emu::simulate({emu::gpu_h200()});
}
#endif
}  // namespace
}  // namespace athanor
