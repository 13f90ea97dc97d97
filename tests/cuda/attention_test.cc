// The kernels of cuda/attention_*.cu run the op cases of attention, and more around their tiles. This file is the same
// on a GPU and on the emulated one, which draws a new schedule for every launch.
#include <cuda_runtime_api.h>

#include <cmath>
#include <numeric>

#include "cuda/attention.h"
#include "cuda/check.h"
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class Attention : public KernelTest {
 protected:
  // Each case runs twice, under another schedule each time.
  static void op_cases(const char* op) {
    Examiner examine(make_cuda_backend, {.threads = {2}, .only = op});
    attention_cases(examine);
    EXPECT_GE(examine.seen().at(op), 100);
    EXPECT_TRUE(examine.findings().empty()) << examine.report();
  }
};

TEST_F(Attention, Forward) { op_cases(AttentionFwd::kName); }
TEST_F(Attention, Backward) { op_cases(AttentionBwd::kName); }

struct Setting {
  DType dtype;
  AttentionShape shape;
  std::vector<int> documents;  // lengths, one after the other
};

AttentionShape heads(int64_t heads, int64_t kv_heads, int64_t dim, int64_t window = 0) {
  return {heads, kv_heads, dim, window, float(1 / std::sqrt(double(dim)))};
}

std::vector<Span> spans_of(const std::vector<int>& documents) {
  std::vector<Span> spans;
  int row = 0;
  for (const int n : documents) {
    spans.push_back({row, n, row, n, 0, 0});
    row += n;
  }
  return spans;
}

std::vector<double> words_of(const std::vector<Span>& spans) {
  std::vector<double> words;
  for (const Span& s : spans)
    for (int32_t w : {s.q_begin, s.q_len, s.k_begin, s.k_len, s.q_pos, s.k_pos}) words.push_back(w);
  return words;
}

AttentionFwd forward_op(const Setting& s) {
  const int64_t rows = std::accumulate(s.documents.begin(), s.documents.end(), 0);
  const int64_t qc = s.shape.heads * s.shape.head_dim, kc = s.shape.kv_heads * s.shape.head_dim, packed = qc + 2 * kc;
  return {.y = tensor(s.dtype, {rows, qc}),
          .lse = tensor(DType::f32, {rows, s.shape.heads}),
          .q = tensor(s.dtype, {rows, qc}, packed),
          .k = tensor(s.dtype, {rows, kc}, packed),
          .v = tensor(s.dtype, {rows, kc}, packed),
          .spans = tensor(DType::i32, {int64_t(s.documents.size()), kSpanWords}),
          .shape = s.shape};
}
AttentionBwd backward_op(const AttentionFwd& f) {
  return {.dq = f.q,
          .dk = f.k,
          .dv = f.v,
          .dy = f.y,
          .y = f.y,
          .lse = f.lse,
          .q = f.q,
          .k = f.k,
          .v = f.v,
          .spans = f.spans,
          .shape = f.shape};
}

// Head sizes of every tile shape and between them; lengths off the tiles; documents, windows, groups of heads.
TEST_F(Attention, TilesOfEveryHeadSize) {
  Examiner examine(make_cuda_backend, {.threads = {2}});
  const Setting settings[] = {
      {DType::bf16, heads(4, 1, 64), {131}},        {DType::f16, heads(2, 2, 64, 50), {70, 1, 63, 39}},
      {DType::bf16, heads(2, 2, 80), {50, 20}},     {DType::f16, heads(2, 1, 96, 33), {140}},
      {DType::bf16, heads(8, 1, 128), {40, 1, 26}}, {DType::f16, heads(2, 1, 128), {135}},
      {DType::bf16, heads(2, 1, 256), {65, 10}},    {DType::f16, heads(1, 1, 136, 20), {67}},
      {DType::bf16, heads(1, 1, 264), {20}}};  // beyond the tiles
  for (const Setting& s : settings) {
    const std::string name = cat(s.shape.heads, "/", s.shape.kv_heads, "x", s.shape.head_dim, " ", s.dtype);
    OpCase<AttentionFwd> fwd{name, forward_op(s), {{"spans", listed(words_of(spans_of(s.documents)))}}};
    examine(fwd);
    OpCase<AttentionBwd> bwd{name, backward_op(fwd.op), fwd.values};
    const auto results = examine.reference_results(fwd);
    for (const char* tensor : {"y", "lse"}) {
      const Result& r = result(results, tensor);
      bwd.values[tensor] = listed(decoded(r.like.dtype, r.after));
    }
    examine(bwd);
  }
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

// Tensors of one op in device memory.
class DeviceOp {
 public:
  explicit DeviceOp(const Setting& s) : op(forward_op(s)) {
    uint32_t seed = 0;
    for (const Field& f : op.fields()) {
      const int64_t elements = f.t->rows() * f.t->stride();
      f.t->data = backend_.device->allocate(size_t(elements) * size_of(f.t->dtype), Mem::device);
      std::vector<uint16_t> bits(size_t(elements) * size_of(f.t->dtype) / 2);
      for (uint16_t& b : bits) b = uint16_t(0x3c00 + random_bits(7, ++seed, 0) % 0x400);  // f16 of 1 to 2
      write(*f.t, bits.data(), bits.size() * 2);
    }
  }
  void write(const Tensor& t, const void* from, size_t bytes) const {
    backend_.device->copy(t.data, from, bytes, Lane::compute);
  }
  void set_spans(const std::vector<Span>& spans) const { write(op.spans, spans.data(), spans.size() * sizeof(Span)); }
  std::vector<uint16_t> y() const {
    std::vector<uint16_t> bits(size_t(op.y.numel()));
    backend_.device->copy(bits.data(), op.y.data, op.y.bytes(), Lane::compute);
    return bits;
  }
  std::vector<uint16_t> run() const {
    backend_.ops->run(op, nullptr);
    return y();
  }
  const TestBackend& backend() const { return backend_; }

  AttentionFwd op;

 private:
  TestBackend backend_ = make_cuda_backend(2);
};

// The launch knows shapes alone: spans are read when the graph runs.
TEST_F(Attention, ACapturedGraphServesOtherSpans) {
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

// A table that points outside the tensors reads and writes nothing there, and sound rows keep their values.
TEST_F(Attention, SpansThatPointOutsideTouchNothingThere) {
  const DeviceOp x({DType::f16, heads(1, 1, 64), {30, 10, 10}});
  x.set_spans(spans_of({30, 10, 10}));
  const auto sound = x.run();
  constexpr int kFar = 2'000'000'000;
  x.set_spans({{0, 30, 0, 30, 0, 0}, {30, kFar, 40, kFar, kFar, -kFar}, {-kFar, 20, -5, 40, 0, kFar}});
  const auto y = x.run();
  EXPECT_TRUE(std::equal(y.begin(), y.begin() + 30 * 64, sound.begin()));
}

#ifdef ATHANOR_EMULATED_GPU
TEST(AttentionBudget, AccessesAreCoalescedAndFreeOfConflicts) {
  emu::reset_kernel_counters();
  for (const int64_t dim : {64, 128}) {
    const DeviceOp x({DType::f16, heads(2, 1, dim), {200}});
    x.set_spans(spans_of({200}));
    AttentionBwd backward = backward_op(x.op);
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
#endif
}  // namespace
}  // namespace athanor
