#include "cuda/gemm/gemm.h"

#include <sstream>

#include "cuda/check.h"
#include "cuda/column_sum.h"
#include "cuda/gemm/wgmma_gemm.h"
#include "cuda/kernels.h"
namespace athanor::cuda {
namespace {

constexpr int kAnswers = 8;  // heuristic results to search for a deterministic one

// Throws unless cublasLtMatmul() supports the types. [cuBLAS manual, cublasLtMatmul(), table of types]
void check_types(const Gemm& op) {
  if (op.a.dtype != op.b.dtype)
    throw Error(cat("gemm: a is ", op.a.dtype, " and b is ", op.b.dtype, "; on a GPU they need one type"));
  if (op.d.dtype != op.a.dtype && op.d.dtype != DType::f32)
    throw Error(cat("gemm: GEMMs of ", op.a.dtype, " give ", op.a.dtype, " or f32 on a GPU, not ", op.d.dtype));
  if (op.bias && op.bias.dtype != op.d.dtype)
    throw Error(cat("gemm: the bias is ", op.bias.dtype, " and d is ", op.d.dtype, "; on a GPU they need one type"));
}

// A GEMM with k = 0: d = 0, or unchanged if it accumulates.
void empty_gemm(const Gemm& op, cudaStream_t stream) {
  if (op.accumulate) return;
  CHECK(!op.bias, "gemm: a bias without a GEMM (k = 0)");
  const size_t size = size_of(op.d.dtype);
  CUDA_CHECK(cudaMemset2DAsync(op.d.data, static_cast<size_t>(op.d.stride()) * size, 0,
                               static_cast<size_t>(op.n()) * size, static_cast<size_t>(op.m()), stream));
}

cudaDeviceProp current_device() {
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  return properties;
}

GemmKey make_key(const CublasLtTable& lt, size_t workspace_bytes, const cudaDeviceProp& properties) {
  GemmKey key{
      .gpu = properties.name, .driver = 0, .cublaslt = lt.cublasLtGetVersion(), .workspace_bytes = workspace_bytes};
  CUDA_CHECK(cudaDriverGetVersion(&key.driver));
  return key;
}

// The library's A is our b, and its rows are our columns, so its bias runs along our columns.
uint32_t epilogue_of(const GemmProblem& p) {
  switch (p.epilogue) {
    case Epilogue::none:
    case Epilogue::add:  // the residual is passed as C
      return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::gelu:
      return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::gelu_gradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::sum_a:
      return CUBLASLT_EPILOGUE_BGRADB;
    case Epilogue::sum_b:
      return CUBLASLT_EPILOGUE_BGRADA;
    case Epilogue::swiglu:
    case Epilogue::swiglu_gradient:
    case Epilogue::rope:
      break;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// [cublasLt.h, cublasLtMatmulMatrixScale_t]
int32_t mode_of(ScaleLayout layout) {
  switch (layout) {
    case ScaleLayout::rows:
      return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    case ScaleLayout::blocks:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case ScaleLayout::squares:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    case ScaleLayout::tiles32:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    case ScaleLayout::tiles16:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
    default:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  }
}

const char* remedy(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "install NVIDIA's driver 580 or later and see that nvidia-smi shows the GPU";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "memory is exhausted; use a smaller micro_batch_size";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "the GPU is too old for this type; use another precision";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the library has no algorithm for it; install a newer cuBLAS of major version 13";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the GPU failed; an earlier kernel may be the cause: set CUDA_LAUNCH_BLOCKING=1 and look at `dmesg`";
    default:
      return "the call is wrong or the library damaged; please report it";
  }
}

}  // namespace

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    case DType::f8_e4m3:
      return CUDA_R_8F_E4M3;
    case DType::f8_e5m2:
      return CUDA_R_8F_E5M2;
    case DType::f4_e2m1:
      return CUDA_R_4F_E2M1;
    default:
      throw Error(cat("gemm: ", dtype, " matrices have no GEMM on a GPU; expected f32, bf16 or f16"));
  }
}

