// CudnnAttention: sequences, documents and windows compared with the reference in double, forward and backward, packed
// and with GQA; unsupported problems and the reasons; a captured graph; failures of the library.
#include "cuda/attention/cudnn_attention.h"

#include <gmock/gmock.h>

#include <cmath>

#include "cuda/check.h"
#include "cuda/libraries/open.h"
#include "cuda/libraries/specs.h"
#include "tests/cuda/kernel_test.h"
#include "tests/expect_error.h"
#include "tests/ops/attention_backward.h"
#ifdef ATHANOR_EMULATED_GPU
#include "emulator/libraries/cudnn/fake_cudnn.h"
#include "emulator/runtime/control.h"
#endif

namespace athanor {
namespace {
using cuda::CudnnAttention;
using testing::HasSubstr;

const CudnnTable& library() {
  static const CudnnTable table = open_cudnn(search_places(library_specs())).call;
  return table;
}

struct Setting {
  int64_t batch, tokens, heads, kv_heads, head_dim;
  int64_t gap = 0;  // elements between rows of Q, K and V, as in packed [q | k | v]
  int64_t window = 0;
  std::vector<int64_t> documents = {};  // lengths of consecutive documents, as rows of the span table; empty: whole
                                        // sequences
};

std::vector<int64_t> lengths_of(const Setting& s) {
  return s.documents.empty() ? std::vector(static_cast<size_t>(s.batch), s.tokens) : s.documents;
}

AttentionFwd forward(const Setting& s, DType dtype) {
  const int64_t rows = s.batch * s.tokens, qc = s.heads * s.head_dim, kc = s.kv_heads * s.head_dim;
  const auto strided = [&](int64_t cols) { return tensor(dtype, {rows, cols}, s.gap ? cols + s.gap : 0); };
  return {.y = tensor(dtype, {rows, qc}),
          .lse = tensor(DType::f32, {rows, s.heads}),
          .q = strided(qc),
          .k = strided(kc),
          .v = strided(kc),
          .spans = tensor(DType::i32, {int64_t(lengths_of(s).size()), kSpanWords}),
          .shape = {s.heads, s.kv_heads, s.head_dim, s.window, float(1 / std::sqrt(double(s.head_dim)))}};
}

Init spans_of(const Setting& s) {
  std::vector<double> words;
  int64_t begin = 0;
  for (const int64_t length : lengths_of(s)) {
    for (const int64_t word : {begin, length, begin, length, int64_t{0}, int64_t{0}}) words.push_back(double(word));
    begin += length;
  }
  return listed(words);
}

class CudnnAttentionTest : public KernelTest {
 protected:
  void TearDown() override {
#ifdef ATHANOR_EMULATED_GPU
    const emu::Report report = emu::take_report();
    EXPECT_EQ(report.fault, emu::Fault::kNone) << report.text;
#endif
  }
  static void agrees(const Setting& s, DType dtype) {
    const CudnnAttention::Options options{.tokens = s.tokens, .documents = !s.documents.empty()};
    Examiner examine(
        [&](int threads) {
          return make_attention_backend(threads, std::make_unique<CudnnAttention>(library(), nullptr, options));
        },
        {.threads = {1, 2}});
    const std::string name =
        cat(s.batch, "x", s.tokens, " ", s.heads, "/", s.kv_heads, "x", s.head_dim, " ", dtype, s.gap ? " strided" : "",
            s.window ? cat(" window ", s.window) : "", " ", s.documents.size(), " documents");
    const OpCase<AttentionFwd> fwd{name, forward(s, dtype), {{"spans", spans_of(s)}}};
    OpCase<AttentionBwd> bwd{name, backward_of(fwd.op), fwd.values};
    const auto results = examine.reference_results(fwd);
    for (const char* output : {"y", "lse"}) {
      const Result& r = result(results, output);
      bwd.values[output] = listed(decoded(r.like.dtype, r.after));
    }
    CudnnAttention attention(library(), nullptr, options);  // no other kernel takes part
    EXPECT_TRUE(attention.supports(fwd.op) && attention.supports(bwd.op)) << name;
    examine(fwd);
    examine(bwd);
    rotates_back(examine, bwd);
    EXPECT_TRUE(examine.findings().empty()) << examine.report();
  }
};

TEST_F(CudnnAttentionTest, MatchesReference) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    agrees({1, 33, 2, 2, 8}, dtype);
    agrees({3, 17, 4, 2, 16, 24}, dtype);
    agrees({2, 64, 4, 1, 40, 8}, dtype);
  }
  agrees({1, 70, 2, 1, 128}, DType::bf16);
  agrees({1, 20, 1, 1, 256, 16}, DType::bf16);
  agrees({5, 1, 4, 4, 8}, DType::f16);
}

