// See cublaslt_bench.h.
#include "cublaslt_bench.h"

#include <cmath>

namespace emu::fakes {
namespace {

bool has(uint32_t epilogue, uint32_t bits) { return (epilogue & bits) == bits; }
bool is_aux_output(uint32_t e) { return (e & 128) && !(e & (8 | 64)); }
bool is_relu(uint32_t e) { return (e & 2) || (e & 8); }

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_gradient(double x) {  // by difference: independent of the fake's formula
  double h = 1e-5;
  return (gelu(x + h) - gelu(x - h)) / (2 * h);
}

}  // namespace

cudaDataType_t cuda_type(Element type) {
  switch (type) {
    case Element::kF64:
      return CUDA_R_64F;
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
  ld_a = (c.row_a ? cols_a : rows_a) + c.pad;
  ld_b = (c.row_b ? cols_b : rows_b) + c.pad;
  ld_d = (c.row_d ? c.n : c.m) + c.pad;
  stride_a = ld_a * (c.row_a ? rows_a : cols_a);
  stride_b = ld_b * (c.row_b ? rows_b : cols_b);
  stride_d = ld_d * (c.row_d ? c.m : c.n);
  a_values = Values::random(c.ab, stride_a * c.batch, c.seed * 7 + 1);
  b_values = Values::random(c.b_type(), stride_b * c.batch, c.seed * 7 + 2);
  c_values = Values::random(c.c_type(), stride_d * c.batch, c.seed * 7 + 3);
  d_values = Values(c.d, stride_d * c.batch);
  for (int64_t i = 0; c.in_place && i < d_values.size(); ++i) d_values.set(i, c_values[i]);
  Element bias_type = c.d;
  if (is_fp8(c.ab) && is_fp8(c.d)) bias_type = c.c_type();
  if (is_fp8(c.ab) && c.d == Element::kF32) bias_type = Element::kBf16;
  int64_t bias_length = c.epilogue == CUBLASLT_EPILOGUE_BGRADB ? c.n : c.m;
  bias = Values::random(bias_type, bias_length * c.batch, c.seed * 7 + 4);
  aux_ld = (c.m + 127) / 128 * 128;
  aux = Values::random(is_relu(c.epilogue) ? Element::kU8 : c.d, aux_ld * c.n * c.batch, c.seed * 7 + 5);
  if (c.epilogue & 8) {  // a random mask
    std::mt19937 engine(static_cast<unsigned>(c.seed));
    for (int64_t i = 0; i < aux.size(); ++i) aux.set(i, static_cast<double>(engine() % 256));
  }
  workspace = Values(Element::kU8, static_cast<int64_t>(workspace_bytes));
  d_pointer = d_values.data();
  a_pointer = a_values.data();
}

void LtBench::make_descriptors() {
  EXPECT_EQ(table_.cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  auto layout = [&](cublasLtMatrixLayout_t* out, Element type, int64_t rows, int64_t cols, int64_t ld, bool row,
                    int64_t stride) {
    EXPECT_EQ(table_.cublasLtMatrixLayoutCreate(out, cuda_type(type), static_cast<uint64_t>(rows),
                                                static_cast<uint64_t>(cols), ld),
              CUBLAS_STATUS_SUCCESS);
    if (row) set(table_, *out, CUBLASLT_MATRIX_LAYOUT_ORDER, int32_t{CUBLASLT_ORDER_ROW});
    set(table_, *out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(c.batch));
    set(table_, *out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
  };
  layout(&a_layout, c.ab, c.transpose_a ? c.k : c.m, c.transpose_a ? c.m : c.k, ld_a, c.row_a, stride_a);
  layout(&b_layout, c.b_type(), c.transpose_b ? c.n : c.k, c.transpose_b ? c.k : c.n, ld_b, c.row_b, stride_b);
  layout(&c_layout, c.c_type(), c.m, c.n, ld_d, c.row_d, stride_d);
  layout(&d_layout, c.d, c.m, c.n, ld_d, c.row_d, stride_d);
  cudaDataType_t scale = c.d == Element::kF64 ? CUDA_R_64F : CUDA_R_32F;
  EXPECT_EQ(table_.cublasLtMatmulDescCreate(&desc, c.compute, scale), CUBLAS_STATUS_SUCCESS);
  set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t{c.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N});
  set(CUBLASLT_MATMUL_DESC_TRANSB, int32_t{c.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N});
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, c.epilogue);
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.data());
  set(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, bias.size() / c.batch);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux.data());
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_ld);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, aux_ld * c.n);
  if (c.device_scalars) set(CUBLASLT_MATMUL_DESC_POINTER_MODE, int32_t{CUBLASLT_POINTER_MODE_DEVICE});
  if (!c.scales) return;
  scale_a[0] = 0.5f;
  scale_b[0] = 3.f;
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale_a.data());
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale_b.data());
  if (!is_fp8(c.d)) return;
  scale_d[0] = 4.f;
  set(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, scale_d.data());
  set(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, amax.data());
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
  scalars64 = {c.alpha, c.beta};
  bool wide = c.d == Element::kF64;
  const void* alpha = wide ? static_cast<const void*>(&scalars64[0]) : &scalars[0];
  const void* beta = wide ? static_cast<const void*>(&scalars64[1]) : &scalars[1];
  cublasStatus_t status = table_.cublasLtMatmul(handle, desc, alpha, a_pointer, a_layout, b_values.data(), b_layout,
                                                beta, c.in_place ? d_pointer : c_values.data(), c_layout, d_pointer,
                                                d_layout, algorithm, workspace.data(), workspace_bytes, stream);
  if (!c.device_scalars) scalars = {777.f, 777.f};  // host values are read at the call
  EXPECT_TRUE(machine_.synchronize(stream));
  return status;
}

