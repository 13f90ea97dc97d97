// See cublaslt_bench.h.
#include "cublaslt_bench.h"

#include <cmath>

namespace emu::fakes {
namespace {

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_gradient(double x) {  // by difference: independent of the fake's formula
  double h = 1e-5;
  return (gelu(x + h) - gelu(x - h)) / (2 * h);
}

}  // namespace

cudaDataType_t cuda_type(Element type) {
  switch (type) {
    case Element::kF32:
      return CUDA_R_32F;
    case Element::kF16:
      return CUDA_R_16F;
    case Element::kBf16:
      return CUDA_R_16BF;
    case Element::kE4m3:
      return CUDA_R_8F_E4M3;
    case Element::kE5m2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_8I;
  }
}

LtBench::LtBench(SimpleMachine& machine, const athanor::CublasLtTable& table, const LtCase& lt_case)
    : c(lt_case), machine_(machine), table_(table) {
  stream = machine.make_stream();
  make_matrices();
  make_descriptors();
}

void LtBench::make_matrices() {
  int64_t rows_a = c.transpose_a ? c.k : c.m, cols_a = c.transpose_a ? c.m : c.k;
  int64_t rows_b = c.transpose_b ? c.n : c.k, cols_b = c.transpose_b ? c.k : c.n;
  ld_a = rows_a + c.pad;
  ld_b = rows_b + c.pad;
  ld_d = c.m + c.pad;
  a_values = Values::random(c.ab, ld_a * cols_a, c.seed * 7 + 1);
  b_values = Values::random(c.b_type(), ld_b * cols_b, c.seed * 7 + 2);
  c_values = Values::random(c.c_type(), ld_d * c.n, c.seed * 7 + 3);
  d_values = Values(c.d, ld_d * c.n);
  for (int64_t i = 0; c.in_place && i < d_values.size(); ++i) d_values.set(i, c_values[i]);
  const Element bias_type = is_fp8(c.ab) && c.d == Element::kF32 ? Element::kBf16 : c.d;
  bias = Values::random(bias_type, c.epilogue == CUBLASLT_EPILOGUE_BGRADB ? c.n : c.m, c.seed * 7 + 4);
  aux_ld = (c.m + 7) / 8 * 8;
  aux = Values::random(c.d, aux_ld * c.n, c.seed * 7 + 5);
  workspace = Values(Element::kU8, static_cast<int64_t>(workspace_bytes));
  d_pointer = d_values.data();
  a_pointer = a_values.data();
}

void LtBench::remake(cublasLtMatrixLayout_t& layout, Element type, int64_t rows, int64_t cols, int64_t ld) {
  table_.cublasLtMatrixLayoutDestroy(layout);
  EXPECT_EQ(table_.cublasLtMatrixLayoutCreate(&layout, cuda_type(type), static_cast<uint64_t>(rows),
                                              static_cast<uint64_t>(cols), ld),
            CUBLAS_STATUS_SUCCESS);
}

void LtBench::make_descriptors() {
  EXPECT_EQ(table_.cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  remake(a_layout, c.ab, c.transpose_a ? c.k : c.m, c.transpose_a ? c.m : c.k, ld_a);
  remake(b_layout, c.b_type(), c.transpose_b ? c.n : c.k, c.transpose_b ? c.k : c.n, ld_b);
  remake(c_layout, c.c_type(), c.m, c.n, ld_d);
  remake(d_layout, c.d, c.m, c.n, ld_d);
  EXPECT_EQ(table_.cublasLtMatmulDescCreate(&desc, c.compute, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t{c.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N});
  set(CUBLASLT_MATMUL_DESC_TRANSB, int32_t{c.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N});
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, c.epilogue);
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.data());
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux.data());
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_ld);
  if (c.device_scalars) set(CUBLASLT_MATMUL_DESC_POINTER_MODE, int32_t{CUBLASLT_POINTER_MODE_DEVICE});
  if (!c.scales) return;
  scale_a[0] = 0.5f;
  scale_b[0] = 3.f;
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale_a.data());
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale_b.data());
}

LtBench::~LtBench() {
  table_.cublasLtMatmulDescDestroy(desc);
  for (cublasLtMatrixLayout_t layout : {a_layout, b_layout, c_layout, d_layout}) {
    table_.cublasLtMatrixLayoutDestroy(layout);
  }
  table_.cublasLtDestroy(handle);
}

