// Autotuning of attention: the faster implementation is chosen; choices as text and back; refused choices; the default
// without autotuning. On the emulated GPU, where a test sets how long cuDNN takes.
#ifdef ATHANOR_EMULATED_GPU
#include <gmock/gmock.h>

#include "cuda/check.h"
#include "cuda/cuda_ops.h"
#include "cuda/libraries/open.h"
#include "cuda/libraries/specs.h"
#include "emulator/libraries/cudnn/fake_cudnn.h"
#include "emulator/runtime/control.h"
#include "tests/cuda/cuda_backend.h"
#include "tests/cuda/kernel_test.h"
#include "tests/ops/attention_backward.h"

namespace athanor {
namespace {
using cuda::CudaOps;
using ::testing::HasSubstr;

constexpr int64_t kTokens = 16, kHeads = 2, kDim = 8;
constexpr double kFast = 0.1, kSlow = 1e5;  // microseconds of cuDNN's kernels; the program's own take some tens

const CudnnTable& library() {
  static const CudnnTable table = open_cudnn(search_places(library_specs())).call;
  return table;
}

emu::fakes::FakeCudnn& fake() {
  library();
  return emu::fakes::Installed<emu::fakes::FakeCudnn>::get();
}

AttentionFwd forward(int64_t batch, int64_t dim = kDim) {
  const int64_t cols = kHeads * dim;
  const auto part = [&] { return tensor(DType::bf16, {batch * kTokens, cols}, 3 * cols); };
  return {.y = tensor(DType::bf16, {batch * kTokens, cols}),
          .lse = tensor(DType::f32, {batch * kTokens, kHeads}),
          .q = part(),
          .k = part(),
          .v = part(),
          .spans = tensor(DType::i32, {batch, kSpanWords}),
          .shape = {kHeads, kHeads, dim, 0, 0.5F}};
}

class AttentionChoice : public KernelTest {
 protected:
  void TearDown() override {
    fake().set_microseconds(5);
    const emu::Report report = emu::take_report();
    EXPECT_EQ(report.fault, emu::Fault::kNone) << report.text;
  }
  static std::unique_ptr<CudaOps> make(bool autotuned = true, const CudnnTable& cudnn = library()) {
    return std::make_unique<CudaOps>(
        nullptr, make_gemm_runner(),
        cuda::AttentionRunner(std::make_unique<cuda::CudnnAttention>(
                                  cudnn, nullptr, cuda::CudnnAttention::Options{.tokens = kTokens, .documents = true}),
                              autotuned));
  }
  std::string search(CudaOps& ops, double cudnn_microseconds, double seconds = 600) const {
    fake().set_microseconds(cudnn_microseconds);
    return ops.search({.gemms = {}, .forward = forwards, .backward = backwards}, seconds);
  }
  // Whether cuDNN computes the op; `look` gets the op with its results.
  template <class Op>
  static bool by_cudnn(CudaOps& ops, Op op, const std::function<void(const Op&)>& look = {}) {
    size_t bytes = 0;
    for (const Field& field : op.fields()) bytes += field.t->bytes() * 3 + 256;
    void* memory = nullptr;
    CUDA_CHECK(cudaMalloc(&memory, bytes + ops.scratch(op)));
    CUDA_CHECK(cudaMemset(memory, 0x3c, bytes + ops.scratch(op)));  // fills with values of about a hundredth
    CUDA_CHECK(cudaDeviceSynchronize());
    auto* at = static_cast<char*>(memory);
    for (const Field& field : op.fields()) {
      if (!*field.t) continue;
      field.t->data = at;
      at += (field.t->bytes() * 3 + 255) / 256 * 256;
    }
    const int64_t sequences = op.q.rows() / kTokens;
    std::vector<Span> spans = documents_to_measure(sequences, kTokens, op.spans.rows() / sequences);
    spans.resize(size_t(op.spans.rows()));
    CUDA_CHECK(cudaMemcpy(op.spans.data, spans.data(), op.spans.bytes(), cudaMemcpyHostToDevice));
    if constexpr (std::is_same_v<Op, AttentionBwd>)
      if (op.positions) CUDA_CHECK(cudaMemset(op.positions.data, 0, op.positions.bytes()));
    const uint64_t before = fake().executions();
    ops.run(op, at);
    CUDA_CHECK(cudaDeviceSynchronize());
    if (look) look(op);
    CUDA_CHECK(cudaFree(memory));
    return fake().executions() > before;
  }

