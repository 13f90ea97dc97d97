// The fake cuBLASLt computes right products: every layout, type, epilogue and algorithm against sums in double.
#include <gtest/gtest.h>

#include <cstring>

#include "cublaslt_bench.h"
#include "libraries/cublaslt/functions.h"

namespace emu::fakes {
namespace {

class CublasLt : public testing::Test {
 protected:
  SimpleMachine machine;
  FakeCublasLt fake{machine.machine()};
  athanor::CublasLtTable lt = fake.table();

  void right(const LtCase& c) {
    SCOPED_TRACE(testing::Message() << element_name(c.ab) << " -> " << element_name(c.d) << " epilogue " << c.epilogue
                                    << " ta " << c.transpose_a << " tb " << c.transpose_b << " seed " << c.seed);
    LtBench bench(machine, lt, c);
    ASSERT_EQ(bench.run(), CUBLAS_STATUS_SUCCESS) << fake.last_refusal();
    bench.expect_right();
  }
};

TEST_F(CublasLt, EveryFunctionOfTheTableIsThere) {
  for_each_function(lt, [](const char* name, auto function) { EXPECT_NE(function, nullptr) << name; });
}

TEST_F(CublasLt, TypesAndTransposes) {
  struct Types {
    Element ab, d;
  } all[] = {{Element::kBf16, Element::kBf16},
             {Element::kBf16, Element::kF32},
             {Element::kF16, Element::kF16},
             {Element::kF16, Element::kF32},
             {Element::kF32, Element::kF32}};
  uint64_t seed = 0;
  for (const Types& types : all) {
    for (int bits = 0; bits < 12; ++bits) {
      LtCase c{.m = 24, .n = 16, .k = 40, .ab = types.ab, .d = types.d, .alpha = 0.75, .seed = ++seed};
      c.transpose_a = bits & 1;
      c.transpose_b = bits & 2;
      c.pad = bits / 4 * 8;
      right(c);
    }
  }
}

TEST_F(CublasLt, OddSizesRunOnTheAlgorithmWithoutAlignment) {
  for (int64_t size : {1, 3, 17, 33}) {
    right({.m = size, .n = size + 2, .k = size * 2 + 1, .ab = Element::kBf16, .d = Element::kBf16});
    right({.m = size, .n = 1, .k = 5, .ab = Element::kF32, .d = Element::kF32, .pad = 1});
  }
}

TEST_F(CublasLt, AccumulatesIntoCOutOfPlaceAndInPlace) {
  for (bool in_place : {false, true}) {
    for (bool device : {false, true}) {
      right({.ab = Element::kBf16,
             .d = Element::kF32,
             .transpose_b = true,
             .alpha = 0.5,
             .beta = 1,
             .in_place = in_place,
             .device_scalars = device});
      right({.d = Element::kBf16, .beta = -2, .in_place = in_place, .device_scalars = device});
    }
  }
}

TEST_F(CublasLt, Epilogues) {
  for (uint32_t epilogue : {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                            CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB}) {
    for (Element d : {Element::kBf16, Element::kF32}) {
      right({.m = 40, .n = 24, .k = 32, .d = d, .epilogue = epilogue});
      right({.m = 40, .n = 24, .k = 32, .d = d, .transpose_a = true, .epilogue = epilogue, .beta = 1});
    }
  }
}

TEST_F(CublasLt, Fp8WithScales) {
  for (Element d : {Element::kBf16, Element::kF16, Element::kF32}) {
    for (Element b : {Element::kE4m3, Element::kE5m2}) {
      LtCase c{.m = 32, .n = 48, .k = 64, .ab = Element::kE4m3, .b = b, .d = d, .transpose_a = true, .scales = true};
      right(c);
      c.epilogue = CUBLASLT_EPILOGUE_BIAS;
      c.beta = 1;
      right(c);
    }
  }
}

TEST_F(CublasLt, Fp8OuterVectorAndBlockScales) {
  for (int32_t mode : {CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F}) {
    LtBench bench(machine, lt,
                  {.m = 32, .n = 16, .k = 256, .ab = Element::kE4m3, .d = Element::kF32, .transpose_a = true});
    std::vector<float> sa(64), sb(32);
    for (size_t i = 0; i < sa.size(); ++i) sa[i] = 1.f + 0.125f * static_cast<float>(i);
    for (size_t i = 0; i < sb.size(); ++i) sb[i] = 2.f - 0.0625f * static_cast<float>(i);
    bench.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, sa.data());
    bench.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, sb.data());
    bench.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
    bench.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
    ASSERT_EQ(bench.run(), CUBLAS_STATUS_SUCCESS) << fake.last_refusal();
    bool blocks = mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    for (int64_t j = 0; j < 16; ++j) {
      for (int64_t i = 0; i < 32; ++i) {
        double want = 0;
        for (int64_t p = 0; p < 256; ++p) {
          int64_t block = blocks ? p / 128 : 0;
          want += bench.a_values[i * 256 + p] * bench.b_values[j * 256 + p] * sa[static_cast<size_t>(block * 32 + i)] *
                  sb[static_cast<size_t>(block * 16 + j)];
        }
        ASSERT_NEAR(bench.d_values[j * 32 + i], want, 1e-3 * (1 + std::abs(want)));
      }
    }
  }
}