TEST_F(CudnnAttentionTest, WindowsMatchReference) {
  for (const int64_t window : {1, 5, 32, 33, 1000}) agrees({2, 33, 2, 1, 16, 0, window}, DType::bf16);
  agrees({1, 70, 2, 2, 64, 8, 9}, DType::f16);
}

// Rows of the span table may be empty, and documents as long as a sequence.
TEST_F(CudnnAttentionTest, DocumentsMatchReference) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    agrees({1, 33, 4, 2, 16, 0, 0, {20, 1, 12}}, dtype);
    agrees({3, 17, 2, 2, 8, 24, 0, {5, 12, 0, 1, 0, 16, 17, 0}}, dtype);
  }
  agrees({2, 33, 2, 1, 40, 0, 4, {33, 3, 30}}, DType::bf16);  // with a window
  agrees({2, 600, 1, 1, 8, 0, 0, {600, 10, 590, 0}}, DType::bf16);
}

TEST_F(CudnnAttentionTest, ReportsUnsupportedProblems) {
  CudnnAttention attention(library(), nullptr, {.tokens = 16});
  std::string why = "not asked";
  const AttentionFwd good = forward({2, 16, 4, 2, 8}, DType::bf16);
  EXPECT_TRUE(attention.supports(good, &why)) << why;
  EXPECT_EQ(why, "");
  EXPECT_TRUE(attention.supports(backward_of(good), &why)) << why;
  const auto reason = [&](const auto& op) {
    EXPECT_FALSE(attention.supports(op, &why));
    EXPECT_FALSE(attention.supports(op));
    return why;
  };
  EXPECT_THAT(reason(forward({2, 16, 4, 2, 8}, DType::f32)), HasSubstr("q is f32"));
  EXPECT_THAT(reason(forward({2, 16, 4, 2, 12}, DType::bf16)), HasSubstr("head_dim 12 is no multiple of 8"));
  EXPECT_THAT(reason(forward({2, 16, 4, 2, 8, 4}, DType::bf16)), HasSubstr("rows 36 elements apart"));
  EXPECT_THAT(reason(forward({2, 15, 4, 2, 8}, DType::bf16)), HasSubstr("30 queries"));
  AttentionFwd op = good;
  op.spans.shape = {3, kSpanWords};
  EXPECT_THAT(reason(op), HasSubstr("3 spans of 32 queries and 32 keys are not whole sequences of length 16"));
  op = good;
  op.shape.sparse = {8, 2};
  EXPECT_THAT(reason(op), HasSubstr("sparse_attention in groups of 8"));
  op = good;
  op.k.shape = op.v.shape = {64, 16};
  EXPECT_THAT(reason(op), HasSubstr("64 keys"));
  CudnnAttention of_documents(library(), nullptr, {.tokens = 16, .documents = true});
  EXPECT_FALSE(of_documents.supports(op, &why));
  EXPECT_THAT(why, HasSubstr("2 spans of 32 queries and 64 keys are not documents in sequences of length 16"));
  AttentionBwd back = backward_of(good);
  back.dv.row_stride = 17;
  EXPECT_THAT(reason(back), HasSubstr("rows 17 elements apart"));

  back = backward_of(good);  // needs some bytes per score
  const size_t needed = attention.scratch(back);
  CudnnAttention thrifty(library(), nullptr, {.tokens = 16, .most_scratch = needed - 1});
  CudnnAttention roomy(library(), nullptr, {.tokens = 16, .most_scratch = needed});
  EXPECT_TRUE(roomy.supports(back));
  EXPECT_FALSE(thrifty.supports(back, &why));
  EXPECT_THAT(why, HasSubstr(cat(needed, " bytes of scratch memory, more than ", needed - 1)));
}

struct DeviceMemory {
  explicit DeviceMemory(size_t bytes) {
    CUDA_CHECK(cudaMalloc(&data, bytes + 1));
    CUDA_CHECK(cudaMemset(data, 0, bytes + 1));
    CUDA_CHECK(cudaDeviceSynchronize());
  }
  ~DeviceMemory() { (void)cudaFree(data); }
  DeviceMemory(const DeviceMemory&) = delete;
  void* data = nullptr;
};

// Captures one launch as a graph, which the caller destroys.
cudaGraphExec_t captured(CudnnAttention& attention, const AttentionFwd& op, void* scratch, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  attention.run(op, scratch);
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  return exec;
}

