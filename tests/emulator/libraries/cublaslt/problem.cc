// From descriptors to a Product; the rules are those of cublasLt.h and of "cublasLtMatmul()" in NVIDIA's manual, 13.0.
#include "problem.h"

#include "../fake_library.h"

namespace emu::fakes {
namespace {

Verdict invalid(const std::string& why) { return {CUBLAS_STATUS_INVALID_VALUE, why}; }
Verdict unsupported(const std::string& why) { return {CUBLAS_STATUS_NOT_SUPPORTED, why}; }

Verdict read_layout(const char* name, cublasLtMatrixLayout_t handle, Matrix* out) {
  const MatrixLayout& layout = as_layout(handle);
  *out = {.type = element_of(layout.type), .rows = layout.rows, .cols = layout.cols, .ld = layout.ld};
  if (out->type == Element::kNone) return unsupported(text(name, ": data type ", int(layout.type), " is not emulated"));
  if (out->ld < out->rows) return invalid(text(name, ": leading dimension ", out->ld, " is less than ", out->rows));
  if (out->rows <= 0 || out->cols <= 0) return invalid(text(name, ": empty, ", out->rows, " x ", out->cols));
  return {};
}

// Attributes that the fake does not emulate keep their defaults.
Verdict check_defaults(const Attributes& desc) {
  const MatmulDesc fresh = make_matmul_desc(CUBLAS_COMPUTE_32F, CUDA_R_32F);
  for (int name :
       {CUBLASLT_MATMUL_DESC_SCALE_TYPE, CUBLASLT_MATMUL_DESC_TRANSC, CUBLASLT_MATMUL_DESC_FILL_MODE,
        CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
        CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET,
        CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, CUBLASLT_MATMUL_DESC_C_SCALE_POINTER,
        CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER,
        CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER, CUBLASLT_MATMUL_DESC_AMAX_D_POINTER,
        CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_MODE, CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER,
        CUBLASLT_MATMUL_DESC_D_OUT_SCALE_MODE, CUBLASLT_MATMUL_DESC_C_SCALE_MODE, CUBLASLT_MATMUL_DESC_D_SCALE_MODE}) {
    if (!desc.same(name, fresh.attributes)) return unsupported(text("attribute ", name, " is not emulated"));
  }
  return {};
}

Verdict read_shapes(const Attributes& desc, Product* p) {
  int32_t ta = desc.get<int32_t>(CUBLASLT_MATMUL_DESC_TRANSA), tb = desc.get<int32_t>(CUBLASLT_MATMUL_DESC_TRANSB);
  if (ta < CUBLAS_OP_N || ta > CUBLAS_OP_C || tb < CUBLAS_OP_N || tb > CUBLAS_OP_C) {
    return invalid(text("transposes ", ta, " and ", tb));
  }
  p->transpose_a = ta != CUBLAS_OP_N;
  p->transpose_b = tb != CUBLAS_OP_N;
  p->m = p->transpose_a ? p->a.cols : p->a.rows;
  p->k = p->transpose_a ? p->a.rows : p->a.cols;
  p->n = p->transpose_b ? p->b.rows : p->b.cols;
  int64_t kb = p->transpose_b ? p->b.cols : p->b.rows;
  if (kb != p->k) return invalid(text("op(A) is ", p->m, " x ", p->k, " but op(B) is ", kb, " x ", p->n));
  if (p->d.rows != p->m || p->d.cols != p->n) {
    return invalid(text("D is ", p->d.rows, " x ", p->d.cols, ", not ", p->m, " x ", p->n));
  }
  if (p->c.rows != p->m || p->c.cols != p->n) {
    return invalid(text("C is ", p->c.rows, " x ", p->c.cols, ", not ", p->m, " x ", p->n));
  }
  return {};
}

// FP8 and FP4: the manual's table of FP8 kernels, without results in FP8.
Verdict check_quantized_types(Element a, Element b, Element c, Element d) {
  if (is_fp8(a) ? !is_fp8(b) : a != b) return unsupported("FP8 is multiplied with FP8 only, FP4 with FP4");
  if (a == Element::kE5m2 && b == Element::kE5m2) return unsupported("e5m2 times e5m2 is not supported");
  if (d != Element::kBf16 && d != Element::kF16 && d != Element::kF32) return unsupported("type of D");
  if (c != d) return unsupported(text("C is ", element_name(c), " but D is ", element_name(d)));
  return {};
}

Verdict check_types(cublasComputeType_t compute, Element a, Element b, Element c, Element d) {
  const bool fast = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  if (!fast && compute != CUBLAS_COMPUTE_32F)
    return unsupported(text("compute type ", int(compute), " is not emulated"));
  if (a == Element::kE2m1 || b == Element::kE2m1 || is_fp8(a) || is_fp8(b)) return check_quantized_types(a, b, c, d);
  if (a != b) return unsupported(text("A is ", element_name(a), " but B is ", element_name(b)));
  if (c != d) return unsupported(text("C is ", element_name(c), " but D is ", element_name(d)));
  if (a == Element::kF32) return d == Element::kF32 ? Verdict{} : unsupported("fp32 A and B give an fp32 D");
  if (fast) return unsupported("fast compute types take fp32 matrices");
  if (a != Element::kBf16 && a != Element::kF16) return unsupported(text("A in ", element_name(a)));
  if (d != a && d != Element::kF32) {
    return unsupported(text(element_name(a), " A and B give no D in ", element_name(d)));
  }
  return {};
}

Verdict check_fp8_shapes(const Product& p, const MachineDevice& device) {
  int capability = device.capability();
  if (capability < 89) return unsupported(text("FP8 needs compute capability 8.9, the device has ", capability));
  if (p.fp4() && capability < 100)
    return unsupported(text("FP4 needs compute capability 10.0, the device has ", capability));
  bool any_layout = !p.fp4() && capability >= 100 && capability < 120;
  if (!any_layout && (!p.transpose_a || p.transpose_b)) {
    return unsupported(text("FP8 on compute capability ", capability, " needs op(A) transposed and op(B) not (TN)"));
  }
  if (p.compute != CUBLAS_COMPUTE_32F) return unsupported("FP8 needs CUBLAS_COMPUTE_32F");
  for (const Matrix* matrix : {&p.a, &p.b, &p.c, &p.d}) {
    if (bytes_of(matrix->type, matrix->ld) % 16 != 0)
      return unsupported(text("FP8: leading dimension ", matrix->ld, " is no multiple of 16 bytes"));
  }
  if (p.fp4() && p.k % 32 != 0) return unsupported(text("FP4: k = ", p.k, " is no multiple of 32"));
  for (int64_t size : {p.m, p.k, p.n}) {
    if (size % 16 != 0) return unsupported(text("dimension ", size, " is no multiple of 16"));
  }
  return {};
}

bool decode_epilogue(uint32_t code, Epilogue* out) {
  switch (code) {
    case CUBLASLT_EPILOGUE_DEFAULT:
      *out = {};
      return true;
    case CUBLASLT_EPILOGUE_BIAS:
      *out = {.bias = true};
      return true;
    case CUBLASLT_EPILOGUE_GELU_AUX:
      *out = {.gelu = true};
      return true;
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
      *out = {.bias = true, .gelu = true};
      return true;
    case CUBLASLT_EPILOGUE_DGELU:
      *out = {.d_gelu = true};
      return true;
    case CUBLASLT_EPILOGUE_BGRADA:
      *out = {.gradient_a = true};
      return true;
    case CUBLASLT_EPILOGUE_BGRADB:
      *out = {.gradient_b = true};
      return true;
    default:
      return false;
  }
}

Verdict read_bias(const Attributes& desc, Product* p) {
  p->bias = desc.get<void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER);
  // fp32 results of FP8 take their bias in bf16; everything else in the type of D.
  p->bias_type = (p->fp8() || p->fp4()) && p->d.type == Element::kF32 ? Element::kBf16 : p->d.type;
  const bool missing = p->epilogue.needs_bias_pointer() && p->bias == nullptr;
  return missing ? invalid("the epilogue needs CUBLASLT_MATMUL_DESC_BIAS_POINTER") : Verdict{};
}

Verdict read_aux(const Attributes& desc, Product* p) {
  p->aux = desc.get<void*>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
  p->aux_ld = desc.get<int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
  if (!p->epilogue.needs_aux()) return {};
  if (p->aux == nullptr) return invalid("the epilogue needs CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER");
  // Its value tells the alignment, also where nothing is read or written yet.
  // (CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER)
  if (reinterpret_cast<uintptr_t>(p->aux) % 16 != 0) return unsupported("aux is misaligned");
  if (p->aux_ld % 8 != 0) return invalid(text("aux leading dimension ", p->aux_ld, " is no multiple of 8"));
  if (p->aux_ld < p->m) return invalid(text("aux leading dimension ", p->aux_ld, " is less than ", p->m));
  return {};
}

Verdict read_epilogue(const Attributes& desc, Product* p) {
  p->epilogue_code = desc.get<uint32_t>(CUBLASLT_MATMUL_DESC_EPILOGUE);
  if (!decode_epilogue(p->epilogue_code, &p->epilogue))
    return unsupported(text("epilogue ", p->epilogue_code, " is not emulated"));
  if ((p->fp8() || p->fp4()) && (p->epilogue.gradient_a || p->epilogue.gradient_b)) {
    return unsupported("FP8 kernels have no BGRADA and BGRADB epilogues");
  }
  if (Verdict verdict = read_bias(desc, p); !verdict.ok()) return verdict;
  return read_aux(desc, p);
}

Verdict read_scale(const Attributes& desc, const char* name, int pointer, int mode, Scale* out) {
  int32_t code = desc.get<int32_t>(mode);
  if (code < 0 || code >= CUBLASLT_MATMUL_MATRIX_SCALE_END) return invalid(text("scale mode ", code, " of ", name));
  out->pointer = desc.get<const float*>(pointer);
  switch (code) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F:
      out->mode = out->pointer ? ScaleMode::kScalar : ScaleMode::kNone;
      return {};
    case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F:
      out->mode = ScaleMode::kOuterVector;
      break;
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
      out->mode = ScaleMode::kVector128;
      break;
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
      out->mode = ScaleMode::kBlock128;
      break;
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3:
      out->mode = ScaleMode::kVector16;
      break;
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0:
      out->mode = ScaleMode::kVector32;
      break;
    default:
      return unsupported(text("scale mode ", code, " of ", name, " is not emulated"));
  }
  if (out->pointer == nullptr) return invalid(text("scale mode ", code, " of ", name, " needs its scale pointer"));
  if (reinterpret_cast<uintptr_t>(out->pointer) % 16 != 0) return unsupported(text("scales of ", name, " misaligned"));
  return {};
}

