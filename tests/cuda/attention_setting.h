// Attention ops for kernel tests: packed Q, K and V, documents, and the tensors of one op in device memory.
#pragma once
#include <cmath>
#include <numeric>

#include "tests/cuda/kernel_test.h"
#include "tests/ops/attention_backward.h"
namespace athanor {

struct Setting {
  DType dtype;
  AttentionShape shape;
  std::vector<int> documents;  // lengths of consecutive documents
};

inline AttentionShape heads(int64_t heads, int64_t kv_heads, int64_t dim, int64_t window = 0) {
  return {heads, kv_heads, dim, window, float(1 / std::sqrt(double(dim)))};
}

inline AttentionShape sparse_heads(int64_t of, int64_t kv_heads, int64_t dim, SparsePattern pattern) {
  AttentionShape shape = heads(of, kv_heads, dim);
  shape.sparse = pattern;
  return shape;
}

inline std::vector<Span> spans_of(const std::vector<int>& documents) {
  std::vector<Span> spans;
  int row = 0;
  for (const int n : documents) {
    spans.push_back({row, n, row, n, 0, 0});
    row += n;
  }
  return spans;
}

inline std::vector<double> words_of(const std::vector<Span>& spans) {
  std::vector<double> words;
  for (const Span& s : spans)
    for (int32_t w : {s.q_begin, s.q_len, s.k_begin, s.k_len, s.q_pos, s.k_pos}) words.push_back(w);
  return words;
}

inline AttentionFwd forward_op(const Setting& s) {
  const int64_t rows = std::accumulate(s.documents.begin(), s.documents.end(), 0);
  const int64_t qc = s.shape.heads * s.shape.head_dim, kc = s.shape.kv_heads * s.shape.head_dim, packed = qc + 2 * kc;
  return {.y = tensor(s.dtype, {rows, qc}),
          .lse = tensor(DType::f32, {rows, s.shape.heads}),
          .q = tensor(s.dtype, {rows, qc}, packed),
          .k = tensor(s.dtype, {rows, kc}, packed),
          .v = tensor(s.dtype, {rows, kc}, packed),
          .spans = tensor(DType::i32, {int64_t(s.documents.size()), kSpanWords}),
          .shape = s.shape,
          .top = tensor(DType::f32, {s.shape.heads})};
}

// An attention op with its tensors in device memory.
class DeviceOp {
 public:
  explicit DeviceOp(const Setting& s, const MakeBackend& make = make_cuda_backend)
      : op(forward_op(s)), backend_(make(2)) {
    uint32_t seed = 0;
    for (const Field& f : op.fields()) {
      if (f.t->shape.rank == 0) continue;  // absent tensor
      const int64_t elements = f.t->shape.rank > 1 ? f.t->rows() * f.t->stride() : f.t->numel();
      f.t->data = backend_.device->allocate(size_t(elements) * size_of(f.t->dtype), Mem::device);
      std::vector<uint16_t> bits(size_t(elements) * size_of(f.t->dtype) / 2);
      for (uint16_t& b : bits) b = uint16_t(0x3c00 + random_bits(7, ++seed, 0) % 0x400);  // f16 values from 1 to 2
      write(*f.t, bits.data(), bits.size() * 2);
    }
  }
  void write(const Tensor& t, const void* from, size_t bytes) const {
    backend_.device->copy(t.data, from, bytes, Stream::compute);
  }
  void set_spans(const std::vector<Span>& spans) const { write(op.spans, spans.data(), spans.size() * sizeof(Span)); }
  std::vector<uint16_t> y() const {
    std::vector<uint16_t> bits(op.y.bytes() / 2);
    backend_.device->copy(bits.data(), op.y.data, op.y.bytes(), Stream::compute);
    return bits;
  }
  std::vector<uint16_t> run() const {
    backend_.ops->run(op, nullptr);
    return y();
  }
  const TestBackend& backend() const { return backend_; }

  AttentionFwd op;

 private:
  TestBackend backend_;
};
}  // namespace athanor
