// What the fake cuBLASLt refuses, with which status and reason; and that its descriptors answer as the real library's.
#include <gtest/gtest.h>

#include <bit>

#include "base/error.h"
#include "cublaslt_bench.h"
#include "cuda/libraries/open.h"

namespace emu::fakes {
namespace {

class CublasLtRefusal : public testing::Test {
 protected:
  SimpleMachine machine;
  FakeCublasLt fake{machine.machine()};
  athanor::CublasLtTable lt = fake.table();

  void refused(cublasStatus_t status, cublasStatus_t wanted, const std::string& part) {
    EXPECT_EQ(status, wanted) << lt.cublasLtGetStatusName(status);
    EXPECT_NE(fake.last_refusal().find(part), std::string::npos) << fake.last_refusal();
  }
  void refused(const LtCase& c, cublasStatus_t wanted, const std::string& part) {
    LtBench bench(machine, lt, c);
    refused(bench.run(), wanted, part);
  }
  // Prepares a bench, lets `change` change it, and expects the refusal.
  template <class Change>
  void refused_after(const LtCase& c, Change&& change, cublasStatus_t wanted, const std::string& part) {
    LtBench bench(machine, lt, c);
    auto found = bench.heuristic();
    ASSERT_FALSE(found.empty()) << fake.last_refusal();
    change(bench);
    refused(bench.run(&found[0].algo), wanted, part);
  }
};

constexpr auto kInvalid = CUBLAS_STATUS_INVALID_VALUE;
constexpr auto kUnsupported = CUBLAS_STATUS_NOT_SUPPORTED;

TEST_F(CublasLtRefusal, TypesThatDoNotGoTogether) {
  refused({.ab = Element::kBf16, .d = Element::kF16}, kUnsupported, "bf16 A and B give no D in fp16");
  refused({.ab = Element::kF32, .d = Element::kBf16}, kUnsupported, "fp32 A and B");
  refused({.ab = Element::kBf16, .b = Element::kF16}, kUnsupported, "A is bf16 but B is fp16");
  refused({.ab = Element::kBf16, .c = Element::kF32, .d = Element::kBf16}, kUnsupported, "C is fp32 but D is bf16");
  refused({.compute = CUBLAS_COMPUTE_16F}, kUnsupported, "compute type 64");
  refused({.compute = CUBLAS_COMPUTE_32F_FAST_TF32}, kUnsupported, "fast compute types take fp32");
  refused({.ab = Element::kU8}, kUnsupported, "is not emulated");
}

TEST_F(CublasLtRefusal, Fp8Rules) {
  LtCase good{.m = 32, .n = 32, .k = 32, .ab = Element::kE4m3, .d = Element::kBf16, .transpose_a = true};
  LtCase c = good;
  c.transpose_a = false;
  refused(c, kUnsupported, "(TN)");
  c = good;
  c.transpose_b = true;
  refused(c, kUnsupported, "(TN)");
  c = good;
  c.ab = c.b = Element::kE5m2;
  refused(c, kUnsupported, "e5m2 times e5m2");
  c = good;
  c.m = 24;
  refused(c, kUnsupported, "multiple of 16");
  c = good;
  c.pad = 8;
  refused(c, kUnsupported, "leading dimension 40");
  c = good;
  c.d = Element::kE4m3;
  refused(c, kUnsupported, "type of D");
  c = good;
  c.epilogue = CUBLASLT_EPILOGUE_BGRADB;
  refused(c, kUnsupported, "BGRADB");
  machine.describe_devices({.major = 8, .minor = 0, .multiprocessors = 108});
  refused(good, kUnsupported, "compute capability 8.9");
  machine.describe_devices({.major = 10, .minor = 0, .multiprocessors = 148});
  c = good;
  c.transpose_a = false;
  LtBench any_layout(machine, lt, c);
  EXPECT_EQ(any_layout.run(), CUBLAS_STATUS_SUCCESS) << fake.last_refusal();
}

TEST_F(CublasLtRefusal, ScalesWhereTheyMeanNothing) {
  refused({.scales = true}, kInvalid, "for FP8 only");
  refused_after(
      {.ab = Element::kE4m3, .d = Element::kBf16, .transpose_a = true},
      [](LtBench& b) { b.set(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, b.bias.data()); }, kUnsupported, "is not emulated");
  machine.describe_devices({.major = 10, .minor = 0, .multiprocessors = 148});
  refused_after(
      {.ab = Element::kE4m3, .d = Element::kBf16, .transpose_a = true},
      [](LtBench& b) {
        b.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b.scale_a.data());
        b.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, b.scale_b.data());
        b.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, int32_t{CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F});
        b.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, int32_t{CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F});
      },
      kUnsupported, "compute capability 9.0");
}