// Scales per 16 or 32 of k: of both factors, from Blackwell on. (manual, "1D Block Scaling for FP8 and FP4 Data Types")
Verdict check_narrow_modes(const Product& p, const MachineDevice& device) {
  ScaleMode wanted = p.fp4() ? ScaleMode::kVector16 : ScaleMode::kVector32;
  if (p.scale_a.mode != wanted || p.scale_b.mode != wanted)
    return unsupported("FP4 has E4M3 scales per 16 of k, FP8 E8M0 scales per 32, for A and for B");
  if (device.capability() < 100) return unsupported("scales per 16 or 32 need compute capability 10.0");
  uint32_t code = p.epilogue_code;
  if (code != CUBLASLT_EPILOGUE_DEFAULT && code != CUBLASLT_EPILOGUE_BIAS)
    return unsupported("with scales per 16 or 32 only the epilogues DEFAULT and BIAS are emulated");
  return {};
}

// Which modes go together, and where; NVIDIA's manual, "Scaling factors": vectors and blocks on Hopper only.
Verdict check_scale_modes(const Product& p, const MachineDevice& device) {
  ScaleMode a = p.scale_a.mode, b = p.scale_b.mode;
  auto plain = [](ScaleMode mode) { return mode == ScaleMode::kNone || mode == ScaleMode::kScalar; };
  auto narrow = [](ScaleMode mode) { return mode == ScaleMode::kVector16 || mode == ScaleMode::kVector32; };
  if (p.fp4() || narrow(a) || narrow(b)) return check_narrow_modes(p, device);
  if (plain(a) && plain(b)) return {};
  if (device.capability() != 90) return unsupported("scales by vector or block need compute capability 9.0");
  if ((a == ScaleMode::kOuterVector) != (b == ScaleMode::kOuterVector) || plain(a) || plain(b)) {
    return unsupported("scale modes of A and B do not go together");
  }
  if (a == ScaleMode::kOuterVector) return {};
  if (a == ScaleMode::kBlock128 && b == ScaleMode::kBlock128) return unsupported("128x128 blocks for A and for B");
  uint32_t code = p.epilogue_code;
  if (code != CUBLASLT_EPILOGUE_DEFAULT && code != CUBLASLT_EPILOGUE_BIAS && code != CUBLASLT_EPILOGUE_DGELU) {
    return unsupported("scales by block allow the epilogues DEFAULT, BIAS and DGELU");
  }
  return {};
}

