// cublasLtMatmul of the fake: pointers, alignment, aliasing and workspace are checked, then the product is queued.
#include <algorithm>

#include "compute.h"
#include "functions.h"

namespace emu::fakes {
namespace {

Verdict invalid(const std::string& why) { return {CUBLAS_STATUS_INVALID_VALUE, why}; }

bool misaligned(const void* pointer, uint32_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes != 0; }

struct Workspace {
  void* pointer;
  size_t bytes;
};

// The real library runs its heuristic with default alignment demands when no algorithm is given.
Verdict choose(const cublasLtMatmulAlgo_t* given, const Product& product, const MachineDevice& device, size_t workspace,
               Algorithm* out) {
  if (given != nullptr) {
    if (!unpack(*given, out)) return invalid("algo is damaged or of another library version");
    return check_algorithm(*out, product);
  }
  std::vector<Algorithm> found = candidates(product, {.workspace = workspace}, device);
  if (found.empty()) return {CUBLAS_STATUS_NOT_SUPPORTED, "the implicit heuristic found no algorithm"};
  *out = found.front();
  return {};
}

Verdict check_alignment(const Product& p, const Algorithm& algorithm, const Operands& o) {
  const Kernel& kernel = *find_kernel(algorithm.id);
  struct {
    const char* name;
    const void* pointer;
    const Matrix& matrix;
  } all[] = {{"A", o.a, p.a}, {"B", o.b, p.b}, {"C", o.c, p.c}, {"D", o.d, p.d}};
  for (const auto& one : all) {
    uint32_t demand = kernel_alignment(kernel, one.matrix.type);
    const Element type = one.matrix.type;
    if (one.pointer == nullptr) continue;  // C without beta
    if (misaligned(one.pointer, demand)) {
      return {CUBLAS_STATUS_NOT_SUPPORTED,
              text(one.name, ": algorithm ", algorithm.id, " needs ", demand, "-byte alignment")};
    }
    if (bytes_of(type, one.matrix.ld) % demand != 0) {
      return {CUBLAS_STATUS_NOT_SUPPORTED,
              text(one.name, ": algorithm ", algorithm.id, " needs strides in multiples of ", demand, " bytes")};
    }
  }
  if (p.epilogue.needs_bias_pointer() && misaligned(p.bias, static_cast<uint32_t>(element_bytes(p.bias_type)))) {
    return {CUBLAS_STATUS_NOT_SUPPORTED, "the bias vector is misaligned"};
  }
  return {};
}

// Only what is really touched: between columns may lie memory of others, or memory that nobody has written.
void add_matrix(const void* base, const Matrix& matrix, std::vector<MemoryRange>* ranges) {
  const auto size = [&](int64_t elements) { return static_cast<size_t>(bytes_of(matrix.type, elements)); };
  if (matrix.ld == matrix.rows) return ranges->push_back({base, size(matrix.cols * matrix.rows)});
  for (int64_t col = 0; col < matrix.cols; ++col)
    ranges->push_back({static_cast<const char*>(base) + size(col * matrix.ld), size(matrix.rows)});
}

void add_scale(const Scale& scale, int64_t outer, int64_t k, std::vector<MemoryRange>* reads) {
  auto blocks = static_cast<size_t>((k + 127) / 128);
  auto outers = static_cast<size_t>(outer);
  size_t count = 1;
  switch (scale.mode) {
    case ScaleMode::kNone:
      return;
    case ScaleMode::kScalar:
      break;
    case ScaleMode::kOuterVector:
      count = outers;
      break;
    case ScaleMode::kVector128:
      count = blocks * outers;
      break;
    case ScaleMode::kBlock128:
      count = (blocks + 3) / 4 * 4 * ((outers + 127) / 128);
      break;
    case ScaleMode::kVector16:
    case ScaleMode::kVector32: {
      int64_t terms = scale.mode == ScaleMode::kVector16 ? 16 : 32;
      return reads->push_back({scale.pointer, static_cast<size_t>(tiled_scales(outer, (k + terms - 1) / terms))});
    }
  }
  reads->push_back({scale.pointer, count * sizeof(float)});
}

// Everything but C, which may lie where D does.
LibraryOperation describe(const Product& p, const Algorithm& algorithm, const Operands& o) {
  LibraryOperation operation;
  operation.name = "cublasLtMatmul";
  add_matrix(o.a, p.a, &operation.reads);
  add_matrix(o.b, p.b, &operation.reads);
  add_matrix(o.d, p.d, &operation.writes);
  if (o.alpha) operation.reads.push_back({o.alpha, sizeof(float)});
  if (o.beta) operation.reads.push_back({o.beta, sizeof(float)});
  add_scale(p.scale_a, p.m, p.k, &operation.reads);
  add_scale(p.scale_b, p.n, p.k, &operation.reads);
  if (p.epilogue.needs_bias_pointer()) {
    const auto length = static_cast<size_t>(p.epilogue.gradient_b ? p.n : p.m);
    auto& ranges = p.epilogue.bias ? operation.reads : operation.writes;
    ranges.push_back({p.bias, length * element_bytes(p.bias_type)});
  }
  if (p.epilogue.needs_aux()) {
    const auto length = static_cast<size_t>((p.n - 1) * p.aux_ld + p.m);
    (p.epilogue.gelu ? operation.writes : operation.reads).push_back({p.aux, length * element_bytes(p.d.type)});
  }
  size_t workspace = workspace_bytes(algorithm, p);
  if (workspace > 0) operation.writes.push_back({o.workspace, workspace});
  return operation;
}

struct Extent {
  const char* begin;
  const char* end;
  bool written;
};

// Results must not lie over inputs or each other, except D over C with the same layout. (manual: in-place,
// out-of-place)
Verdict check_aliasing(const LibraryOperation& operation, const Operands& o, const Product& p, bool use_c) {
  std::vector<MemoryRange> reads = operation.reads;
  if (use_c && o.c == o.d && !(p.c == p.d)) return invalid("C and D are one buffer but have different layouts");
  if (use_c && o.c != o.d) add_matrix(o.c, p.c, &reads);
  std::vector<Extent> extents;
  auto add = [&](const MemoryRange& range, bool written) {
    const char* begin = static_cast<const char*>(range.begin);
    extents.push_back({begin, begin + range.bytes, written});
  };
  for (const MemoryRange& range : reads) add(range, false);
  for (const MemoryRange& range : operation.writes) add(range, true);
  std::sort(extents.begin(), extents.end(), [](const Extent& x, const Extent& y) { return x.begin < y.begin; });
  const char* read_end = nullptr;
  const char* written_end = nullptr;
  for (const Extent& extent : extents) {
    if (extent.begin < written_end) return invalid("a result (or the workspace) lies over another operand");
    if (extent.written && extent.begin < read_end) return invalid("a result (or the workspace) lies over an input");
    const char*& end = extent.written ? written_end : read_end;
    end = std::max(end, extent.end);
  }
  return {};
}

Verdict read_scalars(const Product& p, const void* alpha, const void* beta, Operands* o) {
  if (alpha == nullptr || beta == nullptr) return invalid("alpha or beta is NULL");
  if (p.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE) {
    o->alpha = alpha;
    o->beta = beta;
  } else {
    o->host_alpha = *static_cast<const float*>(alpha);
    o->host_beta = *static_cast<const float*>(beta);
  }
  return {};
}

Verdict check_workspace(const Workspace& workspace, size_t needed, int algorithm) {
  if (workspace.bytes < needed) {
    return invalid(text("algorithm ", algorithm, " needs ", needed, " bytes of workspace, has ", workspace.bytes));
  }
  if (needed > 0 && workspace.pointer == nullptr) return invalid("the workspace is NULL");
  if (misaligned(workspace.pointer, 16)) return invalid("the workspace is not 16-byte aligned");
  return {};
}

}  // namespace

namespace lt {

cublasStatus_t matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                      cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                      const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                      const cublasLtMatmulAlgo_t* given, void* workspace, size_t bytes, cudaStream_t stream) {
  FakeCublasLt& fake = Installed<FakeCublasLt>::get();
  cublasStatus_t status;
  if (planned("cublasLtMatmul", &status)) return status;
  MachineDevice device;
  Product product;
  Algorithm algorithm;
  Operands operands{.a = a, .b = b, .c = c, .d = d, .workspace = workspace};
  Verdict verdict = read_call(handle, desc, {a_layout, b_layout, c_layout, d_layout}, &device, &product);
  if (verdict.ok() && (!a || !b || !d)) verdict = invalid("A, B or D is NULL");
  if (verdict.ok()) verdict = read_scalars(product, alpha, beta, &operands);
  bool use_c = operands.beta != nullptr || operands.host_beta != 0;
  if (verdict.ok() && use_c && !c) verdict = invalid("C is NULL but beta is not 0");
  if (verdict.ok()) verdict = choose(given, product, device, bytes, &algorithm);
  if (verdict.ok()) verdict = check_alignment(product, algorithm, operands);
  if (verdict.ok()) verdict = check_workspace({workspace, bytes}, workspace_bytes(algorithm, product), algorithm.id);
  LibraryOperation operation;
  if (verdict.ok()) {
    operation = describe(product, algorithm, operands);
    verdict = check_aliasing(operation, operands, product, use_c);
    if (use_c) add_matrix(c, product.c, &operation.reads);
  }
  int stream_device = fake.machine().device_of_stream(stream);
  if (verdict.ok() && stream_device != reinterpret_cast<const Handle*>(handle)->device) {
    verdict = invalid("the stream belongs to another device than the handle");
  }
  if (!verdict.ok()) return fake.refuse(verdict.status, text("cublasLtMatmul: ", verdict.why));
  if (fake.time()) operation.microseconds = fake.time()(pack(algorithm), product.epilogue_code);
  operation.compute = [product, algorithm, operands] { compute_product(product, algorithm, operands); };
  cudaError_t error = fake.machine().enqueue(stream, std::move(operation));
  if (error == cudaSuccess) return CUBLAS_STATUS_SUCCESS;
  return fake.refuse(CUBLAS_STATUS_EXECUTION_FAILED, text("cublasLtMatmul: the stream refuses, error ", int(error)));
}

}  // namespace lt
}  // namespace emu::fakes
