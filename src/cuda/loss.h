// Softmax cross-entropy on a GPU, over a whole vocabulary or a shard of one: the ops of ops/loss.h, ops/top_logits.h
// and ops/source_losses.h.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/loss.h"
#include "ops/source_losses.h"
#include "ops/top_logits.h"
namespace athanor::cuda {

void run(const CrossEntropy& op, void* scratch, cudaStream_t stream);
void run(const DistilledCrossEntropy& op, void* scratch, cudaStream_t stream);
void run(const RowMax& op, void* scratch, cudaStream_t stream);
void run(const LogitSums& op, void* scratch, cudaStream_t stream);
void run(const DistillSums& op, void* scratch, cudaStream_t stream);
void run(const SourceLosses& op, void* scratch, cudaStream_t stream);
void run(const TopLogits& op, void* scratch, cudaStream_t stream);
void run(const PickLogits& op, void* scratch, cudaStream_t stream);
void run(const CachedDistilledCrossEntropy& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
