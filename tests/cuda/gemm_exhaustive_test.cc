// Everything that cuBLASLt can be configured to: that the list is whole and holds nothing that must not run, that the
// fastest is found wherever it hides, that failures cost a candidate, not the search, and that training's search takes
// nothing that gives other results.
#include <gmock/gmock.h>

#include "cuda/gemm/algorithms.h"
#include "cuda/gemm/gemm.h"
#include "tests/cuda/kernel_test.h"
#ifdef ATHANOR_EMULATED_GPU
#include "cuda/check.h"
#include "cuda/libraries/open.h"
#include "cuda/libraries/specs.h"
#include "emulator/libraries/cublaslt/fake_cublaslt.h"
#include "emulator/runtime/control.h"
#endif

namespace athanor::cuda {
namespace {
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(GemmTiles, AreThoseOfTheHeader) {
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
  is(CUBLASLT_MATMUL_TILE_END, 0, 0);  // of a newer library
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

class GemmExhaustiveTest : public KernelTest {
 protected:
  void SetUp() override {
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    ASSERT_EQ(library().cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
  }
  void TearDown() override {
    fake().set_time(nullptr);
    library().cublasLtDestroy(handle_);
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
  // Operands are made by the trial: only addresses' alignment counts.
  static Gemm product(int64_t m, int64_t n, int64_t k, uintptr_t address = 256) {
    const auto at = [&](Shape shape) { return Tensor{reinterpret_cast<void*>(address), DType::bf16, shape}; };
    return {.d = at({m, n}), .a = at({m, k}), .b = at({k, n})};
  }

  cudaStream_t stream_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
};

TEST_F(GemmExhaustiveTest, ListsAllSettingsThatRepeatTheirBits) {
  const auto all = list_algorithms(library(), handle_, problem_of(product(64, 96, 32)));
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].tiles, (std::vector<uint32_t>{CUBLASLT_MATMUL_TILE_128x128, CUBLASLT_MATMUL_TILE_128x256,
                                                 CUBLASLT_MATMUL_TILE_256x128}));
  EXPECT_EQ(all[0].cuts, (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32}));
  EXPECT_EQ(all[1].stages.size(), 2U);
  EXPECT_EQ(all[2].cuts, std::vector<int32_t>{1}) << "it cannot cut K";
  EXPECT_EQ(all[2].stages, std::vector<uint32_t>{CUBLASLT_MATMUL_STAGES_UNDEFINED});
  const auto grid = grid_of(library(), all);
  EXPECT_EQ(grid.size(), 3U * 12 + 2 * 2 * 12 + 1);
  for (const auto& one : grid) {
    const auto reduction = config<uint32_t>(one, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
    EXPECT_EQ(reduction, config<int32_t>(one, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1
                             ? uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}
                             : uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  }
  const auto near = neighbours_of(library(), all, grid.front());
  EXPECT_EQ(near.size(), size_t{2 + 1 + CUBLASLT_CLUSTER_SHAPE_END + CUBLASLT_MATMUL_INNER_SHAPE_END});
}

// An address that an algorithm cannot read would end the whole program on a GPU.
TEST_F(GemmExhaustiveTest, AlignmentOfAddressesAndRowsDecidesWhatIsListed) {
  const auto ids = [&](const Gemm& op) {
    std::vector<int32_t> found;
    for (const auto& one : list_algorithms(library(), handle_, problem_of(op)))
      found.push_back(config<int32_t>(one.plain, CUBLASLT_ALGO_CONFIG_ID));
    return found;
  };
  EXPECT_EQ(ids(product(64, 96, 32)), (std::vector<int32_t>{66, 67, 24}));
  EXPECT_EQ(ids(product(64, 96, 32, 4)), (std::vector<int32_t>{67, 24}));
  EXPECT_EQ(ids(product(64, 95, 32)), std::vector<int32_t>{24});
}

// An algorithm that leaves part of a product out is the fastest, and is not used.
TEST_F(GemmExhaustiveTest, WhoeverGivesOtherResultsIsNotUsed) {
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
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                ContainsRegex("algorithm .*3 cuts of K was the fastest in a trial of bf16.*is not used.* d differs by "
                              "0\\.[0-9]+ of its size"));
    EXPECT_NEAR(report.best_microseconds, 20, 5);
  }
}

TEST_F(GemmExhaustiveTest, FindsWhatTheLibraryDoesNotOffer) {
  const Gemm op = product(64, 96, 512);
  fake().set_time([](const cublasLtMatmulAlgo_t& one, uint32_t) {
    const bool hidden = config<int32_t>(one, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) == 6 &&
                        config<uint32_t>(one, CUBLASLT_ALGO_CONFIG_STAGES_ID) == CUBLASLT_MATMUL_STAGES_64x3;
    return hidden ? (config<uint16_t>(one, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID) == 3 ? 40.0 : 50.0) : 100.0;
  });
  GemmRunner runner = make();
  runner.search({&op, 1}, 600, stream_);
  const std::string before = runner.export_choices();
  const ProductTrial trial = runner.try_all(op, false, 600, stream_);
  EXPECT_EQ(runner.export_choices(), before) << "it only measures";
  EXPECT_TRUE(trial.complete);
  EXPECT_GT(trial.tried, 85);
  EXPECT_EQ(trial.failed, 0);
  EXPECT_NEAR(trial.chosen.seconds, 100e-6, 5e-6);
  EXPECT_NEAR(trial.best.seconds, 40e-6, 5e-6);
  EXPECT_EQ(trial.best.method.cuts, 6);
  EXPECT_THAT(trial.best.method.words, HasSubstr("algorithm 67, tile "));
  EXPECT_THAT(trial.best.method.words, HasSubstr(", stages 15, 6 cuts of K, cluster 3"));
  EXPECT_THAT(trial.chosen.method.words, Not(HasSubstr("cluster")));
}

TEST_F(GemmExhaustiveTest, WithoutTimeTheLibrarysAnswersAreStillCompared) {
  const Gemm op = product(32, 32, 64);
  const ProductTrial trial = make().try_all(op, false, 0, stream_);
  EXPECT_FALSE(trial.complete);
  EXPECT_GT(trial.tried, 0);
  EXPECT_GT(trial.best.seconds, 0);
  EXPECT_LE(trial.best.seconds, trial.chosen.seconds);
}

TEST_F(GemmExhaustiveTest, FailuresCostACandidateEach) {
  const Gemm op = product(32, 32, 64);
  CublasLtTable table = library();
  table.cublasLtMatmul = [](auto handle, auto desc, auto alpha, auto a, auto la, auto b, auto lb, auto beta, auto c,
                            auto lc, auto d, auto ld, const cublasLtMatmulAlgo_t* one, auto... rest) {
    if (config<int32_t>(*one, CUBLASLT_ALGO_CONFIG_ID) == 24) return CUBLAS_STATUS_EXECUTION_FAILED;
    return library().cublasLtMatmul(handle, desc, alpha, a, la, b, lb, beta, c, lc, d, ld, one, rest...);
  };
  table.cublasLtMatmulAlgoGetHeuristic = [](auto handle, auto desc, auto a, auto b, auto c, auto d, auto preference,
                                            int most, cublasLtMatmulHeuristicResult_t* answers, int* count) {
    if (most > 100) return CUBLAS_STATUS_INTERNAL_ERROR;  // asked for all: the list still holds some
    return library().cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, c, d, preference, most, answers, count);
  };
  GemmRunner runner = make(table);
  emu::fail_next("cudaEventElapsedTime", 3, cudaErrorInvalidValue);
  const ProductTrial trial = runner.try_all(op, false, 600, stream_);
  EXPECT_GE(trial.failed, 2) << "algorithm 24, and the one whose time could not be read";
  EXPECT_GT(trial.tried, 20);
  EXPECT_GT(trial.best.seconds, 0);
}

TEST_F(GemmExhaustiveTest, EpiloguesAreTriedFusedAndInParts) {
  Gemm op = product(64, 96, 32);
  op.aux = op.d;
  op.epilogue = Epilogue::add;
  fake().set_time([](const cublasLtMatmulAlgo_t&, uint32_t) { return 60.0; });
  GemmRunner runner = make();  // no search: in parts
  const ProductTime time = runner.time(op, false, stream_);
  EXPECT_TRUE(time.method.in_parts);
  EXPECT_GT(time.seconds, time.product_seconds);
  EXPECT_THAT(time.method.words, HasSubstr("algorithm "));
  EXPECT_GT(time.method.tile_rows, 0);
  EXPECT_GT(time.method.waves, 0);
  const ProductTrial trial = runner.try_all(op, false, 600, stream_);
  EXPECT_TRUE(trial.chosen.method.in_parts);
  EXPECT_FALSE(trial.best.method.in_parts) << "one kernel less";
  EXPECT_LT(trial.best.seconds, trial.chosen.seconds);
}

TEST_F(GemmExhaustiveTest, TilesAreToldAsRowsAndColumnsOfOurs) {
  const auto all = list_algorithms(library(), handle_, problem_of(product(64, 96, 32)));
  cublasLtMatmulAlgo_t one = all[0].plain;
  const uint32_t tile = CUBLASLT_MATMUL_TILE_128x256;
  library().cublasLtMatmulAlgoConfigSetAttribute(&one, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile);
  const ProductMethod method = describe_algorithm(library(), one, 1.5);
  EXPECT_EQ(method.tile_rows, 256) << "the library's columns";
  EXPECT_EQ(method.tile_cols, 128);
  EXPECT_EQ(method.words, "algorithm 66, tile 256x128");
  EXPECT_EQ(method.waves, 1.5);
}
#endif
}  // namespace
}  // namespace athanor::cuda
