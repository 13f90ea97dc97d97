// GemmRunner: all op cases of GEMMs compared with the reference in double; refused problems and messages; choices of
// algorithms: autotuning, files, damaged files; launches in a captured graph; failures of the library.
#include "cuda/gemm/gemm.h"

#include <gmock/gmock.h>

#include "base/rng.h"
#include "cuda/check.h"
#include "cuda/libraries/open.h"
#include "cuda/libraries/specs.h"
#include "tests/cuda/kernel_test.h"
#include "tests/expect_error.h"
#ifdef ATHANOR_EMULATED_GPU
#include "emulator/libraries/cublaslt/fake_cublaslt.h"
#include "emulator/libraries/cublaslt/functions.h"
#include "emulator/runtime/control.h"
#endif

namespace athanor {
namespace {
using cuda::GemmRunner;
using testing::HasSubstr;
using testing::Not;

constexpr size_t kWorkspace = 256 << 10;

const CublasLtTable& library() {
  static const CublasLtTable table = open_cublaslt(search_places(library_specs())).call;
  return table;
}

class GemmTest : public KernelTest {
 protected:
  void SetUp() override {
    KernelTest::SetUp();
    if (IsSkipped()) return;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    scratch_ = allocate(kWorkspace);
  }
  void TearDown() override {
    for (void* memory : memory_) (void)cudaFree(memory);
    if (stream_) (void)cudaStreamDestroy(stream_);
#ifdef ATHANOR_EMULATED_GPU
    fake().set_time(nullptr);
    const emu::Report report = emu::take_report();
    EXPECT_EQ(report.fault, emu::Fault::kNone) << report.text;
#endif
  }
  GemmRunner make(const CublasLtTable& table = library()) const {
    return GemmRunner(table, {.workspace_bytes = kWorkspace});
  }
  void* allocate(size_t bytes) {
    void* memory = nullptr;
    CUDA_CHECK(cudaMalloc(&memory, bytes));
    CUDA_CHECK(cudaMemset(memory, 0, bytes));
    memory_.push_back(memory);
    CUDA_CHECK(cudaDeviceSynchronize());
    return memory;
  }
  Tensor matrix(int64_t rows, int64_t cols, float value) {
    std::vector<float> host(static_cast<size_t>(rows * cols), value);
    void* memory = allocate(host.size() * sizeof(float));
    CUDA_CHECK(cudaMemcpy(memory, host.data(), host.size() * sizeof(float), cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaDeviceSynchronize());
    return {memory, DType::f32, {rows, cols}};
  }
  Gemm product(int64_t m, int64_t n, int64_t k) {
    return {.d = matrix(m, n, -1), .a = matrix(m, k, 2), .b = matrix(k, n, 3)};
  }
  Tensor matrix16(int64_t rows, int64_t cols, uint64_t seed) {  // random values in bf16
    std::vector<bf16> host(static_cast<size_t>(rows * cols));
    for (size_t i = 0; i < host.size(); ++i) host[i] = from_float<bf16>(2 * random_uniform(seed, 0, i) - 1);
    void* memory = allocate(host.size() * sizeof(bf16));
    CUDA_CHECK(cudaMemcpy(memory, host.data(), host.size() * sizeof(bf16), cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaDeviceSynchronize());
    return {memory, DType::bf16, {rows, cols}};
  }
  // y = gelu(x w + b) in bf16, which also stores the input of GELU.
  Gemm gelu_product(int64_t m, int64_t n, int64_t k) {
    Gemm op{.d = matrix16(m, n, 1), .a = matrix16(m, k, 2), .b = matrix16(k, n, 3), .aux = matrix16(m, n, 4)};
    op.bias = {matrix16(1, n, 5).data, DType::bf16, {n}};
    op.epilogue = Epilogue::gelu;
    return op;
  }
  std::vector<std::byte> bytes_of(const Tensor& t) const {
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    std::vector<std::byte> bytes(t.bytes());
    CUDA_CHECK(cudaMemcpy(bytes.data(), t.data, bytes.size(), cudaMemcpyDeviceToHost));
    return bytes;
  }
  float first(const Tensor& t) const {
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    float value = 0;
    CUDA_CHECK(cudaMemcpy(&value, t.data, sizeof value, cudaMemcpyDeviceToHost));
    return value;
  }
  void run(GemmRunner& runner, const Gemm& op) const { runner.run(op, scratch_, stream_); }

#ifdef ATHANOR_EMULATED_GPU
  static emu::fakes::FakeCublasLt& fake() {
    library();
    return emu::fakes::Installed<emu::fakes::FakeCublasLt>::get();
  }
  // Sets times so that fused epilogues are faster than separate ops, except those of `slow` epilogues.
  static void fusing_pays(uint32_t slow = 0) {
    fake().set_time([slow](const cublasLtMatmulAlgo_t&, uint32_t epilogue) {
      if (epilogue == slow) return 1000.0;
      return epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS ? 150.0 : 50.0;
    });
  }
  static int split_k(const cublasLtMatmulAlgo_t& algorithm) {
    int32_t split = 0;
    library().cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split,
                                                   nullptr);
    return split;
  }
#endif

  cudaStream_t stream_ = nullptr;
  void* scratch_ = nullptr;
  std::vector<void*> memory_;
};

// The 17 cases that mix dtypes as no model does are refused; all others agree with the reference.
TEST_F(GemmTest, AllCasesMatchReferenceOrAreRefusedByName) {
  Examiner examine([](int threads) { return make_cuda_backend(threads); }, {.threads = {1, 2}, .only = Gemm::kName});
  gemm_cases(examine);
  int refused = 0;
  for (const Finding& finding : examine.findings()) {
    const bool known = finding.fault == Fault::threw && finding.detail.find("on a GPU they need one type") < 1000;
    refused += known;
    EXPECT_TRUE(known) << finding.detail;
  }
  EXPECT_EQ(refused, 17);
  EXPECT_GT(examine.seen().at(Gemm::kName), 300);
}

TEST_F(GemmTest, NamesUnsupportedDtypes) {
  GemmRunner runner = make();
  Gemm op = product(16, 16, 16);
  op.a.dtype = DType::bf16;
  EXPECT_THAT(error_of([&] { run(runner, op); }), HasSubstr("gemm: a is bf16 and b is f32"));
  op.b.dtype = DType::bf16;
  op.d.dtype = DType::f16;
  EXPECT_THAT(error_of([&] { run(runner, op); }), HasSubstr("GEMMs of bf16 give bf16 or f32 on a GPU, not f16"));
}

TEST_F(GemmTest, EmptySumsGiveZero) {
  GemmRunner runner = make();
  Gemm op = product(3, 5, 1);
  op.a.shape = {3, 0};
  op.b.shape = {0, 5};
  run(runner, op);
  EXPECT_EQ(first(op.d), 0);
  op.d.shape = {0, 5};
  op.a.shape = {0, 0};
  run(runner, op);
}

TEST_F(GemmTest, CapturedLaunchesRunAtEachReplay) {
  GemmRunner runner = make();
  Gemm first_op = product(32, 16, 8), second = product(32, 16, 8);
  second.a = first_op.d;
  second.b = matrix(16, 16, 1);
  second.bias = {matrix(1, 16, 7).data, DType::f32, {16}};
  run(runner, first_op);  // one problem is planned before the capture, the other within it
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  run(runner, first_op);
  run(runner, second);
  CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
  EXPECT_EQ(first(second.d), -1);
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int replay = 0; replay < 2; ++replay) {
    CUDA_CHECK(cudaMemset(second.d.data, 0, second.d.bytes()));
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaGraphLaunch(exec, stream_));
    EXPECT_EQ(first(second.d), 2 * 3 * 8 * 16 + 7);
  }
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  CUDA_CHECK(cudaGraphDestroy(graph));
}

TEST_F(GemmTest, ProblemDescriptionHasAllKeys) {
  Gemm op = product(64, 48, 32);
  EXPECT_EQ(cat(problem_of(op)), "f32[64, 48] = f32[64, 32] f32[32, 48], rows 48 32 48, aligned 16 16 16");
  op.b = {op.b.data, DType::f32, {48, 32}, 40};
  op.tb = op.tf32 = true;
  op.bias = {op.b.at(1), DType::f32, {48}};
  EXPECT_EQ(cat(problem_of(op)),
            "f32[64, 48] = f32[64, 32] f32[48, 32]^T + bias in tf32, rows 48 32 40, aligned 4 16 16");
  op.bias = {};
  op.accumulate = true;
  op.a.dtype = op.b.dtype = DType::bf16;
  EXPECT_THAT(cat(problem_of(op)), HasSubstr("f32[64, 48] += bf16[64, 32] bf16[48, 32]^T, rows"));
  const Gemm gelu = gelu_product(64, 48, 32);
  EXPECT_EQ(cat(problem_of(gelu)),
            "bf16[64, 48] = bf16[64, 32] bf16[32, 48] + bias, gelu, rows 48 32 48, aligned 16 16 16");
}

// The library's documented constraints on the auxiliary matrix, and epilogues where it would be less exact than
// separate ops.
TEST_F(GemmTest, UnsupportedEpiloguesAreNotRequestedFromTheLibrary) {
  Gemm op = gelu_product(64, 48, 32);
  EXPECT_TRUE(cuda::can_fuse(problem_of(op)));
  op.aux.data = op.aux.at(1);
  EXPECT_FALSE(cuda::can_fuse(problem_of(op)));
  EXPECT_FALSE(cuda::can_fuse(problem_of(gelu_product(64, 44, 32))));
  Gemm single = product(64, 48, 32);
  single.epilogue = Epilogue::gelu_gradient;
  single.aux = single.d;
  EXPECT_FALSE(cuda::can_fuse(problem_of(single)));
  single.epilogue = Epilogue::sum_b;
  EXPECT_TRUE(cuda::can_fuse(problem_of(single)));
  single.tf32 = true;
  EXPECT_FALSE(cuda::can_fuse(problem_of(single)));
}

TEST_F(GemmTest, ChoicesRoundTripThroughText) {
  GemmRunner one = make(), two = make();
  EXPECT_THAT(one.export_choices(), HasSubstr("\"choices\": {}"));
  for (const Gemm& op : {product(64, 64, 64), product(8, 24, 16)}) run(one, op);
  const std::string text = one.export_choices();
  EXPECT_THAT(text, HasSubstr("f32[64, 64] = f32[64, 64] f32[64, 64], rows 64 64 64"));
  EXPECT_EQ(two.import_choices(text), "");
  EXPECT_EQ(two.export_choices(), text);
  const Gemm op = product(8, 24, 16);
  run(two, op);
  EXPECT_EQ(first(op.d), 2 * 3 * 16);
  EXPECT_EQ(two.export_choices(), text);
}

TEST_F(GemmTest, ChoicesOfAnotherMachineAreIgnored) {
  GemmRunner one = make();
  run(one, product(64, 64, 64));
  const std::string text = one.export_choices();
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    const size_t at = other.find(from);
    EXPECT_NE(at, std::string::npos) << from << " in " << text;
    return other.replace(at, from.size(), to);
  };
  GemmRunner two = make();
  EXPECT_THAT(two.import_choices(changed("\"gpu\": \"", "\"gpu\": \"Other ")), HasSubstr("GPU was Other "));
  EXPECT_THAT(two.import_choices(changed("\"driver\": ", "\"driver\": 1")), HasSubstr("driver was 1"));
  EXPECT_THAT(two.import_choices(changed("\"cublaslt\": ", "\"cublaslt\": 1")), HasSubstr("cuBLASLt was 1"));
  EXPECT_THAT(two.import_choices(changed(cat("bytes\": ", kWorkspace), "bytes\": 7")), HasSubstr("workspace was 7"));
  EXPECT_THAT(two.export_choices(), HasSubstr("\"choices\": {}"));
}