TEST_F(CublasLt, FastTf32RoundsItsInputs) {
  LtBench bench(
      machine, lt,
      {.m = 1, .n = 1, .k = 1, .ab = Element::kF32, .d = Element::kF32, .compute = CUBLAS_COMPUTE_32F_FAST_TF32});
  bench.a_values.set(0, 1 + 0x1p-12);  // lost in 10 bits of mantissa
  bench.b_values.set(0, 1 + 0x1p-10);
  ASSERT_EQ(bench.run(), CUBLAS_STATUS_SUCCESS) << fake.last_refusal();
  EXPECT_EQ(bench.d_values[0], 1 + 0x1p-10);
}

// The sum begins with a large term; an accumulator of 14 bits loses the small terms that follow.
TEST_F(CublasLt, SumsOfFp8KeepFewBitsOnHopper) {
  const auto sum = [&](int bits, bool fast) {
    machine.describe_devices({.code_sum_bits = bits});
    LtBench bench(machine, lt,
                  {.m = 16, .n = 16, .k = 512, .ab = Element::kE4m3, .d = Element::kF32, .transpose_a = true});
    for (int64_t p = 0; p < 512; ++p) {
      bench.a_values.set(p, p ? 0.0625 : 16);
      bench.b_values.set(p, p ? 0.0625 : 16);
    }
    bench.set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{fast});
    cublasLtMatmulAlgo_t algorithm = bench.heuristic().front().algo;
    const int32_t whole = 1;  // parts of a split K are added in fp32, like promoted sums
    const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    fakes::lt::set_config(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &whole, sizeof whole);
    fakes::lt::set_config(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &none, sizeof none);
    EXPECT_EQ(bench.run(&algorithm), CUBLAS_STATUS_SUCCESS) << fake.last_refusal();
    return bench.d_values[0];
  };
  constexpr double kSmall = 0.0625 * 0.0625;  // of 256: 2^-16
  EXPECT_EQ(sum(24, false), 256 + 511 * kSmall);
  EXPECT_EQ(sum(14, false), 256 + 384 * kSmall);  // but for the first 128 terms
  EXPECT_EQ(sum(14, true), 256);
}

