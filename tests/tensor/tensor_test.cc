// Shapes and views: sizes, slices, columns, and the mistakes they refuse.
#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/expect_error.h"

namespace athanor {
namespace {

TEST(DTypes, HaveTheirSizesAndNames) {
  const std::vector<std::pair<std::string, size_t>> want{{"f32", 4}, {"bf16", 2}, {"f16", 2}, {"i32", 4},
                                                         {"u8", 1},  {"i64", 8},  {"f64", 8}};
  for (size_t i = 0; i < want.size(); ++i) {  // the numbers are fixed: they may reach disk
    EXPECT_EQ(name_of(DType(i)), want[i].first);
    EXPECT_EQ(size_of(DType(i)), want[i].second);
    EXPECT_EQ(cat(DType(i)), want[i].first);
  }
}

TEST(DTypes, ByFloatDispatchesAndRefusesOtherDtypes) {
  for (DType d : {DType::f32, DType::bf16, DType::f16})
    EXPECT_EQ(by_float(d, []<class T>() { return DTypeOf<T>::value; }), d);
  EXPECT_TRUE(has(error_of([] { by_float(DType::i32, []<class T>() {}); }), "expected a float dtype"));
}

TEST(Shapes, CountElementsAndCompare) {
  EXPECT_EQ((Shape{2, 3, 4}).numel(), 24);
  EXPECT_EQ((Shape{5, 0}).numel(), 0);
  EXPECT_EQ((Shape{}).numel(), 1);
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{2}), (Shape{2, 1}));
  EXPECT_NE((Shape{2}), (Shape{2, 0}));
  EXPECT_EQ(cat(Shape{2, 3}), "[2, 3]");
  EXPECT_EQ(cat(Shape{}), "[]");
  EXPECT_TRUE(has(error_of([] { Shape{1, 2, 3, 4, 5}; }), "rank 5 is above 4"));
  EXPECT_TRUE(has(error_of([] { (void)Shape{1, 2}[2]; }), "dimension 2 of rank 2"));
  EXPECT_TRUE(has(error_of([] { (void)Shape{1, 2}[-1]; }), "dimension -1 of rank 2"));
}

// A matrix whose element (r, c) is 10 r + c.
struct Grid {
  std::vector<int32_t> data;
  Tensor t;
  Grid(int64_t rows, int64_t cols) : data(size_t(rows * cols)), t{data.data(), DType::i32, {rows, cols}} {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) data[size_t(r * cols + c)] = int32_t(10 * r + c);
  }
};
int32_t element(const Tensor& t, int64_t r, int64_t c) { return t.as<int32_t>()[r * t.stride() + c]; }

TEST(Tensors, AreFalseWithoutData) {
  EXPECT_FALSE(Tensor{});
  EXPECT_TRUE(Grid(1, 1).t);
}

TEST(Tensors, ReportBytesAndDtype) {
  Grid g(3, 4);
  EXPECT_EQ(g.t.bytes(), 48u);
  EXPECT_EQ(g.t.at(5), g.data.data() + 5);
  EXPECT_TRUE(has(error_of([&] { g.t.as<float>(); }), "tensor is i32, asked as f32"));
}

TEST(Tensors, SliceRowsOfAnyRank) {
  Grid g(5, 4);
  const Tensor s = g.t.slice(2, 4);
  EXPECT_EQ(s.shape, (Shape{2, 4}));
  EXPECT_EQ(element(s, 0, 0), 20);
  EXPECT_EQ(element(s, 1, 3), 33);
  EXPECT_TRUE(s.contiguous());
  EXPECT_EQ(g.t.slice(5, 5).numel(), 0);
  const Tensor cube = g.t.view({5, 2, 2}).slice(3, 5);
  EXPECT_EQ(cube.shape, (Shape{2, 2, 2}));
  EXPECT_EQ(*cube.as<int32_t>(), 30);
  const Tensor flat = g.t.view({20}).slice(7, 9);
  EXPECT_EQ(*flat.as<int32_t>(), 13);
  for (const auto& [lo, hi] : {std::pair{-1, 2}, {3, 2}, {0, 6}})
    EXPECT_TRUE(has(error_of([&, a = lo, b = hi] { g.t.slice(a, b); }), cat("rows ", lo, "..", hi, " of [5, 4]")));
}

TEST(Tensors, ColumnsKeepTheRowStride) {
  Grid g(3, 8);
  const Tensor c = g.t.columns(2, 5);
  EXPECT_EQ(c.shape, (Shape{3, 3}));
  EXPECT_FALSE(c.contiguous());
  EXPECT_EQ(c.bytes(), 36u);
  EXPECT_EQ(element(c, 2, 1), 23);
  EXPECT_EQ(element(c.columns(1, 3), 1, 1), 14);  // columns of columns
  EXPECT_EQ(element(c.slice(1, 3), 1, 0), 22);    // rows of columns
  EXPECT_EQ(element(g.t.slice(1, 3).columns(7, 8), 1, 0), 27);
  EXPECT_TRUE(g.t.columns(0, 8).contiguous());
  for (const auto& [lo, hi] : {std::pair{-1, 2}, {3, 2}, {0, 9}})
    EXPECT_TRUE(has(error_of([&, a = lo, b = hi] { g.t.columns(a, b); }), cat("columns ", lo, "..", hi, " of [3, 8]")));
  EXPECT_TRUE(has(error_of([&] { g.t.view({24}).columns(0, 1); }), "of [24]"));
}

TEST(Tensors, ViewsKeepEveryElement) {
  Grid g(3, 8);
  EXPECT_EQ(g.t.view({24}).shape, (Shape{24}));
  EXPECT_EQ(g.t.view({6, 4}).data, g.t.data);
  EXPECT_TRUE(has(error_of([&] { g.t.view({5, 5}); }), "cannot view [3, 8] as [5, 5]"));
  EXPECT_TRUE(has(error_of([&] { g.t.columns(0, 4).view({12}); }), "cannot view [3, 4] as [12]"));
}

}  // namespace
}  // namespace athanor