TEST_F(GemmTest, DamagedChoicesAreErrorsWithARemedy) {
  GemmRunner one = make();
  const Gemm op = product(64, 64, 64);
  run(one, op);
  const std::string text = one.export_choices();
  const auto refuse = [&](const std::string& damaged, const std::string& why) {
    GemmRunner two = make();
    const std::string error = error_of([&] { two.import_choices(damaged); });
    EXPECT_THAT(error, HasSubstr("choices of GEMMs: "));
    EXPECT_THAT(error, HasSubstr(why));
    EXPECT_THAT(error, HasSubstr("delete the file"));
    EXPECT_THAT(two.export_choices(), HasSubstr("\"choices\": {}"));
  };
  for (size_t size = 0; size < text.size() - 2; size += 7) refuse(text.substr(0, size), "not readable");
  const auto replace = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    return other.replace(other.find(from), from.size(), to);
  };
  refuse(replace("version 3", "version 4"), "its format is 'athanor gemm choices, version 4'");
  refuse(replace("\"driver\": ", "\"driver\": 99999999999"), "driver is 99999999999");
  refuse(replace("\"driver\": ", "\"driver\": -"), "driver is -");
  refuse(replace("\"algorithm\": \"", "\"algorithm\": \"0"), "hexadecimal digits");
  refuse(replace("\"algorithm\": \"", "\"algorithm\": 3, \"was\": \""), "type must be string");
  refuse(replace("\"microseconds\": 0", "\"microseconds\": -1"), "the time of 'f32[64, 64]");
  refuse(replace("\"choices\": {", "\"choices\": 3, \"were\": {"), "");
  refuse("[]", "not readable");

  // Invalid choices: in_parts for a GEMM without epilogue, and an algorithm for a problem that the library must not
  // fuse.
  const size_t entry = text.find("\"algorithm\": ");
  GemmRunner parts = make();
  EXPECT_EQ(parts.import_choices(cat(text.substr(0, entry), "\"in_parts\": true, ", text.substr(entry))), "");
  EXPECT_THAT(error_of([&] { run(parts, op); }), HasSubstr("the algorithm stored for f32[64, 64]"));
  GemmRunner fused = make();
  Gemm gelu = op;
  gelu.epilogue = Epilogue::gelu;
  gelu.aux = matrix(64, 64, 0);
  EXPECT_EQ(fused.import_choices(replace("f32[64, 64], rows", "f32[64, 64], gelu, rows")), "");
  EXPECT_THAT(error_of([&] { run(fused, gelu); }), HasSubstr("the algorithm stored for f32[64, 64]"));

  // Digits that are no algorithm of the library are detected when the GEMM is needed.
  const size_t at = text.find("\"algorithm\": \"") + 14;
  GemmRunner two = make();
  EXPECT_EQ(two.import_choices(text.substr(0, at) + std::string(128, '0') + text.substr(at + 128)), "");
  const std::string error = error_of([&] { run(two, op); });
  EXPECT_THAT(error, HasSubstr("the algorithm stored for f32[64, 64]"));
  EXPECT_THAT(error, HasSubstr("delete the file"));
}