TEST_F(CublasLtRefusal, ScalesPer16And32) {
  const auto scaled = [](int32_t a, int32_t b) {
    return [=](LtBench& bench) {
      bench.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, bench.scale_a.data());
      bench.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, bench.scale_b.data());
      bench.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, a);
      bench.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, b);
    };
  };
  const int32_t mx = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0, nv = CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
  const LtCase fp8{.ab = Element::kE4m3, .d = Element::kBf16, .transpose_a = true};
  refused_after(fp8, scaled(mx, mx), kUnsupported, "compute capability 10.0");
  machine.describe_devices({.major = 10, .minor = 0, .multiprocessors = 148});
  refused_after(fp8, scaled(mx, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F), kUnsupported, "for A and for B");
  refused_after(fp8, scaled(nv, nv), kUnsupported, "FP8 E8M0 scales");
  LtCase gelu = fp8;
  gelu.epilogue = CUBLASLT_EPILOGUE_GELU_AUX;
  refused_after(gelu, scaled(mx, mx), kUnsupported, "DEFAULT and BIAS");
}

TEST_F(CublasLtRefusal, ShapesThatDoNotMatch) {
  constexpr Element kType = Element::kBf16;
  refused_after(
      {}, [](LtBench& b) { b.remake(b.b_layout, kType, 40, 16, 48); }, kInvalid, "op(A) is 32 x 48");
  refused_after(
      {}, [](LtBench& b) { b.remake(b.d_layout, kType, 32, 8, 32); }, kInvalid, "D is 32 x 8");
  refused_after(
      {}, [](LtBench& b) { b.remake(b.c_layout, kType, 16, 16, 32); }, kInvalid, "C is 16 x 16");
  refused_after(
      {}, [](LtBench& b) { b.remake(b.a_layout, kType, 32, 48, 31); }, kInvalid, "leading dimension 31");
}

TEST_F(CublasLtRefusal, EpiloguesWithoutTheirBuffers) {
  void* null = nullptr;
  refused_after(
      {.epilogue = CUBLASLT_EPILOGUE_BIAS}, [&](LtBench& b) { b.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, null); },
      kInvalid, "BIAS_POINTER");
  refused_after(
      {.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS},
      [&](LtBench& b) { b.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, null); }, kInvalid, "AUX_POINTER");
  refused_after(
      {.epilogue = CUBLASLT_EPILOGUE_GELU_AUX},
      [](LtBench& b) { b.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{36}); }, kInvalid, "no multiple of 8");
  refused_after(
      {.epilogue = CUBLASLT_EPILOGUE_GELU_AUX},
      [](LtBench& b) { b.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{24}); }, kInvalid, "less than 32");
  refused_after(
      {.epilogue = CUBLASLT_EPILOGUE_BIAS},
      [](LtBench& b) { b.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t{CUDA_R_32F}); }, kUnsupported,
      "is not emulated");
  refused_after(
      {}, [](LtBench& b) { b.set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{3}); }, kUnsupported, "epilogue 3");
  // Addresses tell their alignment where an algorithm is chosen.
  LtBench bench(machine, lt, {.epilogue = CUBLASLT_EPILOGUE_DGELU});
  bench.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, std::bit_cast<void*>(uintptr_t{8}));
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  EXPECT_TRUE(bench.heuristic(1 << 20, 1, &status).empty());
  refused(status, kUnsupported, "aux is misaligned");
}

TEST_F(CublasLtRefusal, PointersAndAlignment) {
  auto shift = [](LtBench& b, int64_t bytes) { b.a_pointer = static_cast<const char*>(b.a_pointer) + bytes; };
  refused_after(
      {}, [&](LtBench& b) { shift(b, 2); }, kUnsupported, "A: algorithm");
  refused_after(
      {}, [&](LtBench& b) { b.a_pointer = nullptr; }, kInvalid, "A, B or D is NULL");
  refused_after(
      {}, [&](LtBench& b) { b.d_pointer = const_cast<void*>(b.a_pointer); }, kInvalid, "lies over");
  refused_after(
      {}, [&](LtBench& b) { b.d_pointer = b.workspace.data(); }, CUBLAS_STATUS_SUCCESS, "");  // none is needed
  refused({.pad = 4}, CUBLAS_STATUS_SUCCESS, "");
}

TEST_F(CublasLtRefusal, WorkspaceLimits) {
  LtBench bench(machine, lt, {.m = 64, .n = 64, .k = 64});
  for (const auto& result : bench.heuristic()) {
    if (result.workspaceSize == 0) continue;
    bench.workspace_bytes = result.workspaceSize - 1;
    refused(bench.run(&result.algo), kInvalid, "bytes of workspace, has");
    bench.workspace_bytes = result.workspaceSize;
    EXPECT_EQ(bench.run(&result.algo), CUBLAS_STATUS_SUCCESS);
  }
}

TEST_F(CublasLtRefusal, WorkspaceInUseByAnotherOperand) {
  LtBench bench(machine, lt, {.m = 64, .n = 64, .k = 64});
  for (const auto& result : bench.heuristic()) {
    if (result.workspaceSize < 64 * 64 * 4) continue;
    bench.d_pointer = bench.workspace.data();
    refused(bench.run(&result.algo), kInvalid, "lies over");
  }
}

