// Shape and Tensor: a non-owning view of device memory. Rank-2 views may have a row stride (column slices of a packed
// QKV); everything else is contiguous. Trivially copyable; nothing here touches the data.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>

#include "base/int.h"
#include "tensor/dtype.h"

namespace athanor {

struct Shape {
  static constexpr int kMaxRank = 4;
  int rank = 0;
  std::array<int64_t, kMaxRank> dim{};

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    CHECK(dims.size() <= kMaxRank, "rank ", dims.size(), " is above ", kMaxRank);
    for (int64_t d : dims) dim[rank++] = d;
  }
  int64_t operator[](int i) const {
    CHECK(i >= 0 && i < rank, "dimension ", i, " of rank ", rank);
    return dim[i];
  }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dim[i];
    return n;
  }
  bool operator==(const Shape&) const = default;
};

inline std::ostream& operator<<(std::ostream& out, const Shape& s) {
  out << "[";
  for (int i = 0; i < s.rank; ++i) out << (i ? ", " : "") << s.dim[i];
  return out << "]";
}

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  int64_t row_stride = 0;  // elements between rows of a rank-2 view; 0 = contiguous

  explicit operator bool() const { return data != nullptr; }
  int64_t numel() const { return shape.numel(); }
  // Bytes of the elements (a strided view spans more).
  size_t bytes() const { return size_t(numel()) * size_of(dtype); }
  bool contiguous() const { return row_stride == 0 || row_stride == shape.dim[1]; }
  int64_t rows() const { return shape[0]; }
  int64_t cols() const { return shape[1]; }
  int64_t stride() const { return row_stride ? row_stride : shape[1]; }  // row stride of a rank-2 view

  template <class T>
  T* as() const {
    CHECK(dtype == DTypeOf<T>::value, "tensor is ", dtype, ", asked as ", DTypeOf<T>::value);
    return static_cast<T*>(data);
  }
  void* at(int64_t element) const { return static_cast<char*>(data) + element * int64_t(size_of(dtype)); }

  Tensor view(Shape s) const {
    CHECK(contiguous() && s.numel() == numel(), "cannot view ", shape, " as ", s);
    return {data, dtype, s};
  }
  // Returns rows [lo, hi) of the first dimension.
  Tensor slice(int64_t lo, int64_t hi) const {
    CHECK(0 <= lo && lo <= hi && hi <= shape[0], "rows ", lo, "..", hi, " of ", shape);
    Tensor t = *this;
    t.shape.dim[0] = hi - lo;
    const int64_t row = row_stride ? row_stride : (shape[0] ? numel() / shape[0] : 0);
    t.data = at(lo * row);
    return t;
  }
  // Returns columns [lo, hi) of a rank-2 view.
  Tensor columns(int64_t lo, int64_t hi) const {
    CHECK(shape.rank == 2 && 0 <= lo && lo <= hi && hi <= shape[1], "columns ", lo, "..", hi, " of ", shape);
    Tensor t = *this;
    t.row_stride = stride();
    t.shape.dim[1] = hi - lo;
    t.data = at(lo);
    return t;
  }
};

}  // namespace athanor
