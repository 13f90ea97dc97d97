// The ops of ops/quantize.h on a GPU but the products (gemm/scaled.cc), and what products need of codes.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/scratch.h"
#include "ops/quantize_part.h"
namespace athanor::cuda {

void run(const Quantize& op, void* scratch, cudaStream_t stream);
void run(const LargestOfPart& op, void* scratch, cudaStream_t stream);
void run(const QuantizePart& op, void* scratch, cudaStream_t stream);
void run(const DelayedScales& op, void* scratch, cudaStream_t stream);

// Codes with a scale for each row, whose largest magnitude is found in the same reading (quantize_rows.cu); of_columns:
// none, or [columns] that become at least the largest magnitudes of columns, as bits. rows_fit(): whether it takes the
// op, by its sizes, its addresses and the GPU's shared memory.
bool rows_fit(const Quantize& op);
struct Rule;
void encode_rows(const Quantize& op, const Rule& rule, uint32_t* of_columns, cudaStream_t stream);

// amax = the largest magnitude of a matrix, as ops leave it that find it on their way (NormFwd::amax); none: nothing.
void find_largest(const Tensor& amax, const Tensor& matrix, cudaStream_t stream);

// A QuantizeStatistics that grows by what was counted; statistics: [4] f64.
void add_counts(const Tensor& statistics, const QuantizeCounts* counts, cudaStream_t stream);
}  // namespace athanor::cuda
