// Cases of fill, cast, add, dropout, sums and initial values.
#include <cmath>
#include <limits>

#include "tests/ops/cases.h"

namespace athanor {
namespace {

constexpr int64_t kLengths[] = {1, 3, 17, 257, 5000};
constexpr int64_t kLong = 100003;  // work for many threads

// Ties of both parities, the edges of f16's and bf16's ranges, subnormals, infinities.
const Init kHardToRound = listed({0,
                                  -0.0,
                                  1,
                                  1.00390625,
                                  1.01171875,
                                  1 + 0x1p-11,
                                  1 + 0x3p-11,
                                  -1 - 0x1p-8,
                                  65504,
                                  65519.996,
                                  65520,
                                  -65536,
                                  0x1p-14,
                                  0x1p-24,
                                  0x1p-25,
                                  0x1.8p-25,
                                  -0x1.8p-24,
                                  3e-5,
                                  3.38953139e38,
                                  3.4028e38,
                                  0x1p-126,
                                  0x1p-133,
                                  std::numeric_limits<double>::infinity(),
                                  -std::numeric_limits<double>::infinity(),
                                  3.14159265,
                                  -1e-3});

void fills(Examiner& examine) {
  for (DType dt : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64, DType::u8, DType::f8_e4m3,
                   DType::f8_e5m2})
    for (int64_t n : kLengths)
      for (float value : {0.0f, 3.0f})
        examine(OpCase<Fill>{cat(n, " ", dt, " ", value), {.x = tensor(dt, {n}), .value = value}, {}, true});
  examine(OpCase<Fill>{"long", {.x = tensor(DType::f32, {kLong}), .value = 2}, {}, true});
  examine(OpCase<Fill>{"negative", {.x = tensor(DType::bf16, {3, 5}), .value = -1.7f}, {}, true});
}

void element_wise(Examiner& examine) {
  for (DType to : kFloats)
    for (DType from : kFloats)
      for (int64_t n : kLengths)
        for (const Init& x : {kHardToRound, normal()})
          examine(OpCase<Cast>{
              cat(n, " ", to, " of ", from), {.y = tensor(to, {n}), .x = tensor(from, {n})}, {{"x", x}}, true});
  const Tensor f = tensor(DType::f32, {kLong}), b = tensor(DType::bf16, {kLong});
  examine(OpCase<Cast>{"long", {.y = b, .x = f}, {}, true});
  examine(OpCase<Add>{"long", {.y = b, .a = b, .b = b}, {}, true});
  for (DType dt : kFloats)
    for (int64_t n : kLengths) {
      const Tensor x = tensor(dt, {n});
      const Add op{.y = x, .a = x, .b = x};
      examine(OpCase<Add>{cat(n, " ", dt), op, {}, true});
      examine(OpCase<Add>{cat(n, " ", dt, " onto a"), op, {}, true, {{"y", "a"}}});
      examine(OpCase<Add>{cat(n, " ", dt, " onto b"), op, {}, true, {{"y", "b"}}});
      const Tensor sum = tensor(DType::f32, {n});
      examine(OpCase<Add>{cat(n, " ", dt, " onto f32"), {.y = sum, .a = sum, .b = x}, {}, true, {{"y", "a"}}});
      examine(OpCase<Add>{cat(n, " f32 to ", dt), {.y = x, .a = x, .b = sum}, {}, true});
    }
}

void masks(Examiner& examine) {
  const Init every_third = [](uint64_t, int64_t i) { return i % 3 == 1 ? 1.0 + double(i % 7) : 0.0; };
  for (DType dt : {DType::f32, DType::bf16, DType::f16, DType::i16})
    for (int64_t n : {int64_t{1}, int64_t{3}, int64_t{257}, kLong})
      examine(OpCase<MaskedFill>{
          cat(n, " ", dt), {.x = tensor(dt, {n}), .mask = tensor(DType::u8, {n})}, {{"mask", every_third}}, true});
}

void sums(Examiner& examine) {
  const Tensor out = tensor(DType::f64, {1});
  for (int64_t n : {1, 3, 17, 257, 5000, int(kLong)}) {
    examine(OpCase<ReduceSum>{cat(n), {.out = out, .x = tensor(DType::f32, {n})}});
    examine(OpCase<ReduceSum>{cat(n, " offset"), {.out = out, .x = tensor(DType::f32, {n})}, {{"x", normal(100)}}});
    examine(OpCase<ReduceSum>{cat(n, " doubles"), {.out = out, .x = tensor(DType::f64, {n})}});
    for (DType dt : {DType::f32, DType::bf16})
      examine(OpCase<SquaredNorm>{cat(n, " ", dt), {.out = out, .x = {tensor(dt, {n})}}});
  }
  const Tensor some = tensor(DType::f32, {5000}), few = tensor(DType::f32, {3});
  examine(OpCase<SquaredNorm>{"list", {.out = out, .x = {some, few, tensor(DType::f32, {kLong}), some}}});
  const Tensor none{nullptr, DType::f32, {0}};
  examine(OpCase<SquaredNorm>{"sums apart", {.out = tensor(DType::f64, {4}), .x = {some, none, few, some}}});
  const Tensor halves = tensor(DType::bf16, {4097});
  examine(OpCase<SquaredNorm>{"list bf16", {.out = tensor(DType::f64, {2}), .x = {halves, tensor(DType::bf16, {3})}}});
  examine(OpCase<SquaredNorm>{"long list", {.out = out, .x = std::vector<Tensor>(300, few)}});
  for (double bad : {double(NAN), double(INFINITY), -double(INFINITY)})
    for (int64_t at : {0, 4999}) {
      const Init x = [=](uint64_t s, int64_t i) { return i == at ? bad : normal()(s, i); };
      examine(OpCase<SquaredNorm>{cat(bad, " at ", at), {.out = out, .x = {some}}, {{"x", x}}});
      examine(OpCase<ReduceSum>{cat(bad, " at ", at), {.out = out, .x = tensor(DType::f32, {5000})}, {{"x", x}}});
    }
}

void random_values(Examiner& examine) {
  examine(OpCase<RandomNormal>{"long", {.x = tensor(DType::f32, {kLong}), .seed = 1, .std = 0.1f}, {}, true});
  for (DType dt : {DType::f32, DType::bf16})
    for (int64_t n : kLengths)
      for (uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{12345678901}}) {
        RandomNormal op{.x = tensor(dt, {n}), .seed = 7, .stream = stream_of("weight"), .first = first, .std = 0.02f};
        examine(OpCase<RandomNormal>{cat(n, " ", dt, " from ", first), op, {}, true});
        op.mean = 1.5f;
        examine(OpCase<RandomNormal>{cat(n, " ", dt, " from ", first, " mean"), op, {}, true});
        op.std = 0;
        examine(OpCase<RandomNormal>{cat(n, " ", dt, " from ", first, " std 0"), op, {}, true});
      }
}