TEST_F(GemmTest, ChoicesOfOlderVersionsAreAccepted) {
  GemmRunner one = make(), two = make();
  const Gemm op = product(64, 64, 64);
  run(one, op);
  for (const char* version : {"version 1", "version 2"}) {  // older than epilogues and attention
    std::string text = one.export_choices();
    EXPECT_EQ(two.import_choices(text.replace(text.find("version 3"), 9, version)), "");
    EXPECT_EQ(two.export_choices(), one.export_choices());
  }
}

// Without autotuning: the GEMM, then a separate kernel that reads the rounded values.
TEST_F(GemmTest, EpiloguesAreUnfusedBeforeAutotuning) {
  GemmRunner runner = make();
  const Gemm op = gelu_product(32, 64, 16);
  run(runner, op);
  const auto in_one = bytes_of(op.d), z = bytes_of(op.aux);
  EXPECT_THAT(runner.export_choices(), HasSubstr("\"in_parts\": true"));
  Gemm alone = op;
  alone.epilogue = Epilogue::none;
  alone.aux = {};
  run(runner, alone);
  EXPECT_EQ(bytes_of(op.d), z);
  Gemm again = op;
  again.recompute = true;
  run(runner, again);
  EXPECT_EQ(bytes_of(op.d), in_one);
  GemmRunner other = make();
  EXPECT_EQ(other.import_choices(runner.export_choices()), "");
  EXPECT_EQ(other.export_choices(), runner.export_choices());
}

