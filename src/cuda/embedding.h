// Embeddings, patches of images, gather and scatter of rows on a GPU: the ops of ops/embedding.h. Indices are not
// checked here: data sets and prompts are validated against the vocabulary earlier.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/embedding.h"
namespace athanor::cuda {

void run(const EmbeddingFwd& op, void* scratch, cudaStream_t stream);
void run(const EmbeddingBwd& op, void* scratch, cudaStream_t stream);
void run(const Patchify& op, void* scratch, cudaStream_t stream);
void run(const GatherRows& op, void* scratch, cudaStream_t stream);
void run(const ScatterRows& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