// With zero queries every visible key has the same weight: y is the mean of the values so far.
TEST_F(CudnnAttentionTest, CapturedLaunchRunsAtEachReplay) {
  constexpr int64_t kTokens = 16;
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  {
    CudnnAttention attention(library(), stream, {.tokens = kTokens});
    AttentionFwd op = forward({1, kTokens, 1, 1, 8}, DType::bf16);
    const DeviceMemory q(op.q.bytes()), k(op.k.bytes()), v(op.v.bytes()), y(op.y.bytes()), lse(op.lse.bytes());
    op.q.data = q.data;
    op.k.data = k.data;
    op.v.data = v.data;
    op.y.data = y.data;
    op.lse.data = lse.data;
    ASSERT_TRUE(attention.supports(op));
    const DeviceMemory scratch(attention.scratch(op));
    const cudaGraphExec_t exec = captured(attention, op, scratch.data, stream);
    for (int replay = 0; replay < 2; ++replay) {
      std::vector<float> sums(kTokens, -1);
      CUDA_CHECK(cudaMemcpy(lse.data, sums.data(), op.lse.bytes(), cudaMemcpyHostToDevice));
      CUDA_CHECK(cudaDeviceSynchronize());
      CUDA_CHECK(cudaGraphLaunch(exec, stream));
      CUDA_CHECK(cudaStreamSynchronize(stream));
      CUDA_CHECK(cudaMemcpy(sums.data(), lse.data, op.lse.bytes(), cudaMemcpyDeviceToHost));
      for (size_t i = 0; i < sums.size(); ++i) EXPECT_NEAR(sums[i], std::log(double(i + 1)), 1e-5);
    }
    CUDA_CHECK(cudaGraphExecDestroy(exec));
  }
  CUDA_CHECK(cudaStreamDestroy(stream));
}

// The span table is read when the graph runs. A row outside all spans attends only to itself.
TEST_F(CudnnAttentionTest, CapturedLaunchReadsTheCurrentSpanTable) {
  constexpr int64_t kTokens = 16, kRows = 2 * kTokens;
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  {
    CudnnAttention attention(library(), stream, {.tokens = kTokens, .documents = true});
    AttentionFwd op = forward({2, kTokens, 1, 1, 8, 0, 0, {0, 0, 0}}, DType::bf16);
    std::vector<std::unique_ptr<DeviceMemory>> memory;
    for (Tensor* t : {&op.q, &op.k, &op.v, &op.y, &op.lse, &op.spans}) {
      memory.push_back(std::make_unique<DeviceMemory>(t->bytes()));
      t->data = memory.back()->data;
    }
    ASSERT_TRUE(attention.supports(op));
    const DeviceMemory scratch(attention.scratch(op));
    const cudaGraphExec_t exec = captured(attention, op, scratch.data, stream);
    for (const int32_t cut : {1, 7, 15}) {
      const std::vector<Span> spans = {
          {16, 15, 16, 15, 0, 0}, {0, cut, 0, cut, 0, 0}, {cut, 16 - cut, cut, 16 - cut, 0, 0}};
      CUDA_CHECK(cudaMemcpy(op.spans.data, spans.data(), op.spans.bytes(), cudaMemcpyHostToDevice));
      CUDA_CHECK(cudaDeviceSynchronize());
      CUDA_CHECK(cudaGraphLaunch(exec, stream));
      CUDA_CHECK(cudaStreamSynchronize(stream));
      std::vector<float> sums(kRows, -1);
      CUDA_CHECK(cudaMemcpy(sums.data(), op.lse.data, op.lse.bytes(), cudaMemcpyDeviceToHost));
      for (int32_t i = 0; i < kRows; ++i) {
        const int32_t begin = i == 31 ? 31 : i >= 16 ? 16 : i >= cut ? cut : 0;
        EXPECT_NEAR(sums[size_t(i)], std::log(double(i - begin + 1)), 1e-5) << "cut " << cut << ", row " << i;
      }
    }
    CUDA_CHECK(cudaGraphExecDestroy(exec));
  }
  CUDA_CHECK(cudaStreamDestroy(stream));
}

#ifdef ATHANOR_EMULATED_GPU
emu::fakes::FakeCudnn& fake() {
  library();
  return emu::fakes::Installed<emu::fakes::FakeCudnn>::get();
}

TEST_F(CudnnAttentionTest, TriesTheNextEngineIfTheFirstDeclines) {
  fake().decline_engines(1);
  agrees({2, 16, 4, 2, 8}, DType::bf16);
  fake().decline_engines(0);
}

