// Describes one matrix product to a cuBLASLt table and runs it: what a backend would do, with every value a field.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "libraries/cublaslt/fake_cublaslt.h"
#include "libraries/simple_machine.h"
#include "random_values.h"

namespace emu::fakes {

cudaDataType_t cuda_type(Element type);

struct LtCase {
  int64_t m = 32, n = 16, k = 48;
  Element ab = Element::kBf16, b = Element::kNone, c = Element::kNone, d = Element::kBf16;  // kNone: as A, as D
  bool transpose_a = false, transpose_b = false;
  int64_t pad = 0;  // added to every leading dimension
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  double alpha = 1, beta = 0;
  bool in_place = false;  // C is D
  bool device_scalars = false;
  bool scales = false;  // FP8: of A and B
  uint64_t seed = 1;

  Element b_type() const { return b == Element::kNone ? ab : b; }
  Element c_type() const { return c == Element::kNone ? d : c; }
};

class LtBench {
 public:
  LtBench(SimpleMachine& machine, const athanor::CublasLtTable& table, const LtCase& lt_case);
  ~LtBench();
  LtBench(const LtBench&) = delete;
  LtBench& operator=(const LtBench&) = delete;

  template <class T>
  cublasStatus_t set(cublasLtMatmulDescAttributes_t name, T value) {
    return table_.cublasLtMatmulDescSetAttribute(desc, name, &value, sizeof value);
  }
  // Makes one of the layouts again.
  void remake(cublasLtMatrixLayout_t& layout, Element type, int64_t rows, int64_t cols, int64_t ld);

  std::vector<cublasLtMatmulHeuristicResult_t> heuristic(size_t workspace = 1 << 20, int count = 32,
                                                         cublasStatus_t* status = nullptr);
  cublasStatus_t check(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulHeuristicResult_t* result);
  // With the first algorithm of the heuristic unless one is given; waits for the stream.
  cublasStatus_t run(const cublasLtMatmulAlgo_t* algorithm = nullptr);

  // Compares D, bias gradient and aux with sums in double.
  // absolute: what roundings of partial sums may add.
  void expect_right(double absolute = 1e-6) const;
  double expected(int64_t i, int64_t j, double* before_activation = nullptr) const;

  LtCase c;
  Values a_values, b_values, c_values, d_values, bias, aux, workspace;
  std::optional<cublasLtMatmulAlgo_t> none;
  std::vector<float> scale_a{1.f}, scale_b{1.f}, scalars{0.f, 0.f};
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a_layout = nullptr, b_layout = nullptr, c_layout = nullptr, d_layout = nullptr;
  size_t workspace_bytes = 1 << 20;
  void* d_pointer = nullptr;  // defaults to d_values
  const void* a_pointer = nullptr;
  cudaStream_t stream = nullptr;
  int64_t ld_a = 0, ld_b = 0, ld_d = 0, aux_ld = 0;

 private:
  double a_at(int64_t i, int64_t p) const;
  double b_at(int64_t p, int64_t j) const;
  void make_matrices();
  void make_descriptors();
  void expect_bias_gradient(double tolerance) const;

  SimpleMachine& machine_;
  athanor::CublasLtTable table_;
};

}  // namespace emu::fakes
