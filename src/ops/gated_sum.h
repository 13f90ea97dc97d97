// Weighted sum of two terms, the second optionally gated per row and column group: gates of attention heads, of
// embeddings added to values, and of the previous token.
#pragma once
#include "ops/op.h"

namespace athanor {

// y = a x + b factor sigmoid(gate) z, in f32, rounded once. The C columns form G groups of consecutive columns, each
// with its own gate. A term whose x or z is absent is 0; an absent a or b counts as 1; without a gate sigmoid(gate) is
// 1. Rows of x, y and z may be strided.
struct GatedSum {
  Tensor y;               // [N, C]; may be x's or z's memory
  Tensor x, z;            // optional [N, C]; at least one
  Tensor gate = {};       // optional [N, G]
  Tensor a = {}, b = {};  // optional [1] float; only for terms that are present
  float factor = 1;
  int64_t groups() const { return gate ? gate.cols() : 1; }
  static constexpr const char* kName = "gated_sum";
  auto fields() {
    return fields_of(Field::out("y", y), Field::in("x", x), Field::in("z", z), Field::in("gate", gate),
                     Field::in("a", a), Field::in("b", b));
  }
  void check() const {
    Expect e{kName};
    e.floating("y", y).matrix("y", y).that(x || z, "x or z");
    if (x) e.view("x", x, y.dtype, y.shape);
    if (z) e.view("z", z, y.dtype, y.shape);
    if (gate) e.matrix("gate", gate).is("gate", gate, y.dtype, {y.rows(), gate.cols()});
    e.that(!gate || (z && y.cols() % gate.cols() == 0), "gate", "z, and groups of equal columns");
    e.that((!a || x) && (!b || z), "a only with x, and b only with z");
    if (a) e.floating("a", a).is("a", a, a.dtype, {1});
    if (b) e.floating("b", b).is("b", b, b.dtype, {1});
  }
  Cost cost() const { return {4.0 * double(y.numel()), traffic(*this)}; }
};

// dx = a dy; dz += b factor s dy; dgate = b factor s (1 - s) times the group's sum of dy z, with s = sigmoid(gate); da
// += sum(dy x); db += sum(factor s dy z). da and db are summed in double in a fixed order.
struct GatedSumBwd {
  Tensor dx;      // [N, C], present if x is; may be dy's memory
  Tensor dz;      // [N, C], present if z is; accumulates
  Tensor dgate;   // [N, G], present if gate is
  Tensor da, db;  // [1] f32 or bf16, accumulate; present exactly if a and b are
  Tensor dy;      // [N, C]
  Tensor x, z;    // [N, C]; x is read only for da, z only for db and dgate
  Tensor gate = {};
  Tensor a = {}, b = {};
  float factor = 1;
  int64_t groups() const { return gate ? gate.cols() : 1; }
  static constexpr const char* kName = "gated_sum_bwd";
  auto fields() {
    return fields_of(Field::out("dx", dx), Field::inout("dz", dz), Field::out("dgate", dgate), Field::inout("da", da),
                     Field::inout("db", db), Field::in("dy", dy), Field::in("x", x), Field::in("z", z),
                     Field::in("gate", gate), Field::in("a", a), Field::in("b", b));
  }
  void check() const {
    Expect e{kName};
    e.floating("dy", dy).matrix("dy", dy).that(dx || dz, "dx or dz");
    if (dx) e.view("dx", dx, dy.dtype, dy.shape);
    if (dz) e.view("dz", dz, dy.dtype, dy.shape);
    if (x) e.view("x", x, dy.dtype, dy.shape);
    if (z) e.view("z", z, dy.dtype, dy.shape);
    e.that(bool(gate) == bool(dgate) && bool(a) == bool(da) && bool(b) == bool(db),
           "dgate, da and db exactly where gate, a and b are");
    e.that((!a || (dx && x)) && (!(b || gate) || (dz && z)), "x and dx with a, z and dz with b or a gate");
    if (gate) e.matrix("gate", gate).is("gate", gate, dy.dtype, {dy.rows(), gate.cols()});
    if (gate) e.is("dgate", dgate, dy.dtype, gate.shape).that(dy.cols() % gate.cols() == 0, "groups of equal columns");
    if (a) e.floating("a", a).is("a", a, a.dtype, {1}).gradient("da", da, {1});
    if (b) e.floating("b", b).is("b", b, b.dtype, {1}).gradient("db", db, {1});
  }
  Cost cost() const { return {8.0 * double(dy.numel()), traffic(*this)}; }
};

}  // namespace athanor