TEST_F(CublasLt, TheHeuristicOffersDifferentAlgorithmsAndAllAreRight) {
  LtBench bench(machine, lt, {.m = 96, .n = 64, .k = 128, .d = Element::kBf16});
  auto results = bench.heuristic();
  ASSERT_GE(results.size(), 8u);
  bool with_workspace = false, without = false;
  std::vector<float> waves;
  for (const auto& result : results) {
    ASSERT_EQ(result.state, CUBLAS_STATUS_SUCCESS);
    with_workspace |= result.workspaceSize > 0;
    without |= result.workspaceSize == 0;
    waves.push_back(result.wavesCount);
    bench.d_values = Values(Element::kBf16, bench.d_values.size());
    bench.d_pointer = bench.d_values.data();
    ASSERT_EQ(bench.run(&result.algo), CUBLAS_STATUS_SUCCESS) << fake.last_refusal();
    bench.expect_right(0.1);  // partial sums in bf16, some of 8 or more
    cublasLtMatmulHeuristicResult_t checked{};
    ASSERT_EQ(bench.check(result.algo, &checked), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(checked.workspaceSize, result.workspaceSize);
    EXPECT_EQ(checked.wavesCount, result.wavesCount);
  }
  EXPECT_TRUE(with_workspace && without);
  EXPECT_NE(*std::min_element(waves.begin(), waves.end()), *std::max_element(waves.begin(), waves.end()));
  for (const auto& result : bench.heuristic(0)) EXPECT_EQ(result.workspaceSize, 0u);
  EXPECT_EQ(bench.heuristic(1 << 20, 3).size(), 3u);
}

TEST_F(CublasLt, AnAlgorithmSurvivesBeingStored) {
  LtBench bench(machine, lt, {.m = 64, .n = 64, .k = 64});
  auto results = bench.heuristic();
  char bytes[sizeof(cublasLtMatmulAlgo_t)];
  std::memcpy(bytes, &results[0].algo, sizeof bytes);
  cublasLtMatmulAlgo_t again;
  std::memcpy(&again, bytes, sizeof bytes);
  ASSERT_EQ(bench.run(&again), CUBLAS_STATUS_SUCCESS);
  bench.expect_right();
  bytes[0] ^= 1;  // damaged
  std::memcpy(&again, bytes, sizeof bytes);
  EXPECT_EQ(bench.run(&again), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLt, AlgorithmsCanBeMadeByHand) {
  LtBench bench(machine, lt, {.m = 64, .n = 64, .k = 64});
  cublasLtMatmulAlgo_t algorithm = bench.heuristic().front().algo;
  cublasLtMatmulHeuristicResult_t result{};
  const auto set = [&](cublasLtMatmulAlgoConfigAttributes_t name, auto value) {
    ASSERT_EQ(fakes::lt::set_config(&algorithm, name, &value, sizeof value), CUBLAS_STATUS_SUCCESS);
  };
  set(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, int32_t{3});
  set(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  EXPECT_EQ(bench.check(algorithm, &result), CUBLAS_STATUS_NOT_SUPPORTED);  // parts without a reduction scheme
  set(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  ASSERT_EQ(bench.check(algorithm, &result), CUBLAS_STATUS_SUCCESS) << fake.last_refusal();
  EXPECT_EQ(result.workspaceSize, 3u * 64 * 64 * 4);
  ASSERT_EQ(bench.run(&algorithm), CUBLAS_STATUS_SUCCESS);
  bench.expect_right();
}

TEST_F(CublasLt, WorkIsDoneInStreamOrderNotAtTheCall) {
  LtBench bench(machine, lt, {.m = 16, .n = 16, .k = 16});
  auto found = bench.heuristic();
  float one = 1, zero = 0;
  ASSERT_EQ(
      lt.cublasLtMatmul(bench.handle, bench.desc, &one, bench.a_values.data(), bench.a_layout, bench.b_values.data(),
                        bench.b_layout, &zero, bench.c_values.data(), bench.c_layout, bench.d_values.data(),
                        bench.d_layout, &found[0].algo, bench.workspace.data(), 1 << 20, bench.stream),
      CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(bench.d_values[0], 0.0);
  EXPECT_TRUE(machine.synchronize(bench.stream));
  bench.expect_right();
}

TEST_F(CublasLt, LeaksAreListed) {
  cublasLtMatmulDesc_t desc;
  lt.cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  EXPECT_EQ(fake.leaks(), std::vector<std::string>{"cublasLtMatmulDesc_t"});
  EXPECT_EQ(lt.cublasLtMatmulDescDestroy(desc), CUBLAS_STATUS_SUCCESS);
  EXPECT_TRUE(fake.leaks().empty());
  EXPECT_EQ(lt.cublasLtMatmulDescDestroy(desc), CUBLAS_STATUS_INVALID_VALUE);
}

}  // namespace
}  // namespace emu::fakes