  std::vector<AttentionFwd> forwards = {forward(1), forward(2), forward(1)};
  std::vector<AttentionBwd> backwards = {backward_of(forward(1))};
};

TEST_F(AttentionChoice, FasterImplementationIsChosen) {
  const auto slow = make(), fast = make();
  EXPECT_THAT(search(*slow, kSlow),
              HasSubstr("attention: 3 problems, 3 tried, 3 of them for the program's own kernels, "
                        "0 for cuDNN's; "));
  EXPECT_THAT(search(*fast, kFast), HasSubstr("3 tried, 0 of them for the program's own kernels, 3 for cuDNN's; "));
  for (const AttentionFwd& op : forwards) {
    EXPECT_FALSE(by_cudnn(*slow, op));
    EXPECT_TRUE(by_cudnn(*fast, op));
  }
  EXPECT_FALSE(by_cudnn(*slow, backwards[0]));
  EXPECT_TRUE(by_cudnn(*fast, backwards[0]));
  EXPECT_TRUE(by_cudnn(*slow, forward(3)));                               // not benchmarked
  EXPECT_EQ(slow->scratch(backwards[0]), make()->scratch(backwards[0]));  // as planned before the search
  EXPECT_THAT(search(*slow, kFast), HasSubstr("3 problems, 0 tried"));    // an earlier choice is kept
  EXPECT_FALSE(by_cudnn(*slow, forwards[0]));
}

// Wrong results disqualify an implementation, however fast it is.
TEST_F(AttentionChoice, ImplementationWithWrongResultsIsRejected) {
  static CudnnTable forgetful = library();
  forgetful.cudnnBackendExecute = [](auto...) { return CUDNN_STATUS_SUCCESS; };  // computes nothing
  const auto ops = make(true, forgetful);
  testing::internal::CaptureStderr();
  EXPECT_THAT(search(*ops, kFast), HasSubstr("3 tried, 3 of them for the program's own kernels, 0 for cuDNN's; "));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("attention: cuDNN's are not used for "));
  EXPECT_THAT(said, HasSubstr("are not those of the program's kernels without wgmma: y has values that "));
  EXPECT_THAT(said, HasSubstr("without wgmma: dq has values that are NaN"));
}

TEST_F(AttentionChoice, MaxLogitsAreComputedByTheBuiltinKernels) {
  const auto fast = make();
  search(*fast, kFast);
  for (AttentionFwd& op : forwards) op.top = tensor(DType::f32, {kHeads});
  EXPECT_FALSE(by_cudnn(*fast, forwards[0]));
  EXPECT_TRUE(by_cudnn(*fast, backwards[0]));
  EXPECT_THAT(search(*fast, kFast), HasSubstr("1 problems, 0 tried"));  // the problem of backward
}

// The amax of the output covers all values; with cuDNN, whose plans do not compute it, too. It does not make a separate
// problem.
TEST_F(AttentionChoice, AmaxIsStoredByEitherImplementation) {
  const auto slow = make(), fast = make();
  search(*slow, kSlow), search(*fast, kFast);
  for (AttentionFwd& op : forwards) op.amax = tensor(DType::f32, {1});
  EXPECT_THAT(search(*fast, kSlow), HasSubstr("3 problems, 0 tried"));
  for (const auto& [ops, cudnn] : {std::pair{&slow, false}, {&fast, true}}) {
    const auto look = [](const AttentionFwd& op) {
      std::vector<bf16> y(size_t(op.y.numel()));
      float amax = 0, most = 0;
      CUDA_CHECK(cudaMemcpy(y.data(), op.y.data, op.y.bytes(), cudaMemcpyDeviceToHost));
      CUDA_CHECK(cudaMemcpy(&amax, op.amax.data, sizeof amax, cudaMemcpyDeviceToHost));
      for (const bf16 x : y) most = std::max(most, std::abs(to_float(x)));
      EXPECT_EQ(amax, most);
      EXPECT_GT(amax, 0);
    };
    EXPECT_EQ(by_cudnn<AttentionFwd>(**ops, forwards[0], look), cudnn);
  }
}

TEST_F(AttentionChoice, UsesCudnnIfNamedOrWithoutAutotuning) {
  const auto untried = make(), by_name = make(false);
  EXPECT_THAT(search(*untried, kSlow, 0), HasSubstr("3 problems, 0 tried"));
  EXPECT_THAT(search(*by_name, kSlow), Not(HasSubstr("attention")));
  const auto own = make();
  search(*own, kSlow);
  EXPECT_EQ(by_name->import_choices(own->export_choices()), "");
  for (const auto* ops : {&untried, &by_name}) {
    EXPECT_TRUE(by_cudnn(**ops, forwards[0]));
    EXPECT_TRUE(by_cudnn(**ops, backwards[0]));
  }
}

TEST_F(AttentionChoice, BenchmarkDocumentsHalveTheRemainingLength) {
  const auto lengths = [](int64_t sequences, int64_t most) {
    std::vector<int> all;
    int end = 0;
    for (const Span& s : documents_to_measure(sequences, 32, most)) {
      EXPECT_TRUE(s.q_begin == end && s.k_begin == end && s.k_len == s.q_len);
      all.push_back(s.q_len);
      end += s.q_len;
    }
    return all;
  };
  EXPECT_EQ(lengths(2, 1), (std::vector{32, 32}));
  EXPECT_EQ(lengths(2, 3), (std::vector{16, 8, 8, 16, 8, 8}));
  EXPECT_EQ(lengths(1, 100), (std::vector{16, 8, 4, 2, 2}));
}

// The program's own kernels skip masked tiles, so they are the default for documents and windows until autotuning says
// otherwise.
TEST_F(AttentionChoice, BuiltinIsTheDefaultForDocumentsAndWindows) {
  AttentionFwd window = forward(1), documents = forward(2), wide = forward(1);
  window.shape.window = 3;
  documents.spans = tensor(DType::i32, {7, kSpanWords});
  wide.shape.window = kTokens;  // masks nothing
  forwards = {window, documents};
  backwards = {backward_of(documents)};
  const auto untried = make(), by_name = make(false), fast = make();
  EXPECT_THAT(search(*fast, kFast), HasSubstr("3 problems, 3 tried, 0 of them for the program's own kernels"));
  for (const auto& [ops, cudnn] : {std::pair{&untried, false}, {&by_name, true}, {&fast, true}}) {
    for (const AttentionFwd& op : forwards) EXPECT_EQ(by_cudnn(**ops, op), cudnn);
    EXPECT_EQ(by_cudnn(**ops, backwards[0]), cudnn);
  }
  EXPECT_TRUE(by_cudnn(*untried, wide));
  const Tunable all{.gemms = {}, .forward = forwards, .backward = backwards};
  EXPECT_EQ(untried->describe_attention(all),
            "forward by the program's own kernels, without autotuning; "
            "backward by the program's own kernels, without autotuning");
  EXPECT_EQ(fast->describe_attention(all), "forward by cuDNN's, by autotuning; backward by cuDNN's, by autotuning");
}

TEST_F(AttentionChoice, ReportsTheImplementationAndTheReason) {
  const auto ops = make();
  const auto words = [&](CudaOps& of) {
    return of.describe_attention({.gemms = {}, .forward = forwards, .backward = backwards});
  };
  EXPECT_EQ(words(*ops), "forward by cuDNN's, without autotuning; backward by cuDNN's, without autotuning");
  search(*ops, kSlow);
  EXPECT_EQ(words(*ops),
            "forward by the program's own kernels, faster when autotuned; "
            "backward by the program's own kernels, faster when autotuned");
  EXPECT_EQ(words(*make(false)), "forward by cuDNN's, as configured; backward by cuDNN's, as configured");
  CudaOps without(nullptr, make_gemm_runner(), cuda::AttentionRunner({.why = "it is not there"}));
  EXPECT_EQ(words(without),
            "forward by the program's own kernels: it is not there; "
            "backward by the program's own kernels: it is not there");
  forwards.back().shape.window = 3;
  EXPECT_THAT(words(*make()),
              HasSubstr("forward by cuDNN's, without autotuning and the program's own kernels, without autotuning"));
  backwards = {};
  EXPECT_THAT(words(*make()), Not(HasSubstr("backward")));
}

// After cuDNN's kernels a separate launch rotates gradients back. It is timed with them, as a separate problem.
TEST_F(AttentionChoice, GradientRotationIsTimedWithItsExtraLaunch) {
  const auto rotated = [](int64_t dim) {
    AttentionBwd op = backward_of(forward(1, dim));
    op.cos_sin = tensor(DType::f32, {5, dim});
    op.positions = tensor(DType::i32, {kTokens});
    return op;
  };
  forwards = {};
  backwards = {backward_of(forward(1, 64)), rotated(64)};
  const auto slow = make(), fast = make(), by_name = make(false);
  search(*slow, kSlow);
  emu::reset_kernel_counters();
  emu::count_accesses(true);
  EXPECT_THAT(search(*fast, kFast), HasSubstr("2 problems, 2 tried, 0 of them for the program's own kernels"));
  emu::count_accesses(false);
  std::string kernels;
  for (const auto& [kernel, counters] : emu::kernel_counters()) kernels += kernel + "; ";
  EXPECT_THAT(kernels, HasSubstr("rope<"));
  for (const auto& [ops, cudnn] : {std::pair{&slow, false}, {&fast, true}, {&by_name, true}}) {
    EXPECT_EQ(by_cudnn(**ops, rotated(64)), cudnn);
    EXPECT_EQ((*ops)->fuses(rotated(64)), ops != &by_name) << "as before a search";
    EXPECT_FALSE((*ops)->fuses(rotated(kDim)));
  }
}

// Backward needs two bytes of scratch memory per score.
TEST_F(AttentionChoice, RequestsScratchMemoryAndObeysItsLimit) {
  const auto ops = make();
  const Tunable all{.gemms = {}, .forward = forwards, .backward = backwards};
  EXPECT_EQ(ops->wanted_scratch(all), 0u);
  EXPECT_EQ(ops->allow_scratch(0), SIZE_MAX);
  const size_t wanted = ops->wanted_scratch(all);
  EXPECT_GT(wanted, 0u);
  EXPECT_THAT(ops->describe_attention(all),
              HasSubstr(cat("cuDNN needs ", wanted, " bytes of scratch memory, more than 0")));
  EXPECT_EQ(ops->allow_scratch(wanted), 0u);
  EXPECT_EQ(ops->wanted_scratch(all), 0u);
  EXPECT_THAT(ops->describe_attention(all), Not(HasSubstr("own kernels")));
}

TEST_F(AttentionChoice, RoundTripsThroughText) {
  const auto first = make(), second = make();
  search(*first, kSlow);
  EXPECT_EQ(second->import_choices(first->export_choices()), "");
  EXPECT_FALSE(by_cudnn(*second, forwards[0]));
  EXPECT_FALSE(by_cudnn(*second, backwards[0]));
  EXPECT_EQ(second->export_choices(), first->export_choices());
  EXPECT_THAT(search(*second, kFast), HasSubstr("0 tried"));
}

TEST_F(AttentionChoice, RejectsTextOfAnotherCudnnOrDamagedText) {
  const auto first = make();
  search(*first, kSlow);
  const std::string text = first->export_choices();
  const auto replace = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    return other.replace(other.find(from), from.size(), to);
  };
  const auto taken = [&](const std::string& other) {
    const auto ops = make();
    try {
      const std::string why = ops->import_choices(other);
      EXPECT_EQ(why.empty(), !by_cudnn(*ops, forwards[0])) << why;
      return why;
    } catch (const Error& error) {
      EXPECT_TRUE(by_cudnn(*ops, forwards[0]));
      return std::string(error.what());
    }
  };
  EXPECT_EQ(taken(text), "");
  const std::string version = cat(library().cudnnGetVersion());
  EXPECT_EQ(taken(replace("\"cudnn\": " + version, "\"cudnn\": 91200")), "cuDNN was 91200 and is " + version);
  EXPECT_EQ(taken(replace("\"cudnn\": " + version, "\"cudnn\": 0")), "cuDNN was not used and is " + version);
  EXPECT_THAT(taken(replace("\"by\": \"builtin\"", "\"by\": \"magic\"")),
              HasSubstr("are 'magic', expected builtin or cudnn"));
  EXPECT_THAT(taken(replace("\"by\": \"builtin\"", "\"by\": \"ordered\"")),
              HasSubstr("are 'ordered', expected builtin or cudnn; delete the file to autotune the algorithms again"));
  EXPECT_THAT(taken(replace("\"by\": \"builtin\"", "\"by\": 3")), HasSubstr("not readable"));
  EXPECT_THAT(taken(replace("\"attention\": {", "\"attention\": 3, \"was\": {")), HasSubstr("delete the file"));
  EXPECT_THAT(taken(replace("\"cudnn\": ", "\"cudnn\": -")), HasSubstr("expected a whole number"));
  CudaOps without(nullptr, make_gemm_runner());
  EXPECT_EQ(without.import_choices(text), "cuDNN was " + version + " and is not used");
}

TEST_F(AttentionChoice, FailuresAreDescribedAndLeakNothing) {
  const size_t before = emu::leaks().size();
  const auto ops = make();
  emu::fail_next("cudaMalloc", 1, cudaErrorMemoryAllocation);
  try {
    search(*ops, kFast);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("choosing the kernels of attention forward of 1 x 16 tokens"));
    EXPECT_THAT(error.what(), HasSubstr("cudaMalloc"));
  }
  EXPECT_THAT(search(*ops, kFast), HasSubstr("3 tried"));
  EXPECT_EQ(emu::leaks().size(), before);
}

}  // namespace
}  // namespace athanor
#endif
