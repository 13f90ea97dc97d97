// WGMMA attention kernels around their tile sizes, and which kernel is chosen. On a GPU of compute capability 9.0, or
// the emulated one; on other GPUs these cases run the kernels chosen there.
#include "tests/cuda/attention_setting.h"
#ifdef ATHANOR_EMULATED_GPU
#include "cuda/attention/wgmma_schedule.h"
#include "emulator/emulator.h"
#include "emulator/runtime/control.h"
#endif

namespace athanor {
namespace {

class AttentionWgmma : public KernelTest {
 protected:
  void SetUp() override {
    KernelTest::SetUp();
    if (!IsSkipped()) examine_ = std::make_unique<Examiner>(make_cuda_backend, Examiner::Options{.threads = {2}});
  }
  // Q and K are all `rows` rows, with the mask of `spans`.
  OpCase<AttentionFwd> forward(DType dtype, const AttentionShape& shape, int rows, const std::vector<Span>& spans) {
    AttentionFwd op = forward_op({dtype, shape, {rows}});
    op.spans = tensor(DType::i32, {int64_t(spans.size()), kSpanWords});
    return {cat(rows, " rows, ", shape.heads, "/", shape.kv_heads, "x", shape.head_dim, " ", dtype),
            op,
            {{"spans", listed(words_of(spans))}}};
  }
  void forward_agrees(const OpCase<AttentionFwd>& c) { (*examine_)(c); }
  void backward_agrees(const OpCase<AttentionFwd>& c) { (*examine_)(backward_of(*examine_, c)); }
  void rotates_back(const OpCase<AttentionFwd>& c) { athanor::rotates_back(*examine_, backward_of(*examine_, c)); }
  void agrees(const OpCase<AttentionFwd>& c) {
    forward_agrees(c);
    backward_agrees(c);
  }
  // The mma.sync backward makes dK NaN if an unseen value is NaN: it has too few registers to mask it.
  void unseen_rows_may_be_nan(bool values_backward) {
    for (const int64_t dim : {64, 128}) {
      OpCase<AttentionFwd> c = forward(DType::bf16, heads(1, 1, dim), 170, spans_of({139}));
      for (const char* name : {"q", "k", "v", "dy"})
        c.values[name] = [init = normal(), dim](uint64_t seed, int64_t i) {
          return i < 139 * dim ? init(seed, i) : std::nan("");
        };
      forward_agrees(c);
      if (!values_backward) c.values["v"] = normal();
      backward_agrees(c);
    }
  }
  void lengths_and_groups() {
    constexpr int64_t kGroups[] = {1, 2, 3};
    int number = 0;
    for (const int rows : {1, 63, 64, 65, 127, 129, 200, 257})
      for (const int64_t dim : {64, 128}) {
        const AttentionShape shape = heads(kGroups[number % 3], 1, dim);
        agrees(forward(++number % 4 < 2 ? DType::bf16 : DType::f16, shape, rows, spans_of({rows})));
      }
    agrees(forward(DType::bf16, heads(4, 2, 64), 70, spans_of({70})));
  }
  void without_causality() {
    for (const int rows : {5, 64, 130, 300})
      agrees(forward(DType::bf16, heads(2, 1, rows % 4 ? 128 : 64), rows, {{0, rows, 0, rows, rows, 0}}));
  }
  void documents_and_windows() {
    for (const int64_t dim : {64, 128}) {
      agrees(forward(DType::bf16, heads(2, 1, dim), 261, spans_of({70, 1, 63, 127})));
      agrees(forward(DType::f16, heads(1, 1, dim, 50), 330, spans_of({300, 30})));
      agrees(forward(DType::bf16, heads(1, 1, dim), 150, {{3, 7, 2, 7, 0, 0}, {90, 40, 100, 40, 0, 0}}));
      agrees(forward(DType::bf16, heads(2, 2, dim), 12, {{0, 0, 0, 0, 0, 0}, {4, 0, 4, 0, 0, 0}}));
      agrees(forward(DType::bf16, heads(1, 1, dim), 140, {{0, 140, 0, 140, 0, 70}}));  // half of the queries see no key
    }
  }
  void many_tiles() {
    for (const int64_t dim : {64, 128}) {
      agrees(forward(DType::f16, heads(3, 1, dim), 390, spans_of({390})));
      agrees(forward(DType::bf16, heads(1, 1, dim), 500, {{0, 64, 64, 64, 64, 0}, {64, 436, 0, 64, 64, 0}}));
    }
  }
  // Blocks whose first warpgroup sees a tile, and then none of more tiles than the pipeline has stages. Ranks that
  // share sequences, in pieces of no multiple of 128 rows, have such blocks.
  void keys_far_apart() {
    for (const int64_t dim : {64, 128})
      agrees(forward(DType::bf16, heads(2, 1, dim), 768, {{0, 64, 0, 100, 36, 0}, {64, 64, 128, 640, 576, 0}}));
  }
  // Rows that end within tiles and between them, GQA groups, and rows that no query sees.
  void gradients_rotated_back() {
    for (const int64_t dim : {64, 128}) {
      rotates_back(forward(DType::bf16, heads(2, 1, dim), 150, spans_of({150})));
      rotates_back(forward(DType::f16, heads(3, 1, dim), 261, spans_of({70, 1, 190})));
      rotates_back(forward(DType::bf16, heads(2, 2, dim), 128, spans_of({128})));
      rotates_back(forward(DType::bf16, heads(1, 1, dim, 50), 270, {{3, 150, 2, 160, 0, 0}}));
    }
    rotates_back(forward(DType::bf16, heads(2, 1, 80), 33, spans_of({33})));  // other kernels
  }
  void TearDown() override {
    if (!examine_) return;
    EXPECT_TRUE(examine_->findings().empty()) << examine_->report();
  }