TEST_F(CublasLtRefusal, AnAlgorithmForOtherTypesIsRefused) {
  LtBench bf16(machine, lt, {}), fp32(machine, lt, {.ab = Element::kF32, .d = Element::kF32});
  auto found = bf16.heuristic();
  refused(fp32.run(&found[0].algo), kInvalid, "other types");
}

TEST_F(CublasLtRefusal, DeadHandlesAndDescriptors) {
  LtBench bench(machine, lt, {});
  auto found = bench.heuristic();
  cublasLtHandle_t handle = bench.handle;
  bench.handle = nullptr;
  refused(bench.run(&found[0].algo), CUBLAS_STATUS_NOT_INITIALIZED, "handle");
  bench.handle = handle;
  cublasLtMatmulDesc_t desc = bench.desc;
  bench.desc = nullptr;
  refused(bench.run(&found[0].algo), kInvalid, "operation descriptor");
  bench.desc = desc;
}

TEST_F(CublasLtRefusal, AStreamOfAnotherDevice) {
  SimpleMachine two(2);
  LtBench bench(machine, lt, {});
  auto found = bench.heuristic();
  machine.set_device(1);
  bench.stream = machine.make_stream();
  machine.set_device(0);
  refused(bench.run(&found[0].algo), kInvalid, "another device");
}

TEST_F(CublasLtRefusal, PlannedFailures) {
  LtBench bench(machine, lt, {});
  auto found = bench.heuristic();
  machine.fail_next("cublasLtMatmul", 2, CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT_EQ(bench.run(&found[0].algo), CUBLAS_STATUS_SUCCESS);
  refused(bench.run(&found[0].algo), CUBLAS_STATUS_EXECUTION_FAILED, "planned failure");
  EXPECT_EQ(bench.run(&found[0].algo), CUBLAS_STATUS_SUCCESS);
  machine.fail_next("cublasLtMatmulAlgoGetHeuristic", 1, CUBLAS_STATUS_NOT_SUPPORTED);
  cublasStatus_t status;
  EXPECT_TRUE(bench.heuristic(0, 1, &status).empty());
  EXPECT_EQ(status, kUnsupported);
}

// Which attributes there are, their sizes, defaults and wrong calls: status for status as the installed library.
class CublasLtLikeReal : public testing::Test {
 protected:
  void SetUp() override {
    try {
      real = athanor::open_cublaslt(athanor::search_places({})).call;
    } catch (const athanor::Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  SimpleMachine machine;
  FakeCublasLt fake{machine.machine()};
  athanor::CublasLtTable fake_table = fake.table(), real;
};

TEST_F(CublasLtLikeReal, MatmulDescriptors) {
  cublasLtMatmulDesc_t descs[2];
  fake_table.cublasLtMatmulDescCreate(&descs[0], CUBLAS_COMPUTE_32F, CUDA_R_32F);
  real.cublasLtMatmulDescCreate(&descs[1], CUBLAS_COMPUTE_32F, CUDA_R_32F);
  for (int number = 0; number < 42; ++number) {
    SCOPED_TRACE(testing::Message() << "attribute " << number);
    const auto name = static_cast<cublasLtMatmulDescAttributes_t>(number);
    const auto same = [&](void* of_fake, void* of_real, size_t bytes, size_t* fakes, size_t* reals) {
      EXPECT_EQ(fake_table.cublasLtMatmulDescGetAttribute(descs[0], name, of_fake, bytes, fakes),
                real.cublasLtMatmulDescGetAttribute(descs[1], name, of_real, bytes, reals));
    };
    size_t size_real = 0, size_fake = 0, written = 0;
    uint64_t value_real = 0, value_fake = 0;
    same(nullptr, nullptr, 0, &size_fake, &size_real);
    ASSERT_EQ(size_fake, size_real);
    same(&value_fake, &value_real, size_real, &written, &written);
    EXPECT_EQ(value_fake, value_real);
    same(&value_fake, &value_real, 3, &written, &written);
    same(nullptr, nullptr, 4, &written, &written);
    same(nullptr, nullptr, 0, nullptr, nullptr);
  }
  int64_t value = 77;
  for (int name = 0; name < 42; ++name) {
    for (size_t bytes : {1, 2, 4, 8}) {
      auto attribute = static_cast<cublasLtMatmulDescAttributes_t>(name);
      EXPECT_EQ(fake_table.cublasLtMatmulDescSetAttribute(descs[0], attribute, &value, bytes),
                real.cublasLtMatmulDescSetAttribute(descs[1], attribute, &value, bytes))
          << name << " of " << bytes << " bytes";
    }
  }
  fake_table.cublasLtMatmulDescDestroy(descs[0]);
  real.cublasLtMatmulDescDestroy(descs[1]);
}

TEST_F(CublasLtLikeReal, NullPointersAndStatusNames) {
  for (const athanor::CublasLtTable* t : {&fake_table, &real}) {
    EXPECT_EQ(t->cublasLtMatrixLayoutCreate(nullptr, CUDA_R_16BF, 8, 16, 8), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(t->cublasLtMatmulDescDestroy(nullptr), CUBLAS_STATUS_SUCCESS);
    EXPECT_STREQ(t->cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
  }
}

}  // namespace
}  // namespace emu::fakes
