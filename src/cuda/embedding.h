// Embeddings and row moves on a GPU: the ops of ops/embedding.h. Indices out of range are the caller's fault: data sets
// and prompts are checked against the vocabulary before they get here.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/embedding.h"
namespace athanor::cuda {

void run(const EmbeddingFwd& op, void* scratch, cudaStream_t stream);
void run(const EmbeddingBwd& op, void* scratch, cudaStream_t stream);
size_t scratch(const EmbeddingBwd& op);
void run(const GatherRows& op, void* scratch, cudaStream_t stream);
void run(const ScatterRows& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