// Any sharding gives the same weights: pieces of a range equal the range.
void sharded_random_values(Examiner& examine) {
  if (examine.lists() || !examine.wanted(RandomNormal::kName)) return;
  const auto draw = [&](int64_t first, int64_t n) {
    const RandomNormal op{.x = tensor(DType::f32, {n}), .seed = 3, .stream = 4, .first = uint64_t(first)};
    return result(examine.backend_results(OpCase<RandomNormal>{"piece", op}), "x").after;
  };
  const auto whole = draw(0, 101);
  std::vector<std::byte> pieces;
  for (int64_t first : {0, 1, 2, 17, 50}) {
    const auto piece = draw(first, first == 0 ? 1 : first == 1 ? 1 : first == 2 ? 15 : first == 17 ? 33 : 51);
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }
  if (pieces != whole) examine.note({Fault::wrong_value, RandomNormal::kName, "x", "pieces differ from the whole"});
}

// Whole sequences on a rank, sequences in two pieces, and rows from the middle of a micro-batch.
void dropped_paths(Examiner& examine) {
  for (const DType dtype : kFloats)
    for (const SequenceRows rows : {SequenceRows{1, 1, 1, 0}, {4, 3, 3, 0}, {3, 2, 4, 0}, {5, 4, 4, 10}})
      for (const auto& [residual, elements] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
        const Tensor x = tensor(dtype, {12, 67});
        OpCase<DropPath> c{cat(dtype, " ", rows.sequences, " sequences, from row ", rows.row, residual ? " added" : "",
                               elements ? " by element" : ""),
                           {.y = x,
                            .x = x,
                            .residual = residual ? x : Tensor{},
                            .state = tensor(DType::u8, {int64_t(sizeof(StepState))}),
                            .first = tensor(DType::i64, {1}),
                            .seed = 5,
                            .stream = 77,
                            .p = 0.4f,
                            .elements = elements,
                            .rows = rows},
                           {{"state", bytes_of(running_state())}, {"first", listed({double(24 * rows.per_sequence)})}}};
        examine(c);
        c.name += " in place";
        c.shared = {{"y", residual ? "residual" : "x"}};
        examine(c);
      }
  const auto elements = [&](const std::string& name, Shape shape, int64_t first, int64_t first_column, int64_t all) {
    examine(OpCase<DropPath>{name,
                             {.y = tensor(DType::f32, shape),
                              .x = tensor(DType::f32, shape),
                              .state = tensor(DType::u8, {int64_t(sizeof(StepState))}),
                              .first = tensor(DType::i64, {1}),
                              .seed = 5,
                              .stream = ~uint64_t{0},
                              .p = 0.3f,
                              .elements = true,
                              .first_column = first_column,
                              .all_columns = all},
                             {{"state", bytes_of(running_state())}, {"first", listed({double(first)})}}});
  };
  elements("late rows", {5, 24}, int64_t{1} << 33, 0, 0);
  elements("some columns", {7, 24}, 3, 13, 40);
}

}  // namespace

void basic_cases(Examiner& examine) {
  fills(examine);
  element_wise(examine);
  masks(examine);
  sums(examine);
  random_values(examine);
  sharded_random_values(examine);
  dropped_paths(examine);
}

}  // namespace athanor