int64_t LtBench::index_d(int64_t i, int64_t j, int64_t batch) const {
  return batch * stride_d + (c.row_d ? i * ld_d + j : j * ld_d + i);
}

double LtBench::a_at(int64_t i, int64_t p, int64_t batch) const {
  int64_t row = c.transpose_a ? p : i, col = c.transpose_a ? i : p;
  return a_values[batch * stride_a + (c.row_a ? row * ld_a + col : col * ld_a + row)];
}

double LtBench::b_at(int64_t p, int64_t j, int64_t batch) const {
  int64_t row = c.transpose_b ? j : p, col = c.transpose_b ? p : j;
  return b_values[batch * stride_b + (c.row_b ? row * ld_b + col : col * ld_b + row)];
}

bool LtBench::aux_bit(int64_t i, int64_t j, int64_t batch) const {
  int64_t bit = batch * aux_ld * c.n + j * aux_ld + i;
  return static_cast<int>(aux[bit / 8]) >> (bit % 8) & 1;
}

double LtBench::expected(int64_t i, int64_t j, int64_t batch, double* before) const {
  double x = 0;
  for (int64_t p = 0; p < c.k; ++p) x += a_at(i, p, batch) * b_at(p, j, batch);
  x = c.alpha * x * scale_a[0] * scale_b[0] + c.beta * c_values[index_d(i, j, batch)];
  if (has(c.epilogue, CUBLASLT_EPILOGUE_BIAS)) x += bias[batch * c.m + i];
  if (before) *before = x;
  if (has(c.epilogue, CUBLASLT_EPILOGUE_RELU)) x = std::max(x, 0.0);
  if (has(c.epilogue, CUBLASLT_EPILOGUE_GELU)) x = gelu(x);
  if (c.epilogue & 8) x = aux_bit(i, j, batch) ? x : 0;
  if (c.epilogue & 64) x *= gelu_gradient(aux[batch * aux_ld * c.n + j * aux_ld + i]);
  return x;
}

void LtBench::expect_right(double absolute) const {
  double sums = static_cast<double>(c.k) * 6e-8 * scale_a[0] * scale_b[0] * 8;
  double largest = 0;
  for (int64_t batch = 0; batch < c.batch; ++batch) {
    for (int64_t j = 0; j < c.n; ++j) {
      for (int64_t i = 0; i < c.m; ++i) {
        double before, want = expected(i, j, batch, &before);
        double tolerance = sums + 2 * rounding(c.d) * std::abs(want) + absolute;
        if (c.d == Element::kE4m3 || c.d == Element::kE5m2) tolerance += 0.002;  // subnormals
        double got = d_values[index_d(i, j, batch)] / scale_d[0];
        ASSERT_NEAR(got, want, tolerance) << "i " << i << " j " << j << " batch " << batch << " seed " << c.seed;
        largest = std::max(largest, std::abs(want));
        int64_t at = batch * aux_ld * c.n + j * aux_ld + i;
        if (is_aux_output(c.epilogue) && is_relu(c.epilogue) && std::abs(before) > tolerance) {
          ASSERT_EQ(aux_bit(i, j, batch), before > 0);
        } else if (is_aux_output(c.epilogue) && !is_relu(c.epilogue)) {
          ASSERT_NEAR(aux[at], before, sums + 2 * rounding(c.d) * std::abs(before) + 0.002);
        }
      }
    }
  }
  if (c.scales && is_fp8(c.d)) {
    EXPECT_NEAR(amax[0], largest, 1e-3);
  }
  expect_bias_gradient(sums * static_cast<double>(c.n) + 0.01);
}

void LtBench::expect_bias_gradient(double tolerance) const {
  for (int64_t batch = 0; batch < c.batch; ++batch) {
    if (c.epilogue & 16) {
      for (int64_t i = 0; i < c.m; ++i) {
        double want = 0;
        for (int64_t j = 0; j < c.n; ++j) want += expected(i, j, batch);
        ASSERT_NEAR(bias[batch * c.m + i], want, tolerance + rounding(bias.type()) * std::abs(want)) << i;
      }
    }
    bool of_a = c.epilogue == CUBLASLT_EPILOGUE_BGRADA, of_b = c.epilogue == CUBLASLT_EPILOGUE_BGRADB;
    int64_t length = of_a ? c.m : of_b ? c.n : 0;
    for (int64_t i = 0; i < length; ++i) {
      double want = 0;
      for (int64_t p = 0; p < c.k; ++p) want += of_a ? a_at(i, p, batch) : b_at(p, i, batch);
      ASSERT_NEAR(bias[batch * length + i], want, tolerance + rounding(bias.type()) * std::abs(want)) << i;
    }
  }
}

}  // namespace emu::fakes