Verdict read_scales(const Attributes& desc, const MachineDevice& device, Product* p) {
  Verdict a =
      read_scale(desc, "A", CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &p->scale_a);
  if (!a.ok()) return a;
  Verdict b =
      read_scale(desc, "B", CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &p->scale_b);
  if (!b.ok()) return b;
  if (!p->fp8() && !p->fp4() && (p->scale_a.mode != ScaleMode::kNone || p->scale_b.mode != ScaleMode::kNone)) {
    return invalid("scales of A and B are for FP8 only");
  }
  return check_scale_modes(*p, device);
}

}  // namespace

int64_t tiled_scales(int64_t outer, int64_t scales) { return (outer + 127) / 128 * ((scales + 3) / 4) * 512; }
int64_t tiled_scale(int64_t outer, int64_t scale, int64_t scales) {
  return (outer / 128 * ((scales + 3) / 4) + scale / 4) * 512 + outer % 32 * 16 + outer % 128 / 32 * 4 + scale % 4;
}

uint64_t Product::type_key() const {
  uint64_t key = static_cast<uint64_t>(compute);
  for (Element type : {a.type, b.type, c.type, d.type}) key = key * 16 + static_cast<uint64_t>(type);
  return key;
}

Verdict describe_product(cublasLtMatmulDesc_t desc_pointer, const Layouts& layouts, const MachineDevice& device,
                         Product* p) {
  const Attributes& desc = as_desc(desc_pointer).attributes;
  p->compute = static_cast<cublasComputeType_t>(desc.get<int32_t>(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE));
  p->pointer_mode = desc.get<int32_t>(CUBLASLT_MATMUL_DESC_POINTER_MODE);
  p->code_sum_bits = device.code_sum_bits;
  p->promotes = !desc.get<int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM);
  Verdict verdict = check_defaults(desc);
  if (verdict.ok()) verdict = read_layout("A", layouts.a, &p->a);
  if (verdict.ok()) verdict = read_layout("B", layouts.b, &p->b);
  if (verdict.ok()) verdict = read_layout("C", layouts.c, &p->c);
  if (verdict.ok()) verdict = read_layout("D", layouts.d, &p->d);
  if (verdict.ok()) verdict = read_shapes(desc, p);
  if (verdict.ok()) verdict = check_types(p->compute, p->a.type, p->b.type, p->c.type, p->d.type);
  if (verdict.ok() && (p->fp8() || p->fp4())) verdict = check_fp8_shapes(*p, device);
  if (verdict.ok()) verdict = read_epilogue(desc, p);
  if (verdict.ok()) verdict = read_scales(desc, device, p);
  if (!verdict.ok()) return verdict;
  if (p->pointer_mode != CUBLASLT_POINTER_MODE_HOST && p->pointer_mode != CUBLASLT_POINTER_MODE_DEVICE)
    return unsupported(text("pointer mode ", p->pointer_mode, " is not emulated"));
  return {};
}

}  // namespace emu::fakes