 private:
  std::unique_ptr<Examiner> examine_;
};

// Unseen rows may contain anything.
#ifdef ATHANOR_EMULATED_GPU
TEST_F(AttentionWgmma, RowsAfterTheLastKeyMayBeNan) { unseen_rows_may_be_nan(true); }
TEST_F(AttentionWgmma, RowsAfterTheLastKeyMayBeNanOnA100) {
  emu::simulate({emu::gpu_a100()});
  unseen_rows_may_be_nan(false);
  emu::simulate({emu::gpu_h200()});
}
#else
TEST_F(AttentionWgmma, RowsAfterTheLastKeyMayBeNan) { unseen_rows_may_be_nan(false); }
#endif

// Lengths around warps, warpgroups, blocks and tiles; different GQA group sizes.
TEST_F(AttentionWgmma, SequenceLengthsAndGqaGroupsMatchReference) { lengths_and_groups(); }

// Queries positioned after all keys see every key.
TEST_F(AttentionWgmma, NonCausalAttentionMatchesReference) { without_causality(); }

TEST_F(AttentionWgmma, DocumentsAndWindowsMatchReference) { documents_and_windows(); }

TEST_F(AttentionWgmma, FusedGradientRotationMatchesReference) { gradients_rotated_back(); }

// One query per sequence and many keys, as in sampling; more tiles than the pipeline has stages.
TEST_F(AttentionWgmma, KvCacheDecodingMatchesReference) {
  OpCase<AttentionFwd> c = forward(DType::bf16, heads(4, 1, 64), 700, {{0, 1, 0, 600, 599, 0}, {1, 2, 610, 80, 78, 0}});
  c.op.q.shape = c.op.y.shape = {3, c.op.q.cols()};
  c.op.lse.shape = {3, c.op.lse.cols()};
  forward_agrees(c);
}

// More tiles than the pipeline has stages, for several heads; blocks whose warpgroups see disjoint keys.
TEST_F(AttentionWgmma, MoreTilesThanPipelineStagesMatchReference) { many_tiles(); }

TEST_F(AttentionWgmma, WarpgroupsThatSeeKeysFarApartMatchReference) { keys_far_apart(); }

#ifdef ATHANOR_EMULATED_GPU
// Every head of every tile occurs once, with tiles in order; the heads of a tile are split so that the remaining work
// gives two blocks per multiprocessor.
TEST(AttentionSchedule, CoversEveryHeadOnceAndSplitsTheTail) {
  for (const int multiprocessors : {1, 3, 132}) {
    emu::GpuModel gpu = emu::gpu_h200();
    gpu.multiprocessors = multiprocessors;
    emu::simulate({gpu});
    for (const int heads : {1, 3, 12, 200})
      for (const int tiles : {1, 2, 7, 300}) {
        const auto work = cuda::attention::schedule(tiles * 128 - 5, 128, heads);
        EXPECT_EQ(work.tiles, tiles);
        int tile = 0, head = 0;
        for (int block = 0; block < work.blocks; ++block) {
          const auto run = work.run(block);
          ASSERT_EQ(run.tile, tile);
          ASSERT_EQ(run.head, head);
          ASSERT_GT(run.end, head);
          const int most = heads * (tiles - tile) / (2 * multiprocessors);  // of a run
          ASSERT_LE(run.end - head, std::max(heads > 128 ? 2 : 1, most + 1));
          head = run.end;
          if (head == heads) head = 0, ++tile;
        }
        EXPECT_EQ(tile, tiles);
        EXPECT_EQ(head, 0);
        EXPECT_EQ(work.run(0).end == heads, heads == 1 || tiles >= 2 * multiprocessors);
      }
  }
  emu::simulate({emu::gpu_h200()});
}

// On one multiprocessor, a block processes several heads: more than it buffers tiles for, with rows that see one tile,
// several or none.
TEST_F(AttentionWgmma, SeveralHeadsPerBlockMatchReference) {
  emu::GpuModel gpu = emu::gpu_h200();
  gpu.multiprocessors = 1;
  emu::simulate({gpu});
  agrees(forward(DType::bf16, heads(4, 2, 64), 260, spans_of({260})));
  agrees(forward(DType::f16, heads(3, 3, 128), 260, spans_of({260})));
  agrees(forward(DType::bf16, heads(3, 3, 64), 270, {{0, 5, 0, 5, 0, 0}, {140, 20, 10, 150, 0, 0}}));
  rotates_back(forward(DType::bf16, heads(4, 2, 64), 260, spans_of({260})));
  emu::simulate({emu::gpu_h200()});
}

// Names of the kernels that an op and its backward op run on a GPU.
std::string kernels_on(const emu::GpuModel& gpu, const Setting& s, const MakeBackend& make = make_cuda_backend,
                       bool largest = false, bool rotated_back = false) {
  emu::simulate({gpu});
  std::string names;
  {
    DeviceOp x(s, make);
    x.set_spans(spans_of(s.documents));
    if (largest) x.op.amax = {x.backend().device->allocate(sizeof(float), Mem::device), DType::f32, {1}};
    AttentionBwd backward = backward_of(x.op);
    const auto& [device, ops] = x.backend();
    if (rotated_back) {
      backward.cos_sin = tensor(DType::f32, {1, s.shape.head_dim});
      backward.positions = tensor(DType::i32, {x.op.q.rows()});
      for (Tensor* t : {&backward.cos_sin, &backward.positions}) {
        const std::vector<char> zeros(t->bytes());
        t->data = device->allocate(t->bytes(), Mem::device);
        device->copy(t->data, zeros.data(), t->bytes(), Stream::compute);
      }
    }
    emu::reset_kernel_counters();
    emu::count_accesses(true);
    x.run();
    ops->run(backward, device->allocate(ops->scratch(backward), Mem::device));
    device->sync();
    emu::count_accesses(false);
    for (const auto& [kernel, counters] : emu::kernel_counters()) names += kernel + "; ";
  }
  const std::string space = "athanor::cuda::attention::(anonymous namespace)::";
  for (size_t at; (at = names.find(space)) != std::string::npos;) names.erase(at, space.size());
  emu::simulate({emu::gpu_h200()});
  return names;
}

TEST(AttentionKernels, AreSelectedByGpuAndHeadSize) {
  const Setting usual{DType::f16, heads(2, 1, 64), {20}};
  EXPECT_EQ(kernels_on(emu::gpu_h200(), usual),
            "attend_wgmma<__half, 64>; keys_backward_wgmma<__half, 64>; queries_backward_wgmma<__half, 64>; "
            "query_stats<__half>; ");
  EXPECT_EQ(kernels_on(emu::gpu_h100(), {DType::bf16, heads(2, 1, 128), {20}}),
            "attend_wgmma<__nv_bfloat16, 128>; keys_backward_wgmma<__nv_bfloat16, 128>; "
            "queries_backward_wgmma<__nv_bfloat16, 128>; query_stats<__nv_bfloat16>; ");
  for (const auto& gpu : {emu::gpu_a100(), emu::gpu_rtx4090(), emu::gpu_b200()})
    EXPECT_EQ(kernels_on(gpu, usual),
              "attend<__half, 64>; keys_backward<true, true, __half, KeyTiles<64> >; "
              "queries_backward<__half, QueryTiles<64> >; query_stats<__half>; ")
        << gpu.name;
  EXPECT_EQ(kernels_on(emu::gpu_h200(), {DType::f16, heads(2, 1, 80), {20}}),
            "attend<__half, 96>; keys_backward<true, true, __half, KeyTiles<96> >; "
            "queries_backward<__half, QueryTiles<96> >; query_stats<__half>; ");
  EXPECT_EQ(kernels_on(emu::gpu_h200(), {DType::f16, heads(2, 1, 256), {20}}),
            "attend<__half, 256>; keys_backward<false, true, __half, KeyTiles<256> >; "
            "keys_backward<true, false, __half, KeyTiles<256> >; queries_backward<__half, QueryTiles<256> >; "
            "query_stats<__half>; ");
  EXPECT_EQ(kernels_on(emu::gpu_h200(), {DType::f16, sparse_heads(2, 1, 64, {8, 2}), {20}}),
            "attend_sparse<__half, 64>; keys_backward_sparse<true, true, __half, KeyTiles<64> >; "
            "queries_backward_sparse<__half, QueryTiles<64> >; query_stats<__half>; ");
  const auto plain = [](const std::string& type) {
    std::string names = "attend<false, " + type + ">; ";
    for (const char* which : {"0", "1", "2"}) names += cat("differentiate<(Gradient)", which, ", false, ", type, ">; ");
    return names + "query_stats<" + type + ">; ";
  };
  EXPECT_EQ(kernels_on(emu::gpu_h200(), {DType::f32, heads(2, 1, 64), {20}}), plain("float"));
  EXPECT_EQ(kernels_on(emu::gpu_h200(), usual, make_misaligned_backend), plain("__half"));
}

// A 16-bit kernel also computes the amax of its output.
TEST(AttentionKernels, AmaxNeedsNoExtraKernel) {
  const Setting usual{DType::f16, heads(2, 1, 64), {20}}, plain{DType::f32, heads(2, 1, 64), {20}};
  for (const auto& gpu : {emu::gpu_h200(), emu::gpu_a100()})
    EXPECT_EQ(kernels_on(gpu, usual, make_cuda_backend, true), kernels_on(gpu, usual)) << gpu.name;
  EXPECT_NE(kernels_on(emu::gpu_h200(), plain, make_cuda_backend, true), kernels_on(emu::gpu_h200(), plain));
}

// Only warpgroup kernels rotate gradients back; other kernels leave it to a separate launch.
TEST(AttentionKernels, GradientRotationIsFusedOnlyInWgmmaKernels) {
  const Setting usual{DType::f16, heads(2, 1, 64), {20}}, other{DType::f16, heads(2, 1, 80), {20}};
  EXPECT_EQ(kernels_on(emu::gpu_h200(), usual, make_cuda_backend, false, true), kernels_on(emu::gpu_h200(), usual));
  EXPECT_EQ(kernels_on(emu::gpu_h200(), other, make_cuda_backend, false, true),
            "athanor::cuda::(anonymous namespace)::rope<__half, 8>; " + kernels_on(emu::gpu_h200(), other));
}
#endif
}  // namespace
}  // namespace athanor