cublasComputeType_t compute_type_of(const GemmProblem& p) {
  return p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

bool can_fuse(const GemmProblem& p) {
  switch (p.epilogue) {
    case Epilogue::none:
    case Epilogue::add:
      return true;
    case Epilogue::gelu:
    case Epilogue::gelu_gradient:
      // The library does not document the accuracy of its GELU, so it is used for 16-bit results only. Its auxiliary
      // matrix needs rows of a multiple of 8 elements. [CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD]
      return p.d != DType::f32 && p.n % 8 == 0 && p.align_d == kMostAlign;
    case Epilogue::sum_a:
    case Epilogue::sum_b:
      // The library's bias gradients have d's type, and ours are f32. With TF32 it would sum rounded values.
      // [CUBLASLT_MATMUL_DESC_BIAS_POINTER]
      return p.d == DType::f32 && !p.tf32;
    case Epilogue::swiglu:
    case Epilogue::swiglu_gradient:
    case Epilogue::rope:
      break;
  }
  return false;
}

GemmRunner::GemmRunner(const CublasLtTable& table, Options options)
    : lt_(table), options_(options), handle_(nullptr, table.cublasLtDestroy) {
  cublasLtHandle_t handle = nullptr;
  const cublasStatus_t status = lt_.cublasLtCreate(&handle);
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(cat("cuBLASLt: cannot start: ", lt_.cublasLtGetStatusName(status), ": ", remedy(status)));
  handle_.reset(handle);
  const cudaDeviceProp properties = current_device();
  key_ = make_key(lt_, options_.workspace_bytes, properties);
  capability_ = properties.major * 10 + properties.minor;
}

void GemmRunner::require(cublasStatus_t status, const char* what, const GemmProblem& p) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(
      cat("cuBLASLt: ", what, ": ", lt_.cublasLtGetStatusName(status), " for the GEMM ", p, ": ", remedy(status)));
}

GemmProblem problem_of(const LibraryGemm& gemm) {
  GemmProblem p = problem_of(gemm.op);
  p.scales_a = gemm.a_layout, p.scales_b = gemm.b_layout;
  p.fast = gemm.fast;
  return p;
}

bool GemmRunner::fused(const LibraryGemm& gemm) {
  if (gemm.op.d.numel() == 0 || gemm.op.k() == 0) return false;
  return !plan_of(problem_of(gemm)).in_parts;
}

void GemmRunner::run_in_parts(const LibraryGemm& gemm, void* scratch, cudaStream_t stream) {
  in_parts(gemm.op, [&]<class Part>(const Part& part) {
    if constexpr (std::is_same_v<Part, Gemm>) {
      LibraryGemm alone = gemm;
      alone.op = part;
      run(alone, scratch, stream);
    } else {
      cuda::run(part, scratch, stream);
    }
  });
}

void GemmRunner::run(const LibraryGemm& gemm, void* scratch, cudaStream_t stream) {
  const Gemm& op = gemm.op;
  if (op.epilogue != Epilogue::none && !fused(gemm)) return run_in_parts(gemm, scratch, stream);
  if (op.d.numel() == 0) return;
  if (op.k() == 0) return empty_gemm(op, stream);
  if (!gemm.quantized()) check_types(op);
  const GemmProblem p = problem_of(gemm);
  require(launch(gemm, plan_of(p), scratch, stream), "a launch failed", p);
}

// Arguments in host memory are read before the call returns, so a captured launch has their values.
cublasStatus_t GemmRunner::launch(const LibraryGemm& gemm, const Plan& plan, void* scratch, cudaStream_t stream) const {
  const Gemm& op = gemm.op;
  if (plan.own) {
    run_by_wgmma(op, stream);
    return CUBLAS_STATUS_SUCCESS;
  }
  float* sums = reinterpret_cast<float*>(static_cast<char*>(scratch) + options_.workspace_bytes);
  const auto set = [&](cublasLtMatmulDescAttributes_t name, const void* pointer) {
    return lt_.cublasLtMatmulDescSetAttribute(plan.desc.get(), name, &pointer, sizeof pointer);
  };
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (op.bias || op.sums()) status = set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, op.sums() ? sums : op.bias.data);
  if (status == CUBLAS_STATUS_SUCCESS && (op.epilogue == Epilogue::gelu || op.epilogue == Epilogue::gelu_gradient))
    status = set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, op.aux.data);
  if (gemm.quantized() && status == CUBLAS_STATUS_SUCCESS)
    status = set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, gemm.b_scales);
  if (gemm.quantized() && status == CUBLAS_STATUS_SUCCESS)
    status = set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, gemm.a_scales);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const bool residual = op.epilogue == Epilogue::add;
  const bool adds = op.accumulate || residual;
  const GemmScalars plain{1, adds ? 1.f : 0.f};
  if (gemm.scalars) multiply_scales(gemm.scalars, gemm.a_global, gemm.b_global, adds, stream);
  const GemmScalars* scalars = gemm.scalars ? gemm.scalars : &plain;
  status = lt_.cublasLtMatmul(handle_.get(), plan.desc.get(), &scalars->alpha, op.b.data, plan.a.get(), op.a.data,
                              plan.b.get(), &scalars->beta, residual ? op.aux.data : op.d.data, plan.d.get(), op.d.data,
                              plan.d.get(), &plan.algorithm, scratch, options_.workspace_bytes, stream);
  if (status == CUBLAS_STATUS_SUCCESS && op.sums())
    add_partial_sums({op.aux, sums, 1, op.aux.numel(), op.aux.numel()}, stream);
  return status;
}