// The library announces more engines than it returns; none is left to build a plan.
TEST_F(CudnnAttentionTest, ReportsThatNoEngineIsLeft) {
  fake().decline_engines(2);
  CudnnAttention attention(library(), nullptr, {.tokens = 16});
  std::string why;
  EXPECT_FALSE(attention.supports(forward({1, 16, 2, 1, 64}, DType::bf16), &why));
  EXPECT_THAT(why, HasSubstr("this engine was told to decline"));
  fake().decline_engines(0);
}

TEST_F(CudnnAttentionTest, WideHeadsSupportBackwardOnHopperOnly) {
  const AttentionFwd op = forward({1, 16, 2, 1, 256}, DType::bf16);
  emu::simulate({emu::gpu_a100()});
  {
    CudnnAttention attention(library(), nullptr, {.tokens = 16});
    std::string why;
    EXPECT_TRUE(attention.supports(op, &why)) << why;
    EXPECT_FALSE(attention.supports(backward_of(op), &why));
    EXPECT_THAT(why,
                HasSubstr("cuDNN has no attention backward of 1 x 16 tokens, 2/1 heads of 256, bf16 for this GPU"));
    EXPECT_THAT(why, HasSubstr("backward of head dimension 256"));
  }
  emu::simulate({emu::gpu_h200()});
  CudnnAttention attention(library(), nullptr, {.tokens = 16});
  EXPECT_TRUE(attention.supports(backward_of(op)));
}

TEST_F(CudnnAttentionTest, DocumentsAndWindowsSupportBackwardOnEveryGpu) {
  AttentionFwd op = forward({1, 16, 2, 1, 64, 0, 5, {7, 9}}, DType::bf16);
  for (const auto& gpu : {emu::gpu_a100(), emu::gpu_b200(), emu::gpu_h200()}) {
    emu::simulate({gpu});
    CudnnAttention attention(library(), nullptr, {.tokens = 16, .documents = true});
    std::string why;
    EXPECT_TRUE(attention.supports(op, &why)) << why;
    EXPECT_TRUE(attention.supports(backward_of(op), &why)) << why;
  }
}

TEST_F(CudnnAttentionTest, LibraryFailuresAreDescribed) {
  emu::fail_next("cudnnCreate", 1, int{CUDNN_STATUS_NOT_INITIALIZED});
  std::string error = error_of([] { CudnnAttention attention(library(), nullptr, {.tokens = 16}); });
  EXPECT_THAT(error, HasSubstr("cuDNN: cannot start"));
  EXPECT_THAT(error, HasSubstr("CUDNN_STATUS_NOT_INITIALIZED"));

  CudnnAttention attention(library(), nullptr, {.tokens = 16});
  AttentionFwd op = forward({1, 16, 2, 1, 8}, DType::f16);
  for (const char* function : {"cudnnBackendCreateDescriptor", "cudnnBackendFinalize"}) {
    emu::fail_next(function, 9, int{CUDNN_STATUS_INTERNAL_ERROR});
    error = error_of([&] { attention.supports(op); });
    EXPECT_THAT(error, HasSubstr("attention forward of 1 x 16 tokens, 2/1 heads of 8, f16: cuDNN: "));
    EXPECT_THAT(error, HasSubstr("CUDNN_STATUS_INTERNAL_ERROR"));
  }
  EXPECT_TRUE(attention.supports(op));
  const DeviceMemory memory(4096);
  for (Tensor* t : {&op.q, &op.k, &op.v, &op.y, &op.lse}) t->data = memory.data;
  emu::fail_next("cudnnBackendExecute", 1, int{CUDNN_STATUS_EXECUTION_FAILED});
  error = error_of([&] { attention.run(op, nullptr); });
  EXPECT_THAT(error, HasSubstr("a launch failed: CUDNN_STATUS_EXECUTION_FAILED"));
  op.q.data = static_cast<char*>(memory.data) + 2;
  EXPECT_THAT(error_of([&] { attention.run(op, nullptr); }), HasSubstr("misaligned"));
}

TEST_F(CudnnAttentionTest, NothingIsLeaked) {
  const size_t before = fake().leaks().size();
  {
    CudnnAttention attention(library(), nullptr, {.tokens = 16});
    EXPECT_TRUE(attention.supports(backward_of(forward({1, 16, 2, 1, 8}, DType::f16))));
    emu::fail_next("cudnnBackendFinalize", 5, int{CUDNN_STATUS_INTERNAL_ERROR});
    EXPECT_THROW(attention.supports(forward({1, 16, 2, 1, 8}, DType::f16)), Error);
    EXPECT_GT(fake().leaks().size(), before);
  }
  EXPECT_EQ(fake().leaks().size(), before);
}
#endif
}  // namespace
}  // namespace athanor