std::vector<cublasLtMatmulHeuristicResult_t> LtBench::heuristic(size_t bytes, int count, cublasStatus_t* status) {
  cublasLtMatmulPreference_t preference;
  table_.cublasLtMatmulPreferenceCreate(&preference);
  uint64_t limit = bytes;
  table_.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, 8);
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(count));
  int returned = 0;
  cublasStatus_t code = table_.cublasLtMatmulAlgoGetHeuristic(handle, desc, a_layout, b_layout, c_layout, d_layout,
                                                              preference, count, results.data(), &returned);
  results.resize(code == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(returned) : 0);
  table_.cublasLtMatmulPreferenceDestroy(preference);
  if (status) *status = code;
  return results;
}

cublasStatus_t LtBench::check(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulHeuristicResult_t* result) {
  return table_.cublasLtMatmulAlgoCheck(handle, desc, a_layout, b_layout, c_layout, d_layout, &algorithm, result);
}

cublasStatus_t LtBench::run(const cublasLtMatmulAlgo_t* algorithm) {
  std::vector<cublasLtMatmulHeuristicResult_t> found;
  if (algorithm == nullptr) {
    cublasStatus_t status;
    found = heuristic(workspace_bytes, 1, &status);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    algorithm = &found[0].algo;
  }
  scalars = {static_cast<float>(c.alpha), static_cast<float>(c.beta)};
  cublasStatus_t status =
      table_.cublasLtMatmul(handle, desc, &scalars[0], a_pointer, a_layout, b_values.data(), b_layout, &scalars[1],
                            c.in_place ? d_pointer : c_values.data(), c_layout, d_pointer, d_layout, algorithm,
                            workspace.data(), workspace_bytes, stream);
  if (!c.device_scalars) scalars = {777.f, 777.f};  // host values are read at the call
  EXPECT_TRUE(machine_.synchronize(stream));
  return status;
}

double LtBench::a_at(int64_t i, int64_t p) const { return a_values[c.transpose_a ? i * ld_a + p : p * ld_a + i]; }
double LtBench::b_at(int64_t p, int64_t j) const { return b_values[c.transpose_b ? p * ld_b + j : j * ld_b + p]; }

double LtBench::expected(int64_t i, int64_t j, double* before) const {
  const uint32_t e = c.epilogue;
  double x = 0;
  for (int64_t p = 0; p < c.k; ++p) x += a_at(i, p) * b_at(p, j);
  x = c.alpha * x * scale_a[0] * scale_b[0] + c.beta * c_values[j * ld_d + i];
  if (e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) x += bias[i];
  if (before) *before = x;
  if (e == CUBLASLT_EPILOGUE_GELU_AUX || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) x = gelu(x);
  if (e == CUBLASLT_EPILOGUE_DGELU) x *= gelu_gradient(aux[j * aux_ld + i]);
  return x;
}

void LtBench::expect_right(double absolute) const {
  double sums = static_cast<double>(c.k) * 6e-8 * scale_a[0] * scale_b[0] * 8;
  const bool writes_aux = c.epilogue == CUBLASLT_EPILOGUE_GELU_AUX || c.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  for (int64_t j = 0; j < c.n; ++j) {
    for (int64_t i = 0; i < c.m; ++i) {
      double before, want = expected(i, j, &before);
      ASSERT_NEAR(d_values[j * ld_d + i], want, sums + 2 * rounding(c.d) * std::abs(want) + absolute)
          << "i " << i << " j " << j << " seed " << c.seed;
      if (writes_aux) {
        ASSERT_NEAR(aux[j * aux_ld + i], before, sums + 2 * rounding(c.d) * std::abs(before) + 0.002);
      }
    }
  }
  expect_bias_gradient(sums * static_cast<double>(c.n) + 0.01);
}

void LtBench::expect_bias_gradient(double tolerance) const {
  bool of_a = c.epilogue == CUBLASLT_EPILOGUE_BGRADA, of_b = c.epilogue == CUBLASLT_EPILOGUE_BGRADB;
  for (int64_t i = 0; i < (of_a ? c.m : of_b ? c.n : 0); ++i) {
    double want = 0;
    for (int64_t p = 0; p < c.k; ++p) want += of_a ? a_at(i, p) : b_at(p, i);
    ASSERT_NEAR(bias[i], want, tolerance + rounding(bias.type()) * std::abs(want)) << i;
  }
}

}  // namespace emu::fakes