TEST_F(GemmTest, ReportsThatNoAlgorithmIsAvailable) {
  CublasLtTable table = library();
  table.cublasLtMatmulAlgoGetHeuristic = [](auto, auto, auto, auto, auto, auto, auto, int, auto, int* count) {
    *count = 0;
    return CUBLAS_STATUS_SUCCESS;
  };
  GemmRunner runner = make(table);
  const std::string error = error_of([&] { run(runner, product(16, 24, 8)); });
  EXPECT_THAT(error, HasSubstr("no deterministic algorithm is offered: CUBLAS_STATUS_NOT_SUPPORTED"));
  EXPECT_THAT(error, HasSubstr("f32[16, 24] = f32[16, 8] f32[8, 24]"));
  EXPECT_THAT(error, HasSubstr("install a newer cuBLAS"));
}

#ifdef ATHANOR_EMULATED_GPU
// Rejects algorithms that accumulate in d, in order of arrival, or in 16 bits.
TEST_F(GemmTest, NondeterministicAlgorithmsAreRejected) {
  for (const uint32_t scheme : {CUBLASLT_REDUCTION_SCHEME_INPLACE, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE}) {
    static uint32_t forced;
    forced = scheme;
    CublasLtTable table = library();
    table.cublasLtMatmulAlgoGetHeuristic = [](auto handle, auto desc, auto a, auto b, auto c, auto d, auto preference,
                                              int most, cublasLtMatmulHeuristicResult_t* answers, int* count) {
      const auto status =
          library().cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, c, d, preference, most, answers, count);
      for (int i = 0; i < *count; ++i)
        emu::fakes::lt::set_config(&answers[i].algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &forced, sizeof forced);
      return status;
    };
    GemmRunner runner = make(table);
    EXPECT_THAT(error_of([&] { run(runner, product(16, 16, 64)); }), HasSubstr("no deterministic algorithm"));
  }
}
#endif

