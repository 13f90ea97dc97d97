// Cases of embeddings and row moves: repeated and unused indices, with and without positions, strided rows.
#include "tests/ops/cases.h"

namespace athanor {
namespace {

struct Size {
  int64_t n, vocab, cols;
};

void embedding(Examiner& examine, DType dt, const Size& s, bool positions) {
  constexpr int64_t kContext = 11;
  const std::string name = cat(s.n, " of ", s.vocab, "x", s.cols, " ", dt, positions ? " wpe" : "");
  const Tensor index = tensor(DType::i32, {s.n}), rows = tensor(dt, {s.n, s.cols});
  OpCase<EmbeddingFwd> fwd{name, {.y = rows, .tokens = index, .wte = tensor(dt, {s.vocab, s.cols})}};
  OpCase<EmbeddingBwd> bwd{name, {.dwte = tensor(DType::f32, {s.vocab, s.cols}), .dy = rows, .tokens = index}};
  fwd.values = bwd.values = {{"tokens", below(s.vocab)}, {"positions", below(kContext)}};
  fwd.exact = true;  // one addition, one rounding
  if (positions) {
    fwd.op.wpe = tensor(dt, {kContext, s.cols});
    bwd.op.dwpe = tensor(DType::f32, {kContext, s.cols});
    fwd.op.positions = bwd.op.positions = index;
  }
  examine(fwd);
  examine(bwd);
  if (dt == DType::f32 && s.n == 3) {
    Examiner::Pairs gradients{{"wte", "dwte"}};
    if (positions) gradients.push_back({"wpe", "dwpe"});
    examine.gradient(fwd, bwd, {{"y", "dy"}}, gradients);
  }
  bwd.name += " gradients bf16";
  bwd.op.dwte.dtype = bwd.op.dwpe.dtype = DType::bf16;
  examine(bwd);
}

void row_moves(Examiner& examine, DType dt, int64_t rows, int64_t picked, int64_t cols, int64_t gap) {
  const std::string name = cat(picked, " of ", rows, "x", cols, " ", dt, gap ? " strided" : "");
  const Tensor index = tensor(DType::i32, {picked});
  examine(OpCase<GatherRows>{
      name,
      {.y = tensor(dt, {picked, cols}), .x = tensor(dt, {rows, cols}, gap ? cols + gap : 0), .rows = index},
      {{"rows", below(rows)}},
      true});
  const auto distinct = [rows](uint64_t, int64_t i) { return double((i * 7 + 3) % rows); };  // 7 divides no `rows`
  examine(OpCase<ScatterRows>{
      name,
      {.y = tensor(dt, {rows, cols}), .x = tensor(dt, {picked, cols}, gap ? cols + gap : 0), .rows = index},
      {{"rows", distinct}},
      true});
}

void patches(Examiner& examine, DType dt, int64_t images, const PatchShape& shape) {
  OpCase<Patchify> c{
      cat(images, " of ", shape.channels, "x", shape.height, "x", shape.width, " in ", shape.patch, " ", dt),
      {.y = tensor(dt, {images * (1 + shape.patches()), shape.columns()}),
       .pixels = tensor(DType::u8, {images, shape.pixels()}),
       .shape = shape,
       .scale = {0.01f, 0.02f, 0.005f, 1},
       .shift = {-1, 0.5f, 2, -0.25f}}};
  c.values = {{"pixels", below(256)}};
  examine(c);
}

}  // namespace

void embedding_cases(Examiner& examine) {
  for (DType dt : kFloats) {
    for (const Size& s :
         {Size{1, 1, 1}, Size{3, 5, 17}, Size{17, 3, 257}, Size{257, 33, 40}, Size{600, 700, 9}, Size{900, 50, 100}})
      for (bool positions : {false, true}) embedding(examine, dt, s, positions);
    patches(examine, dt, 1, {.channels = 1, .height = 1, .width = 1, .patch = 1});
    patches(examine, dt, 3, {.channels = 3, .height = 8, .width = 12, .patch = 4});
    patches(examine, dt, 5, {.channels = 4, .height = 9, .width = 6, .patch = 3});
    for (int64_t gap : {0, 6}) {
      row_moves(examine, dt, 1, 1, 1, gap);
      row_moves(examine, dt, 17, 3, 33, gap);
      row_moves(examine, dt, 130, 65, 257, gap);
    }
  }
  row_moves(examine, DType::f32, 513, 450, 200, 0);
}

}  // namespace athanor
