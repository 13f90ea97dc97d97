// See compute.h. Written for clarity, but the inner loop runs over contiguous rows so that small models stay fast.
#include "compute.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "../../device/code_sum.h"

namespace emu::fakes {
namespace {

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// The type that the multiplier takes: fast compute types round fp32 inputs.
double as_input(const Product& product, Element type, double value) {
  if (type != Element::kF32) return value;
  auto single = static_cast<float>(value);
  switch (product.compute) {
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      if (product.tf32 == Tf32::kFull) return value;
      return product.tf32 == Tf32::kTruncate ? truncate_to_tf32(single) : round_to_tf32(single);
    case CUBLAS_COMPUTE_32F_FAST_16F:
      return round_to(Element::kF16, single);
    case CUBLAS_COMPUTE_32F_FAST_16BF:
      return round_to(Element::kBf16, single);
    default:
      return value;
  }
}

// Factor of element (outer, p) by its block: vectors are [ceil(k / 128), outer] with `outer` contiguous; blocks are
// [ceil(k / 128) rounded up to 4, ceil(outer / 128)] with k contiguous. (cuBLAS manual, "1D and 2D block scaling FP32")
double block_scale(const Scale& scale, int64_t outer, int64_t outers, int64_t p, int64_t k) {
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
template <class T>
struct Inputs {
  std::vector<T> a, b;
};

template <class T>
Inputs<T> load(const Product& product, const Operands& operands, int64_t batch) {
  Inputs<T> in;
  in.a.resize(static_cast<size_t>(product.k * product.m));
  in.b.resize(static_cast<size_t>(product.n * product.k));
  for (int64_t p = 0; p < product.k; ++p) {
    for (int64_t i = 0; i < product.m; ++i) {
      int64_t index = product.transpose_a ? product.a.index(p, i, batch) : product.a.index(i, p, batch);
      double value = as_input(product, product.a.type, read_double(product.a.type, operands.a, index));
      in.a[static_cast<size_t>(p * product.m + i)] =
          static_cast<T>(value * block_scale(product.scale_a, i, product.m, p, product.k));
    }
  }
  for (int64_t j = 0; j < product.n; ++j) {
    for (int64_t p = 0; p < product.k; ++p) {
      int64_t index = product.transpose_b ? product.b.index(j, p, batch) : product.b.index(p, j, batch);
      double value = as_input(product, product.b.type, read_double(product.b.type, operands.b, index));
      in.b[static_cast<size_t>(j * product.k + p)] =
          static_cast<T>(value * block_scale(product.scale_b, j, product.n, p, product.k));
    }
  }
  return in;
}

// As multiply(), of FP8 numbers where the GPU keeps few bits of their sums: 32 terms at a time.
void multiply_quantized(const Inputs<float>& in, const Product& product, int64_t from, int64_t to, float* out) {
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
template <class T>
std::vector<T> multiply(const Inputs<T>& in, const Product& product, int64_t from, int64_t to) {
  std::vector<T> out(static_cast<size_t>(product.m * product.n), T(0));
  if constexpr (std::is_same_v<T, float>) {
    if (product.fp8() && product.code_sum_bits < 24) {
      multiply_quantized(in, product, from, to, out.data());
      return out;
    }
  }
  for (int64_t j = 0; j < product.n; ++j) {
    T* column = out.data() + j * product.m;
    for (int64_t p = from; p < to; ++p) {
      T factor = in.b[static_cast<size_t>(j * product.k + p)];
      const T* row = in.a.data() + p * product.m;
      for (int64_t i = 0; i < product.m; ++i) column[i] += factor * row[i];
    }
  }
  return out;
}

// Partial sums go through the workspace, as on a GPU: another writer of those bytes at the same time corrupts the
// result.
template <class T>
std::vector<T> multiply_in_parts(const Inputs<T>& in, const Product& product, const Algorithm& algorithm,
                                 void* workspace, int64_t batch) {
  int64_t parts = algorithm.split_k, size = product.m * product.n;
  if (parts == 1) return multiply(in, product, 0, product.k);
  Element type = sizeof(T) == 8 ? Element::kF64 : Element::kF32;
  if (algorithm.reduction != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) type = product.d.type;
  bool in_place = algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_INPLACE;
  std::vector<T> sum(static_cast<size_t>(size), T(0));
  for (int64_t part = 0; part < parts; ++part) {
    std::vector<T> one = multiply(in, product, product.k * part / parts, product.k * (part + 1) / parts);
    for (int64_t i = 0; i < size; ++i) {
      double value = one[static_cast<size_t>(i)];
      if (in_place) {  // each part is added to the rounded result of those before
        uint64_t cell = 0;
        write_double(type, &cell, 0, sum[static_cast<size_t>(i)] + value);
        sum[static_cast<size_t>(i)] = static_cast<T>(read_double(type, &cell, 0));
        continue;
      }
      int64_t slot = (part * product.batch + batch) * size + i;
      write_double(type, workspace, slot, value);
      sum[static_cast<size_t>(i)] += static_cast<T>(read_double(type, workspace, slot));
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

class EpilogueRun {
 public:
  EpilogueRun(const Product& product, int64_t batch) : p_(product), batch_(batch) {
    if (p_.epilogue.bias_gradient) gradient_.assign(static_cast<size_t>(p_.m), 0.0);
    if (p_.epilogue.relu && p_.epilogue.aux) clear_bits();
  }

  // The value to store at (i, j), before the scale of D.
  double apply(double x, int64_t i, int64_t j) {
    const Epilogue& e = p_.epilogue;
    if (e.bias) x += read_double(p_.bias_type, p_.bias, batch_ * p_.bias_batch_stride + i);
    if (e.gelu && e.aux) store_aux(x, i, j);
    if (e.relu && e.aux && x > 0) set_bit(i, j);
    if (e.relu) x = std::max(x, 0.0);
    if (e.gelu) x = gelu(x);
    if (e.d_relu) x = bit(i, j) ? x : 0;
    if (e.d_gelu) x *= gelu_gradient(read_double(p_.aux_type, p_.aux, aux_index(i, j)));
    if (e.bias_gradient) gradient_[static_cast<size_t>(i)] += x;
    return x;
  }

  void finish(double* largest_aux) const {
    for (size_t i = 0; i < gradient_.size(); ++i) {
      write_double(p_.bias_type, p_.bias, batch_ * p_.bias_batch_stride + static_cast<int64_t>(i), gradient_[i]);
    }
    *largest_aux = std::max(*largest_aux, largest_aux_);
  }

 private:
  int64_t aux_index(int64_t i, int64_t j) const { return batch_ * p_.aux_batch_stride + j * p_.aux_ld + i; }
  void store_aux(double x, int64_t i, int64_t j) {
    largest_aux_ = std::max(largest_aux_, std::abs(x));
    write_double(p_.aux_type, p_.aux, aux_index(i, j), p_.scale_aux ? x * *p_.scale_aux : x);
  }
  uint8_t* byte(int64_t i, int64_t j) const { return static_cast<uint8_t*>(p_.aux) + aux_index(i, j) / 8; }
  bool bit(int64_t i, int64_t j) const { return (*byte(i, j) >> (aux_index(i, j) % 8) & 1) != 0; }
  void set_bit(int64_t i, int64_t j) { *byte(i, j) |= static_cast<uint8_t>(1 << (aux_index(i, j) % 8)); }
  void clear_bits() {
    for (int64_t j = 0; j < p_.n; ++j) std::memset(byte(0, j), 0, static_cast<size_t>((p_.m + 7) / 8));
  }

  const Product& p_;
  int64_t batch_;
  std::vector<double> gradient_;
  double largest_aux_ = 0;
};

template <class T>
void input_gradients(const Inputs<T>& in, const Product& product, int64_t batch) {
  const Epilogue& e = product.epilogue;
  int64_t offset = batch * product.bias_batch_stride;
  for (int64_t i = 0; e.gradient_a && i < product.m; ++i) {
    double sum = 0;
    for (int64_t p = 0; p < product.k; ++p) sum += in.a[static_cast<size_t>(p * product.m + i)];
    write_double(product.bias_type, product.bias, offset + i, sum);
  }
  for (int64_t j = 0; e.gradient_b && j < product.n; ++j) {
    double sum = 0;
    for (int64_t p = 0; p < product.k; ++p) sum += in.b[static_cast<size_t>(j * product.k + p)];
    write_double(product.bias_type, product.bias, offset + j, sum);
  }
}

double scalar(const void* device, double host, Element type) { return device ? read_double(type, device, 0) : host; }

double outer_scale(const Product& p, int64_t i, int64_t j) {
  double scale = 1;
  if (p.scale_a.mode == ScaleMode::kScalar) scale *= *p.scale_a.pointer;
  if (p.scale_b.mode == ScaleMode::kScalar) scale *= *p.scale_b.pointer;
  if (p.scale_a.mode == ScaleMode::kOuterVector) scale *= p.scale_a.pointer[i] * p.scale_b.pointer[j];
  return scale;
}

template <class T>
void compute_typed(const Product& p, const Algorithm& algorithm, const Operands& operands) {
  Element type = sizeof(T) == 8 ? Element::kF64 : Element::kF32;
  double alpha = scalar(operands.alpha, operands.host_alpha, type);
  double beta = scalar(operands.beta, operands.host_beta, type);
  double scale_d = p.scale_d ? *p.scale_d : 1, largest_d = 0, largest_aux = 0;
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    Inputs<T> in = load<T>(p, operands, batch);
    std::vector<T> sums = multiply_in_parts(in, p, algorithm, operands.workspace, batch);
    EpilogueRun epilogue(p, batch);
    for (int64_t j = 0; j < p.n; ++j) {
      for (int64_t i = 0; i < p.m; ++i) {
        double x = alpha * outer_scale(p, i, j) * sums[static_cast<size_t>(j * p.m + i)];
        if (beta != 0) x += beta * read_double(p.c.type, operands.c, p.c.index(i, j, batch));
        x = epilogue.apply(static_cast<T>(x), i, j);
        largest_d = std::max(largest_d, std::abs(x));
        write_double(p.d.type, operands.d, p.d.index(i, j, batch), x * scale_d);
      }
    }
    epilogue.finish(&largest_aux);
    input_gradients(in, p, batch);
  }
  if (p.amax_d) *p.amax_d = static_cast<float>(largest_d);
  if (p.amax_aux) *p.amax_aux = static_cast<float>(largest_aux);
}

}  // namespace

void compute_product(const Product& product, const Algorithm& algorithm, const Operands& operands) {
  if (product.d.type == Element::kF64) return compute_typed<double>(product, algorithm, operands);
  compute_typed<float>(product, algorithm, operands);
}

}  // namespace emu::fakes