TEST_F(GemmTest, SearchTimesEachProblemOnceAndObeysItsLimit) {
  const std::vector<Gemm> ops = {product(32, 32, 128), product(32, 48, 16), product(32, 32, 128)};
  GemmRunner runner = make();
  GemmRunner::SearchReport report = runner.search(ops, 0, stream_);
  EXPECT_EQ(report.problems, 2);
  EXPECT_EQ(report.timed, 0);
  EXPECT_THAT(runner.export_choices(), HasSubstr("\"choices\": {}"));
  report = runner.search(ops, 600, stream_);
  EXPECT_EQ(report.timed, 2);
  EXPECT_GT(report.best_microseconds, 0);
  EXPECT_LE(report.best_microseconds, report.first_microseconds);
  EXPECT_EQ(runner.search(ops, 600, stream_).timed, 0);  // all are already measured
  for (const Gemm& op : ops) {
    run(runner, op);
    EXPECT_EQ(first(op.d), 6 * float(op.k()));
  }
  GemmRunner other = make();
  EXPECT_EQ(other.import_choices(runner.export_choices()), "");
}

#ifdef ATHANOR_EMULATED_GPU
TEST_F(GemmTest, SearchKeepsTheFastestAndAFileRestoresIt) {
  const Gemm op = product(32, 32, 512);
  std::vector<int> used;
  const auto three_parts_are_best = [&](const cublasLtMatmulAlgo_t& algorithm, uint32_t) {
    used.push_back(split_k(algorithm));
    return used.back() == 3 ? 5.0 : 50.0;
  };
  fake().set_time(three_parts_are_best);
  GemmRunner one = make();
  const auto report = one.search({&op, 1}, 600, stream_);
  EXPECT_NEAR(report.first_microseconds, 50, 5);
  EXPECT_NEAR(report.best_microseconds, 5, 3);
  EXPECT_GT(std::set<int>(used.begin(), used.end()).size(), 2U);

  used.clear();
  run(one, op);
  GemmRunner two = make();
  run(two, op);  // the library's first heuristic result
  EXPECT_EQ(two.import_choices(one.export_choices()), "");
  run(two, op);
  EXPECT_EQ(first(op.d), 6 * 512);
  ASSERT_EQ(used.size(), 3U);
  EXPECT_EQ(used[0], 3);
  EXPECT_NE(used[1], 3);
  EXPECT_EQ(used[2], 3);
}

// With all epilogues fused, the cases agree with the reference.
TEST_F(GemmTest, FusedEpiloguesMatchReference) {
  fusing_pays();
  Examiner examine(make_searching_backend, {.threads = {1}, .only = Gemm::kName, .every = 3});
  gemm_cases(examine);
  for (const Finding& finding : examine.findings())
    EXPECT_THAT(finding.detail, HasSubstr("on a GPU they need one type"));
}

