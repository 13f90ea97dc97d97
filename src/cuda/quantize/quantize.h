// Helpers that several sources of quantizing kernels use.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/scratch.h"
#include "ops/quantize_part.h"
namespace athanor::cuda {

// Quantizes with one scale per row, computing each row's amax in the same pass over x (quantize_rows.cu). of_columns:
// null, or [columns] float bits, raised to the amax of each column. rows_fit(): whether encode_rows() supports the op,
// by its sizes, its addresses and the GPU's shared memory.
bool rows_fit(const Quantize& op);
struct Rule;
void encode_rows(const Quantize& op, const Rule& rule, uint32_t* of_columns, cudaStream_t stream);

// Stores the amax of a matrix in the format of ops that return it (NormFwd::amax); does nothing if amax is empty.
void find_amax(const Tensor& amax, const Tensor& matrix, cudaStream_t stream);

// Adds the counts to a QuantizeStatistics; statistics: [4] f64.
void add_counts(const Tensor& statistics, const QuantizeCounts* counts, cudaStream_t stream);
}  // namespace athanor::cuda
