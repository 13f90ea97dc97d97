// See compute.h. Written for clarity, but the inner loop runs over contiguous rows so that small models stay fast.
#include "compute.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "code_sum.h"

namespace emu::fakes {
namespace {

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// The type that the multiplier takes: TF32 rounds fp32 inputs.
float as_input(const Product& product, Element type, float value) {
  const bool tf32 = type == Element::kF32 && product.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  return tf32 ? round_to_tf32(value) : value;
}

// Factor of element (outer, p) by its block: vectors are [ceil(k / 128), outer] with `outer` contiguous; blocks are
// [ceil(k / 128) rounded up to 4, ceil(outer / 128)] with k contiguous. (cuBLAS manual, "1D and 2D block scaling FP32")
float block_scale(const Scale& scale, int64_t outer, int64_t outers, int64_t p, int64_t k) {
  if (scale.mode == ScaleMode::kVector128) return scale.pointer[p / 128 * outers + outer];
  if (scale.mode == ScaleMode::kBlock128) {
    int64_t stride = round_up((k + 127) / 128, 4);
    return scale.pointer[outer / 128 * stride + p / 128];
  }
  const auto* bytes = reinterpret_cast<const uint8_t*>(scale.pointer);
  if (scale.mode == ScaleMode::kVector16)
    return read_element(Element::kE4m3, bytes, tiled_scale(outer, p / 16, (k + 15) / 16));
  if (scale.mode == ScaleMode::kVector32) return from_e8m0(bytes[tiled_scale(outer, p / 32, (k + 31) / 32)]);
  return 1;
}

// op(A) as [k][m] and op(B) as [n][k].
struct Inputs {
  std::vector<float> a, b;
};

Inputs load(const Product& product, const Operands& operands) {
  Inputs in;
  in.a.resize(static_cast<size_t>(product.k * product.m));
  in.b.resize(static_cast<size_t>(product.n * product.k));
  for (int64_t p = 0; p < product.k; ++p) {
    for (int64_t i = 0; i < product.m; ++i) {
      int64_t index = product.transpose_a ? product.a.index(p, i) : product.a.index(i, p);
      const float value = as_input(product, product.a.type, read_element(product.a.type, operands.a, index));
      in.a[static_cast<size_t>(p * product.m + i)] = value * block_scale(product.scale_a, i, product.m, p, product.k);
    }
  }
  for (int64_t j = 0; j < product.n; ++j) {
    for (int64_t p = 0; p < product.k; ++p) {
      int64_t index = product.transpose_b ? product.b.index(j, p) : product.b.index(p, j);
      const float value = as_input(product, product.b.type, read_element(product.b.type, operands.b, index));
      in.b[static_cast<size_t>(j * product.k + p)] = value * block_scale(product.scale_b, j, product.n, p, product.k);
    }
  }
  return in;
}

// As multiply(), of FP8 numbers where the GPU keeps few bits of their sums: 32 terms at a time.
void multiply_quantized(const Inputs& in, const Product& product, int64_t from, int64_t to, float* out) {
  const auto m = static_cast<size_t>(product.m);
  std::vector<float> few(m);
  for (int64_t j = 0; j < product.n; ++j) {
    float* column = out + j * product.m;
    const auto promote = [&] {
      for (size_t i = 0; i < m; ++i) column[i] += few[i];
      std::fill(few.begin(), few.end(), 0.f);
    };
    for (int64_t p = from; p < to; p += 32) {
      add_cut(few.data(), m, static_cast<uint32_t>(std::min<int64_t>(32, to - p)), product.code_sum_bits,
              [&](uint32_t term, size_t i) {
                const auto at = static_cast<size_t>(p + term);
                return in.b[static_cast<size_t>(j * product.k) + at] * in.a[at * m + i];
              });
      if (product.promotes && (p + 32 - from) % 128 == 0) promote();
    }
    promote();
  }
}

// sum over [from, to) of k, column by column: out [n][m].
std::vector<float> multiply(const Inputs& in, const Product& product, int64_t from, int64_t to) {
  std::vector<float> out(static_cast<size_t>(product.m * product.n));
  if (product.fp8() && product.code_sum_bits < 24) {
    multiply_quantized(in, product, from, to, out.data());
    return out;
  }
  for (int64_t j = 0; j < product.n; ++j) {
    float* column = out.data() + j * product.m;
    for (int64_t p = from; p < to; ++p) {
      const float factor = in.b[static_cast<size_t>(j * product.k + p)];
      const float* row = in.a.data() + p * product.m;
      for (int64_t i = 0; i < product.m; ++i) column[i] += factor * row[i];
    }
  }
  return out;
}

// Partial sums go through the workspace, as on a GPU: another writer of those bytes at the same time corrupts the
// result.
std::vector<float> multiply_in_parts(const Inputs& in, const Product& product, const Algorithm& algorithm,
                                     void* workspace) {
  int64_t parts = algorithm.split_k, size = product.m * product.n;
  if (parts == 1) return multiply(in, product, 0, product.k);
  const bool exact = algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const Element type = exact ? Element::kF32 : product.d.type;
  bool in_place = algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_INPLACE;
  std::vector<float> sum(static_cast<size_t>(size));
  for (int64_t part = 0; part < parts; ++part) {
    std::vector<float> one = multiply(in, product, product.k * part / parts, product.k * (part + 1) / parts);
    for (int64_t i = 0; i < size; ++i) {
      float& total = sum[static_cast<size_t>(i)];
      const float value = one[static_cast<size_t>(i)];
      if (in_place) {  // each part is added to the rounded result of those before
        total = round_to(type, total + value);
        continue;
      }
      write_element(type, workspace, part * size + i, value);
      total += read_element(type, workspace, part * size + i);
    }
  }
  if (in_place) std::memset(workspace, 0, workspace_bytes(algorithm, product));  // its counters
  return sum;
}

// tanh form: the one that the library documents for its GELU epilogues. [Hendrycks & Gimpel 2016]
constexpr double kGeluScale = 0.7978845608028654;  // sqrt(2 / pi)
double gelu(double x) { return 0.5 * x * (1 + std::tanh(kGeluScale * (x + 0.044715 * x * x * x))); }
double gelu_gradient(double x) {
  double t = std::tanh(kGeluScale * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kGeluScale * (1 + 3 * 0.044715 * x * x);
}

// The value to store at (i, j).
float apply_epilogue(const Product& p, double x, int64_t i, int64_t j) {
  const Epilogue& e = p.epilogue;
  const int64_t aux = j * p.aux_ld + i;
  if (e.bias) x += read_double(p.bias_type, p.bias, i);
  if (e.gelu) write_double(p.d.type, p.aux, aux, x);
  if (e.gelu) x = gelu(x);
  if (e.d_gelu) x *= gelu_gradient(read_double(p.d.type, p.aux, aux));
  return static_cast<float>(x);
}

void input_gradients(const Inputs& in, const Product& product) {
  const Epilogue& e = product.epilogue;
  for (int64_t i = 0; e.gradient_a && i < product.m; ++i) {
    double sum = 0;
    for (int64_t p = 0; p < product.k; ++p) sum += in.a[static_cast<size_t>(p * product.m + i)];
    write_double(product.bias_type, product.bias, i, sum);
  }
  for (int64_t j = 0; e.gradient_b && j < product.n; ++j) {
    double sum = 0;
    for (int64_t p = 0; p < product.k; ++p) sum += in.b[static_cast<size_t>(j * product.k + p)];
    write_double(product.bias_type, product.bias, j, sum);
  }
}

float scalar(const void* device, float host) { return device ? *static_cast<const float*>(device) : host; }

double outer_scale(const Product& p, int64_t i, int64_t j) {
  double scale = 1;
  if (p.scale_a.mode == ScaleMode::kScalar) scale *= *p.scale_a.pointer;
  if (p.scale_b.mode == ScaleMode::kScalar) scale *= *p.scale_b.pointer;
  if (p.scale_a.mode == ScaleMode::kOuterVector) scale *= p.scale_a.pointer[i] * p.scale_b.pointer[j];
  return scale;
}

}  // namespace

void compute_product(const Product& p, const Algorithm& algorithm, const Operands& operands) {
  const double alpha = scalar(operands.alpha, operands.host_alpha), beta = scalar(operands.beta, operands.host_beta);
  const Inputs in = load(p, operands);
  const std::vector<float> sums = multiply_in_parts(in, p, algorithm, operands.workspace);
  for (int64_t j = 0; j < p.n; ++j) {
    for (int64_t i = 0; i < p.m; ++i) {
      double x = alpha * outer_scale(p, i, j) * sums[static_cast<size_t>(j * p.m + i)];
      if (beta != 0) x += beta * read_double(p.c.type, operands.c, p.c.index(i, j));
      write_element(p.d.type, operands.d, p.d.index(i, j), apply_epilogue(p, static_cast<float>(x), i, j));
    }
  }
  input_gradients(in, p);
}

}  // namespace emu::fakes