TEST_F(GemmTest, SearchFusesWhereThatIsFaster) {
  Gemm gelu = gelu_product(32, 64, 16), gradient = gelu, residual = gelu, sums = product(32, 64, 16);
  gradient.epilogue = Epilogue::gelu_gradient;
  gradient.bias = {};
  residual.epilogue = Epilogue::add;
  sums.a = matrix(16, 32, 2);
  sums.ta = sums.accumulate = true;
  sums.epilogue = Epilogue::sum_b;
  sums.aux = {matrix(1, 64, 1).data, DType::f32, {64}};
  const std::vector<Gemm> ops = {gelu, gradient, residual, sums};
  fusing_pays();
  GemmRunner fusing = make();
  GemmRunner::SearchReport report = fusing.search(ops, 600, stream_);
  EXPECT_EQ(report.timed, 7);  // with and without bias, and the GEMM with sums
  EXPECT_EQ(report.epilogues, 4);
  EXPECT_EQ(report.fused, 4);
  EXPECT_NEAR(report.first_microseconds - report.best_microseconds, 102 + 102 + 2 + 102, 20);
  EXPECT_THAT(fusing.export_choices(), Not(HasSubstr("in_parts")));
  void* scratch = allocate(fusing.scratch(sums));
  for (int launch = 1; launch <= 2; ++launch) {
    fusing.run(sums, scratch, stream_);
    EXPECT_EQ(first(sums.aux), 1 + 16 * 3 * launch);
    EXPECT_EQ(first(sums.d), -1 + 16 * 2 * 3 * launch);
  }
  fusing_pays(CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
  GemmRunner partly = make();
  report = partly.search(ops, 600, stream_);
  EXPECT_EQ(report.fused, 3);
  EXPECT_THAT(partly.export_choices(), HasSubstr("in_parts"));
}

// The library writes bias gradients in d's dtype, which must match ours.
TEST_F(GemmTest, BiasGradientsOf16BitGemmsAreUnfused) {
  Gemm op{.d = matrix16(32, 64, 1), .a = matrix16(16, 32, 2), .b = matrix16(16, 64, 3)};
  op.ta = true;
  op.epilogue = Epilogue::sum_b;
  op.aux = {matrix(1, 64, 1).data, DType::f32, {64}};
  fusing_pays();
  GemmRunner runner = make();
  EXPECT_EQ(runner.search({&op, 1}, 600, stream_).fused, 0);
  runner.run(op, allocate(runner.scratch(op)), stream_);
  float want = 1;
  for (int64_t k = 0; k < 16; ++k) {
    bf16 b;
    CUDA_CHECK(cudaMemcpy(&b, op.b.at(k * 64), sizeof b, cudaMemcpyDeviceToHost));
    want += to_float(b);
  }
  EXPECT_NEAR(first(op.aux), want, 1e-4);
}

// The library's fused GELU sees sums that are not rounded yet. So recomputation must use the same kernel; and if that
// is needed in every step, autotuning finds separate ops faster.
TEST_F(GemmTest, FusedGeluIsRecomputedBitExactly) {
  const Gemm op = gelu_product(32, 64, 16);
  Gemm again = op;
  again.recompute = true;
  GemmRunner fused = make(), parts = make();
  fused.search({&op, 1}, 600, stream_);
  run(fused, op);
  const auto y = bytes_of(op.d), z = bytes_of(op.aux);
  CUDA_CHECK(cudaMemset(op.d.data, 0, op.d.bytes()));
  CUDA_CHECK(cudaDeviceSynchronize());
  run(fused, again);
  EXPECT_EQ(bytes_of(op.d), y);
  EXPECT_EQ(bytes_of(op.aux), z);
  run(parts, op);
  EXPECT_NE(bytes_of(op.d), y);
  EXPECT_EQ(bytes_of(op.aux), z);
  GemmRunner selective = make();
  EXPECT_EQ(selective.search(std::vector<Gemm>{op, again}, 600, stream_).fused, 0);
}

TEST_F(GemmTest, EpilogueRefusedByTheLibraryStaysUnfused) {
  CublasLtTable table = library();
  table.cublasLtMatmulAlgoGetHeuristic = [](auto handle, auto desc, auto a, auto b, auto c, auto d, auto preference,
                                            int most, cublasLtMatmulHeuristicResult_t* answers, int* count) {
    uint32_t epilogue = 0;
    library().cublasLtMatmulDescGetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue, nullptr);
    if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) return CUBLAS_STATUS_NOT_SUPPORTED;
    return library().cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, c, d, preference, most, answers, count);
  };
  GemmRunner runner = make(table);
  const Gemm op = gelu_product(32, 64, 16);
  const GemmRunner::SearchReport report = runner.search({&op, 1}, 600, stream_);
  EXPECT_EQ(report.timed, 2);
  EXPECT_EQ(report.fused, 0);
  // An algorithm that fails when benchmarked does not end autotuning either.
  table = library();
  table.cublasLtMatmul = [](auto handle, auto desc, auto... rest) {
    uint32_t epilogue = 0;
    library().cublasLtMatmulDescGetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue, nullptr);
    if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) return CUBLAS_STATUS_NOT_SUPPORTED;
    return library().cublasLtMatmul(handle, desc, rest...);
  };
  GemmRunner failing = make(table);
  EXPECT_EQ(failing.search({&op, 1}, 600, stream_).fused, 0);
  run(failing, op);
}

