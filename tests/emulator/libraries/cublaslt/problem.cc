// From descriptors to a Product; the rules are those of cublasLt.h and of "cublasLtMatmul()" in NVIDIA's manual, 13.0.
#include "problem.h"

#include "../fake_library.h"

namespace emu::fakes {
namespace {

Verdict invalid(const std::string& why) { return {CUBLAS_STATUS_INVALID_VALUE, why}; }
Verdict unsupported(const std::string& why) { return {CUBLAS_STATUS_NOT_SUPPORTED, why}; }

Verdict read_layout(const char* name, cublasLtMatrixLayout_t layout, Matrix* out) {
  const Attributes& a = as_layout(layout).attributes;
  auto type = static_cast<cudaDataType_t>(a.get<uint32_t>(CUBLASLT_MATRIX_LAYOUT_TYPE));
  out->type = element_of(type);
  if (out->type == Element::kNone) return unsupported(text(name, ": data type ", int(type), " is not emulated"));
  int32_t order = a.get<int32_t>(CUBLASLT_MATRIX_LAYOUT_ORDER);
  if (order < 0 || order > CUBLASLT_ORDER_COL32_2R_4R4) return invalid(text(name, ": memory order ", order));
  if (order > CUBLASLT_ORDER_ROW) return unsupported(text(name, ": tiled memory orders are not emulated"));
  if (a.get<int64_t>(CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET) != 0) {
    return unsupported(text(name, ": planar complex layouts are not emulated"));
  }
  if (a.get<uint32_t>(CUBLASLT_MATRIX_LAYOUT_BATCH_MODE) != CUBLASLT_BATCH_MODE_STRIDED) {
    return unsupported(text(name, ": batches by arrays of pointers are not emulated"));
  }
  out->rows = static_cast<int64_t>(a.get<uint64_t>(CUBLASLT_MATRIX_LAYOUT_ROWS));
  out->cols = static_cast<int64_t>(a.get<uint64_t>(CUBLASLT_MATRIX_LAYOUT_COLS));
  out->ld = a.get<int64_t>(CUBLASLT_MATRIX_LAYOUT_LD);
  out->row_major = order == CUBLASLT_ORDER_ROW;
  out->batch_stride = a.get<int64_t>(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
  int64_t least = out->row_major ? out->cols : out->rows;
  if (out->ld < least) return invalid(text(name, ": leading dimension ", out->ld, " is less than ", least));
  if (out->rows <= 0 || out->cols <= 0) return invalid(text(name, ": empty, ", out->rows, " x ", out->cols));
  return {};
}

Verdict read_batch(const Layouts& layouts, int64_t* batch) {
  const cublasLtMatrixLayout_t all[] = {layouts.a, layouts.b, layouts.c, layouts.d};
  *batch = as_layout(layouts.d).attributes.get<int32_t>(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
  if (*batch < 1) return invalid(text("batch count ", *batch));
  for (cublasLtMatrixLayout_t layout : all) {
    int32_t count = as_layout(layout).attributes.get<int32_t>(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
    if (count != *batch) return invalid(text("batch counts differ: ", count, " and ", *batch));
  }
  return {};
}

Verdict read_shapes(const Attributes& desc, Product* p) {
  int32_t ta = desc.get<int32_t>(CUBLASLT_MATMUL_DESC_TRANSA), tb = desc.get<int32_t>(CUBLASLT_MATMUL_DESC_TRANSB);
  if (ta < CUBLAS_OP_N || ta > CUBLAS_OP_C || tb < CUBLAS_OP_N || tb > CUBLAS_OP_C) {
    return invalid(text("transposes ", ta, " and ", tb));
  }
  if (desc.get<int32_t>(CUBLASLT_MATMUL_DESC_TRANSC) != CUBLAS_OP_N) return unsupported("C cannot be transposed");
  if (desc.get<int32_t>(CUBLASLT_MATMUL_DESC_FILL_MODE) != CUBLAS_FILL_MODE_FULL) {
    return unsupported("triangular results are not emulated");
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
  if (p->c.row_major != p->d.row_major) return invalid("C and D have different memory orders");
  return {};
}

// "When D is FP8 or A and B are" of the manual's table of FP8 kernels.
Verdict check_fp8_types(Element a, Element b, Element c, Element d) {
  if (!is_fp8(a) || !is_fp8(b)) return unsupported("FP8 is multiplied with FP8 only");
  if (a == Element::kE5m2 && b == Element::kE5m2) return unsupported("e5m2 times e5m2 is not supported");
  if (is_fp8(d)) {
    if (c != Element::kBf16 && c != Element::kF16) return unsupported("with D in FP8, C is bf16 or fp16");
    if (d == Element::kE5m2 && a == b) return unsupported("e4m3 times e4m3 gives no e5m2");
    return {};
  }
  if (d != Element::kBf16 && d != Element::kF16 && d != Element::kF32) return unsupported("type of D");
  if (c != d) return unsupported(text("C is ", element_name(c), " but D is ", element_name(d)));
  return {};
}

Verdict check_fp4_types(Element a, Element b, Element c, Element d) {
  if (a != Element::kE2m1 || b != a) return unsupported("FP4 is multiplied with FP4 only");
  if (d != Element::kBf16 && d != Element::kF16 && d != Element::kF32) return unsupported("type of D");
  if (c != d) return unsupported(text("C is ", element_name(c), " but D is ", element_name(d)));
  return {};
}

Verdict check_fp8_shapes(const Product& p, const MachineDevice& device) {
  int capability = device.capability();
  if (capability < 89) return unsupported(text("FP8 needs compute capability 8.9, the device has ", capability));
  if (p.fp4() && capability < 100)
    return unsupported(text("FP4 needs compute capability 10.0, the device has ", capability));
  bool any_layout = !p.fp4() && capability >= 100 && capability < 120;
  bool tn = p.transpose_a != p.a.row_major && p.transpose_b == p.b.row_major;
  if (!any_layout && !tn) {
    return unsupported(text("FP8 on compute capability ", capability, " needs op(A) transposed and op(B) not (TN)"));
  }
  if (p.compute != CUBLAS_COMPUTE_32F) return unsupported("FP8 needs CUBLAS_COMPUTE_32F");
  for (const Matrix* matrix : {&p.a, &p.b, &p.c, &p.d}) {
    if (bytes_of(matrix->type, matrix->ld) % 16 != 0)
      return unsupported(text("FP8: leading dimension ", matrix->ld, " is no multiple of 16 bytes"));
    if (bytes_of(matrix->type, matrix->batch_stride) % 16 != 0)
      return unsupported("FP8: batch stride is no multiple of 16 bytes");
  }
  if (p.fp4() && p.k % 32 != 0) return unsupported(text("FP4: k = ", p.k, " is no multiple of 32"));
  for (int64_t size : {p.m, p.k, p.n}) {
    if (size % 16 != 0) return unsupported(text("dimension ", size, " is no multiple of 16"));
  }
  return {};
}

Epilogue decode_epilogue(uint32_t code) {
  return {.bias = (code & CUBLASLT_EPILOGUE_BIAS) != 0,
          .relu = (code & CUBLASLT_EPILOGUE_RELU) != 0,
          .gelu = (code & CUBLASLT_EPILOGUE_GELU) != 0,
          .aux = (code & 128) != 0 && (code & (8 | 64)) == 0,
          .d_relu = (code & 8) != 0,
          .d_gelu = (code & 64) != 0,
          .bias_gradient = (code & 16) != 0,
          .gradient_a = code == CUBLASLT_EPILOGUE_BGRADA,
          .gradient_b = code == CUBLASLT_EPILOGUE_BGRADB};
}

bool known_epilogue(uint32_t code) {
  for (uint32_t known :
       {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_AUX, CUBLASLT_EPILOGUE_BIAS,
        CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_RELU_AUX_BIAS, CUBLASLT_EPILOGUE_DRELU,
        CUBLASLT_EPILOGUE_DRELU_BGRAD, CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_BIAS,
        CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU_BGRAD,
        CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB}) {
    if (code == known) return true;
  }
  return false;
}

Verdict read_bias(const Attributes& desc, Product* p) {
  p->bias = desc.get<void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER);
  p->bias_batch_stride = desc.get<int64_t>(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE);
  // FP8 and fp32 results of FP8 take their bias in the 16-bit type; everything else in the type of D.
  Element natural = p->d.type;
  if (p->fp8() && is_fp8(p->d.type)) natural = p->c.type;
  if ((p->fp8() || p->fp4()) && p->d.type == Element::kF32) natural = Element::kBf16;
  int32_t asked = desc.get<int32_t>(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
  p->bias_type = asked == -1 ? natural : element_of(static_cast<cudaDataType_t>(asked));
  if (!p->epilogue.needs_bias_pointer()) return {};
  if (p->bias == nullptr) return invalid("the epilogue needs CUBLASLT_MATMUL_DESC_BIAS_POINTER");
  if (p->bias_type != natural) {
    return unsupported(text("bias type ", element_name(p->bias_type), "; it must be ", element_name(natural)));
  }
  return {};
}

Verdict read_aux(const Attributes& desc, Product* p) {
  p->aux = desc.get<void*>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
  p->aux_ld = desc.get<int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
  p->aux_batch_stride = desc.get<int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE);
  int32_t type = desc.get<int32_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE);
  p->aux_type = type == -1 ? p->d.type : element_of(static_cast<cudaDataType_t>(type));
  if (!p->epilogue.needs_aux()) return {};
  if (p->aux == nullptr) return invalid("the epilogue needs CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER");
  // Its value tells the alignment, also where nothing is read or written yet.
  // (CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER)
  if (reinterpret_cast<uintptr_t>(p->aux) % 16 != 0) return unsupported("aux is misaligned");
  if (p->d.row_major) return unsupported("auxiliary matrices are column-major; D is row-major");
  int64_t unit = p->epilogue.aux_is_bits() ? 128 : 8;
  if (p->aux_ld % unit != 0) return invalid(text("aux leading dimension ", p->aux_ld, " is no multiple of ", unit));
  if (p->aux_ld < p->m) return invalid(text("aux leading dimension ", p->aux_ld, " is less than ", p->m));
  if (p->aux_batch_stride % unit != 0) return invalid(text("aux batch stride ", p->aux_batch_stride));
  if (p->epilogue.aux_is_bits()) return {};
  bool fp8_choice = is_fp8(p->d.type) && p->aux_type == Element::kF16;
  if (p->aux_type != p->d.type && !fp8_choice) {
    return invalid(text("aux type ", element_name(p->aux_type), " with D in ", element_name(p->d.type)));
  }
  return {};
}

Verdict read_epilogue(const Attributes& desc, Product* p) {
  p->epilogue_code = desc.get<uint32_t>(CUBLASLT_MATMUL_DESC_EPILOGUE);
  if (!known_epilogue(p->epilogue_code)) return invalid(text("epilogue ", p->epilogue_code));
  p->epilogue = decode_epilogue(p->epilogue_code);
  if ((p->fp8() || p->fp4()) && (p->epilogue.gradient_a || p->epilogue.gradient_b || p->epilogue.d_relu)) {
    return unsupported("FP8 kernels have no BGRADA, BGRADB and DRELU epilogues");
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
  if (is_fp8(p.d.type)) return unsupported("scales of results are not emulated");
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
  if (is_fp8(p.d.type)) return unsupported("scales by vector or block give no D in FP8");
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
  for (int mode : {CUBLASLT_MATMUL_DESC_C_SCALE_MODE, CUBLASLT_MATMUL_DESC_D_SCALE_MODE,
                   CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_MODE, CUBLASLT_MATMUL_DESC_D_OUT_SCALE_MODE}) {
    if (desc.get<int32_t>(mode) != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F)
      return unsupported("results have scalar scales");
  }
  p->scale_d = desc.get<const float*>(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER);
  p->amax_d = desc.get<float*>(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER);
  p->scale_aux = desc.get<const float*>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER);
  p->amax_aux = desc.get<float*>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER);
  if (!p->fp8() && !p->fp4() && (p->scale_a.mode != ScaleMode::kNone || p->scale_b.mode != ScaleMode::kNone)) {
    return invalid("scales of A and B are for FP8 only");
  }
  if (desc.get<const float*>(CUBLASLT_MATMUL_DESC_C_SCALE_POINTER))
    return invalid("the scale of C is for an FP8 C only");
  if (desc.get<void*>(CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER)) return invalid("output scales are for block-scaled D");
  if (!is_fp8(p->d.type) && (p->scale_d || p->amax_d)) return invalid("scale and amax of D are for an FP8 D only");
  bool fp8_aux = p->epilogue.aux && is_fp8(p->aux_type);
  if (!fp8_aux && (p->scale_aux || p->amax_aux)) return invalid("scale and amax of aux are for an FP8 aux only");
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

Verdict check_types(cublasComputeType_t compute, Element a, Element b, Element c, Element d) {
  if (compute == CUBLAS_COMPUTE_64F || compute == CUBLAS_COMPUTE_64F_PEDANTIC) {
    bool all = a == Element::kF64 && b == a && c == a && d == a;
    return all ? Verdict{} : unsupported("CUBLAS_COMPUTE_64F takes fp64 matrices");
  }
  bool fast = compute == CUBLAS_COMPUTE_32F_FAST_16F || compute == CUBLAS_COMPUTE_32F_FAST_16BF ||
              compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  if (!fast && compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_PEDANTIC) {
    return unsupported(text("compute type ", int(compute), " is not emulated"));
  }
  if (a == Element::kE2m1 || b == Element::kE2m1) return check_fp4_types(a, b, c, d);
  if (is_fp8(a) || is_fp8(b)) return check_fp8_types(a, b, c, d);
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

Verdict describe_product(cublasLtMatmulDesc_t desc_pointer, const Layouts& layouts, const MachineDevice& device,
                         Product* p) {
  const Attributes& desc = as_desc(desc_pointer).attributes;
  p->compute = static_cast<cublasComputeType_t>(desc.get<int32_t>(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE));
  p->pointer_mode = desc.get<int32_t>(CUBLASLT_MATMUL_DESC_POINTER_MODE);
  p->multiprocessors = desc.get<int32_t>(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET);
  p->code_sum_bits = device.code_sum_bits;
  p->promotes = !desc.get<int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM);
  Verdict verdict = read_layout("A", layouts.a, &p->a);
  if (verdict.ok()) verdict = read_layout("B", layouts.b, &p->b);
  if (verdict.ok()) verdict = read_layout("C", layouts.c, &p->c);
  if (verdict.ok()) verdict = read_layout("D", layouts.d, &p->d);
  if (verdict.ok()) verdict = read_batch(layouts, &p->batch);
  if (verdict.ok()) verdict = read_shapes(desc, p);
  if (verdict.ok()) verdict = check_types(p->compute, p->a.type, p->b.type, p->c.type, p->d.type);
  if (verdict.ok() && (p->fp8() || p->fp4())) verdict = check_fp8_shapes(*p, device);
  if (verdict.ok()) verdict = read_epilogue(desc, p);
  if (verdict.ok()) verdict = read_scales(desc, device, p);
  if (!verdict.ok()) return verdict;
  auto scale = static_cast<cudaDataType_t>(desc.get<int32_t>(CUBLASLT_MATMUL_DESC_SCALE_TYPE));
  if (scale != (p->d.type == Element::kF64 ? CUDA_R_64F : CUDA_R_32F)) {
    return unsupported(text("scale type ", int(scale), " with this compute type"));
  }
  if (p->pointer_mode < 0 || p->pointer_mode > CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST) {
    return invalid(text("pointer mode ", p->pointer_mode));
  }
  if (p->pointer_mode > CUBLASLT_POINTER_MODE_DEVICE) return unsupported("alpha as a vector is not emulated");
  if (p->batch > 1 && p->d.batch_stride == 0) return invalid("the results of a batch would overwrite each other");
  return {};
}

}  // namespace emu::fakes