GemmRunner::Plan GemmRunner::describe(const GemmProblem& p) const {
  Plan plan{.desc = {nullptr, lt_.cublasLtMatmulDescDestroy},
            .a = {nullptr, lt_.cublasLtMatrixLayoutDestroy},
            .b = {nullptr, lt_.cublasLtMatrixLayoutDestroy},
            .d = {nullptr, lt_.cublasLtMatrixLayoutDestroy}};
  const char* what = "a GEMM cannot be described";
  cublasLtMatmulDesc_t desc = nullptr;
  require(lt_.cublasLtMatmulDescCreate(&desc, compute_type_of(p), CUDA_R_32F), what, p);
  plan.desc.reset(desc);
  const auto set = [&](cublasLtMatmulDescAttributes_t name, auto value) {
    require(lt_.cublasLtMatmulDescSetAttribute(desc, name, &value, sizeof value), what, p);
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t{p.tb ? CUBLAS_OP_T : CUBLAS_OP_N});
  set(CUBLASLT_MATMUL_DESC_TRANSB, int32_t{p.ta ? CUBLAS_OP_T : CUBLAS_OP_N});
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p));
  // The heuristic reads the alignment from the addresses; launches set the real ones.
  const auto aligned = [](int bytes) { return reinterpret_cast<void*>(uintptr_t(bytes)); };  // NOLINT
  if (p.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned(p.align_d));
  if (p.epilogue == Epilogue::sum_a || p.epilogue == Epilogue::sum_b)
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned(kMostAlign));
  if (p.epilogue == Epilogue::gelu || p.epilogue == Epilogue::gelu_gradient) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aligned(kMostAlign));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.n);
  }
  if (p.scales_a != ScaleLayout::none) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode_of(p.scales_b));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode_of(p.scales_a));
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, aligned(kMostAlign));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, aligned(kMostAlign));
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{p.fast});
    if (p.scales_a == ScaleLayout::tiles16)
      set(CUBLASLT_MATMUL_DESC_POINTER_MODE, int32_t{CUBLASLT_POINTER_MODE_DEVICE});
  }
  // Describes our row-major matrix as a column-major one.
  const auto layout = [&](Layout& out, DType dtype, int64_t rows, int64_t cols, int64_t stride) {
    cublasLtMatrixLayout_t made = nullptr;
    require(lt_.cublasLtMatrixLayoutCreate(&made, type_of(dtype), static_cast<uint64_t>(cols),
                                           static_cast<uint64_t>(rows), stride),
            what, p);
    out.reset(made);
  };
  layout(plan.a, p.b, p.tb ? p.n : p.k, p.tb ? p.k : p.n, p.stride_b);
  layout(plan.b, p.a, p.ta ? p.k : p.m, p.ta ? p.m : p.k, p.stride_a);
  layout(plan.d, p.d, p.m, p.n, p.stride_d);
  return plan;
}

// Whether partial sums over k are added in f32 and in a fixed order, and not in d, in order of arrival, or in 16 bits.
// The heuristic is restricted to such algorithms; if the attribute cannot be read, its result is trusted.
bool GemmRunner::deterministic(const cublasLtMatmulAlgo_t& algorithm) const {
  uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  (void)lt_.cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                                 sizeof reduction, nullptr);
  return (reduction & ~uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}) == 0;
}

