// cuBLASLt algorithms as text, times of the chosen ones, and the rejection of algorithms with other results in
// autotuning.
#include <gmock/gmock.h>

#include "cuda/gemm/algorithms.h"
#include "cuda/gemm/gemm.h"
#include "tests/cuda/kernel_test.h"
#ifdef ATHANOR_EMULATED_GPU
#include "cuda/check.h"
#include "cuda/libraries/open.h"
#include "cuda/libraries/specs.h"
#include "emulator/libraries/cublaslt/fake_cublaslt.h"
#include "emulator/libraries/cublaslt/functions.h"
#include "emulator/runtime/control.h"
#endif

namespace athanor::cuda {
namespace {
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(GemmTiles, MatchTheCublasLtHeader) {
  const auto is = [](uint32_t tile, int64_t rows, int64_t cols) {
    EXPECT_EQ(tile_shape(tile).rows, rows) << tile;
    EXPECT_EQ(tile_shape(tile).cols, cols) << tile;
  };
  is(CUBLASLT_MATMUL_TILE_UNDEFINED, 0, 0);
  is(CUBLASLT_MATMUL_TILE_8x8, 8, 8);
  is(CUBLASLT_MATMUL_TILE_256x128, 256, 128);
  is(CUBLASLT_MATMUL_TILE_256x32, 256, 32);
  is(CUBLASLT_MATMUL_TILE_8x128, 8, 128);
  is(CUBLASLT_MATMUL_TILE_72x640, 72, 640);
  is(CUBLASLT_MATMUL_TILE_128x320, 128, 320);
  is(CUBLASLT_MATMUL_TILE_256x192, 256, 192);
  is(CUBLASLT_MATMUL_TILE_768x64, 768, 64);
  is(CUBLASLT_MATMUL_TILE_64x760, 64, 760);
  is(CUBLASLT_MATMUL_TILE_128x512, 128, 512);
  is(CUBLASLT_MATMUL_TILE_192x336, 192, 336);
  is(CUBLASLT_MATMUL_TILE_256x256, 256, 256);
  is(CUBLASLT_MATMUL_TILE_512x128, 512, 128);
  is(CUBLASLT_MATMUL_TILE_768x80, 768, 80);
  is(CUBLASLT_MATMUL_TILE_512x1024, 512, 1024);
  is(CUBLASLT_MATMUL_TILE_END, 0, 0);  // from a newer version of the library
}

#ifdef ATHANOR_EMULATED_GPU
constexpr size_t kWorkspace = 256 << 10;

const CublasLtTable& library() {
  static const CublasLtTable table = open_cublaslt(search_places(library_specs())).call;
  return table;
}

template <class T>
T config(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t name) {
  T value{};
  library().cublasLtMatmulAlgoConfigGetAttribute(&algorithm, name, &value, sizeof value, nullptr);
  return value;
}

cudaStream_t stream_of(void*, size_t, cudaStream_t stream) { return stream; }  // the last arguments of cublasLtMatmul()

class GemmSearchTest : public KernelTest {
 protected:
  void SetUp() override { CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  void TearDown() override {
    fake().set_time(nullptr);
    (void)cudaStreamDestroy(stream_);
    const emu::Report report = emu::take_report();
    EXPECT_EQ(report.fault, emu::Fault::kNone) << report.text;
  }
  static emu::fakes::FakeCublasLt& fake() {
    library();
    return emu::fakes::Installed<emu::fakes::FakeCublasLt>::get();
  }
  GemmRunner make(const CublasLtTable& table = library()) const {
    return GemmRunner(table, {.workspace_bytes = kWorkspace});
  }
  // Autotuning allocates the operands itself: only the alignment of addresses matters.
  static Gemm product(int64_t m, int64_t n, int64_t k, uintptr_t address = 256) {
    const auto at = [&](Shape shape) { return Tensor{reinterpret_cast<void*>(address), DType::bf16, shape}; };
    return {.d = at({m, n}), .a = at({m, k}), .b = at({k, n})};
  }

  cudaStream_t stream_ = nullptr;
};

// The fastest algorithm omits part of a GEMM and must not be used.
TEST_F(GemmSearchTest, AlgorithmWithWrongResultsIsRejected) {
  const Gemm op = product(32, 32, 512);
  fake().set_time([&](const cublasLtMatmulAlgo_t& algorithm, uint32_t) {
    const int parts = config<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
    return parts == 3 ? 5.0 : parts == 2 ? 20.0 : 50.0;
  });
  for (const bool adds : {false, true}) {
    CublasLtTable table = library();
    table.cublasLtMatmul = [](auto handle, auto desc, auto alpha, auto a, auto a_layout, auto b, auto b_layout,
                              auto beta, auto c, auto c_layout, auto d, auto d_layout, auto algorithm, auto... rest) {
      const auto status = library().cublasLtMatmul(handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d,
                                                   d_layout, algorithm, rest...);
      if (config<int32_t>(*algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) == 3)
        CUDA_CHECK(cudaMemsetAsync(d, 0, 4 * 32 * sizeof(bf16), stream_of(rest...)));
      return status;
    };
    Gemm one = op;
    one.accumulate = adds;
    GemmRunner runner = make(table);
    testing::internal::CaptureStderr();
    const auto report = runner.search({&one, 1}, 600, stream_);
    EXPECT_THAT(
        testing::internal::GetCapturedStderr(),
        ContainsRegex("algorithm .*3 cuts of K was the fastest in autotuning of bf16.*is not used.* d differs by "
                      "0\\.[0-9]+ of its size"));
    EXPECT_NEAR(report.best_microseconds, 20, 5);
  }
}

// GEMMs that were not autotuned run in parts; the reported algorithm is that of the GEMM inside.
TEST_F(GemmSearchTest, UnfusedGemmReportsTheAlgorithmOfItsGemm) {
  Gemm op = product(64, 96, 32);
  fake().set_time([](const cublasLtMatmulAlgo_t&, uint32_t) { return 60.0; });
  GemmRunner runner = make();
  const GemmTime plain = runner.time(op, false, stream_);
  op.aux = op.d;
  op.epilogue = Epilogue::add;
  const GemmTime parts = runner.time(op, false, stream_);
  EXPECT_FALSE(plain.method.in_parts);
  EXPECT_TRUE(parts.method.in_parts);
  EXPECT_EQ(parts.method.words, plain.method.words);
  EXPECT_THAT(parts.method.words, HasSubstr("algorithm "));
  EXPECT_GT(parts.seconds, plain.seconds);
}

TEST_F(GemmSearchTest, DescriptionUsesRowMajorTileShapes) {
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  fake().set_time([&](const cublasLtMatmulAlgo_t& algorithm, uint32_t) {
    algorithms.push_back(algorithm);
    return 50.0;
  });
  const Gemm op = product(64, 96, 32);
  make().search({&op, 1}, 600, stream_);
  ASSERT_FALSE(algorithms.empty());
  cublasLtMatmulAlgo_t one = algorithms.front();
  const auto set = [&](cublasLtMatmulAlgoConfigAttributes_t name, auto value) {
    ASSERT_EQ(emu::fakes::lt::set_config(&one, name, &value, sizeof value), CUBLAS_STATUS_SUCCESS);
  };
  set(CUBLASLT_ALGO_CONFIG_TILE_ID, uint32_t{CUBLASLT_MATMUL_TILE_128x256});
  set(CUBLASLT_ALGO_CONFIG_STAGES_ID, uint32_t{CUBLASLT_MATMUL_STAGES_64x3});
  set(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, int32_t{6});
  set(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, uint32_t{0});
  set(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, uint16_t{3});
  const auto id = config<int32_t>(one, CUBLASLT_ALGO_CONFIG_ID);
  EXPECT_EQ(describe_algorithm(library(), one),
            cat("algorithm ", id, ", tile 256x128, stages 15, 6 cuts of K, cluster 3"));
}
#endif
}  // namespace
}  // namespace athanor::cuda
