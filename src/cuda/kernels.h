// The ops that this folder's kernels compute: run(op, scratch, stream) launches; scratch(op) is the temporary memory in
// bytes (scratch.h). Products are computed by cuBLASLt, attention also by cuDNN; see cuda_ops.h.
#pragma once
#include "cuda/adafactor.h"
#include "cuda/attention/attention.h"
#include "cuda/basic.h"
#include "cuda/column_sum.h"
#include "cuda/embedding.h"
#include "cuda/lamb.h"
#include "cuda/loss.h"
#include "cuda/mlp.h"
#include "cuda/muon.h"
#include "cuda/norm.h"
#include "cuda/optimizer.h"
#include "cuda/output_scaling.h"
#include "cuda/qk_norm.h"
#include "cuda/quantize.h"
#include "cuda/rope.h"
#include "cuda/scratch.h"