// The heuristic's usable results, in order of their expected speed.
std::pair<GemmRunner::Answers, cublasStatus_t> GemmRunner::answers(const GemmProblem& p, const Plan& plan,
                                                                   int most) const {
  const char* what = "no algorithm can be chosen";
  cublasLtMatmulPreference_t made = nullptr;
  require(lt_.cublasLtMatmulPreferenceCreate(&made), what, p);
  const Owned<cublasLtMatmulPreference_t> preference(made, lt_.cublasLtMatmulPreferenceDestroy);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
    require(lt_.cublasLtMatmulPreferenceSetAttribute(made, name, &value, sizeof value), what, p);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{options_.workspace_bytes});
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(p.align_b));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(p.align_a));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(p.align_d));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(p.align_d));
  Answers answers(static_cast<size_t>(most));
  int count = 0;
  const cublasStatus_t status =
      lt_.cublasLtMatmulAlgoGetHeuristic(handle_.get(), plan.desc.get(), plan.a.get(), plan.b.get(), plan.d.get(),
                                         plan.d.get(), made, most, answers.data(), &count);
  if (status != CUBLAS_STATUS_SUCCESS) return {Answers{}, status};
  answers.resize(static_cast<size_t>(count));
  std::erase_if(answers, [&](const cublasLtMatmulHeuristicResult_t& answer) {
    return answer.state != CUBLAS_STATUS_SUCCESS || answer.workspaceSize > options_.workspace_bytes ||
           !deterministic(answer.algo);
  });
  return {std::move(answers), status};
}

// Empty if the library cannot compute the epilogue; throws if it cannot compute a GEMM without epilogue.
GemmRunner::Answers GemmRunner::ask(const GemmProblem& p, const Plan& plan, int most) const {
  auto [answers, status] = this->answers(p, plan, most);
  if (p.epilogue != Epilogue::none) return std::move(answers);
  require(status, "no algorithm can be chosen", p);
  if (answers.empty()) require(CUBLAS_STATUS_NOT_SUPPORTED, "no deterministic algorithm is offered", p);
  return std::move(answers);
}

const GemmRunner::Plan& GemmRunner::plan_of(const GemmProblem& p) {
  if (const auto found = plans_.find(p); found != plans_.end()) return found->second;
  const std::string words = cat(p);
  const auto chosen = choices_.find(words);
  Plan plan;
  plan.in_parts = chosen == choices_.end() ? p.epilogue != Epilogue::none : chosen->second.in_parts;
  plan.own = chosen != choices_.end() && chosen->second.own;
  if (!plan.in_parts && !plan.own) plan = describe(p);
  if (chosen != choices_.end()) {
    plan.algorithm = chosen->second.algorithm;
    check_imported(p, plan);
  } else {
    if (!plan.in_parts) plan.algorithm = ask(p, plan, kAnswers).front().algo;
    choices_[words] = {.algorithm = plan.algorithm, .in_parts = plan.in_parts};
  }
  return plans_.emplace(p, std::move(plan)).first->second;
}

GemmRunner::Verdict GemmRunner::check(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result{};
  Verdict verdict{.status = lt_.cublasLtMatmulAlgoCheck(handle_.get(), plan.desc.get(), plan.a.get(), plan.b.get(),
                                                        plan.d.get(), plan.d.get(), &algorithm, &result)};
  if (verdict.status != CUBLAS_STATUS_SUCCESS) return verdict;
  verdict.usable = result.workspaceSize <= options_.workspace_bytes && deterministic(algorithm);
  return verdict;
}

// Checks the algorithm, since it was read from a file.
void GemmRunner::check_imported(const GemmProblem& p, const Plan& plan) const {
  if (plan.in_parts && p.epilogue != Epilogue::none) return;
  if (plan.own && wgmma_takes(p, capability_)) return;
  const Verdict verdict = !plan.in_parts && !plan.own && can_fuse(p) ? check(plan, plan.algorithm) : Verdict{};
  if (!verdict.usable)
    throw Error(cat(
        "choices of GEMMs: the algorithm stored for ", p, " is not usable (", lt_.cublasLtGetStatusName(verdict.status),
        "); delete the file to autotune the algorithms again, after which results may differ in the last bits"));
}

std::string GemmRunner::import_choices(const std::string& text) {
  const GemmFile file = parse_gemm_choices(text);
  if (std::string why = difference(file.key, key_); !why.empty()) return why;
  for (const auto& [problem, choice] : file.choices) choices_[problem] = choice;
  plans_.clear();
  return "";
}

}  // namespace athanor::cuda