// Gains within clock noise do not replace the library's first heuristic result.
TEST_F(GemmTest, SearchIgnoresSmallGains) {
  const Gemm op = product(32, 32, 512);
  int chosen = 0;
  fake().set_time([&](const cublasLtMatmulAlgo_t& algorithm, uint32_t) {
    chosen = split_k(algorithm);
    return 2000 + (chosen == 3 ? -10.0 : 0.0);
  });
  GemmRunner first_answer = make(), searched = make();
  run(first_answer, op);
  const int expected = chosen;
  EXPECT_NE(expected, 3);
  searched.search({&op, 1}, 600, stream_);
  run(searched, op);
  EXPECT_EQ(chosen, expected);
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}

TEST_F(GemmTest, LibraryFailuresNameStatusGemmAndRemedy) {
  emu::fail_next("cublasLtCreate", 1, int{CUBLAS_STATUS_NOT_INITIALIZED});
  std::string error = error_of([&] { make(); });
  EXPECT_THAT(error, HasSubstr("cuBLASLt: cannot start: CUBLAS_STATUS_NOT_INITIALIZED"));
  EXPECT_THAT(error, HasSubstr("driver 580"));

  GemmRunner runner = make();
  const Gemm op = product(16, 24, 8);
  emu::fail_next("cublasLtMatmulAlgoGetHeuristic", 1, int{CUBLAS_STATUS_INTERNAL_ERROR});
  error = error_of([&] { run(runner, op); });
  EXPECT_THAT(error, HasSubstr("no algorithm can be chosen: CUBLAS_STATUS_INTERNAL_ERROR for the GEMM f32[16, 24]"));
  emu::fail_next("cublasLtMatmul", 1, int{CUBLAS_STATUS_EXECUTION_FAILED});
  error = error_of([&] { run(runner, op); });
  EXPECT_THAT(error, HasSubstr("a launch failed: CUBLAS_STATUS_EXECUTION_FAILED for the GEMM f32[16, 24]"));
  EXPECT_THAT(error, HasSubstr("CUDA_LAUNCH_BLOCKING"));
  emu::fail_next("cublasLtMatmul", 1, int{CUBLAS_STATUS_ALLOC_FAILED});
  EXPECT_THAT(error_of([&] { run(runner, op); }), HasSubstr("micro_batch_size"));
  run(runner, op);
  EXPECT_EQ(first(op.d), 6 * 8);

  emu::fail_next("cudaMalloc", 3, cudaErrorMemoryAllocation);
  error = error_of([&] { runner.search({&op, 1}, 600, stream_); });
  EXPECT_THAT(error, HasSubstr("gemm search"));
  EXPECT_THAT(error, HasSubstr("cudaMalloc"));
  EXPECT_EQ(runner.search({&op, 1}, 600, stream_).timed, 1);
}

TEST_F(GemmTest, NothingIsLeaked) {
  const size_t before = fake().leaks().size(), memory = emu::leaks().size();
  {
    GemmRunner runner = make();
    Gemm op = product(16, 24, 8);
    run(runner, op);
    op.bias = {op.a.data, DType::f32, {24}};
    run(runner, op);
    runner.search({&op, 1}, 600, stream_);
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  EXPECT_EQ(fake().leaks().size(), before);
  EXPECT_EQ(emu::leaks().size(), memory + 3);  // the test's own three matrices
}
#endif
}  // namespace
}  // namespace athanor
