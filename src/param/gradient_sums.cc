// Sums of gradients over data-parallel ranks: leaf by leaf and in a tree, during or after backward, unquantized or
// packed. Also sums over the tensor-parallel ranks that have the same weights.
#include <bit>

#include "ops/packed_groups.h"
#include "param/param_store.h"
#include "param/tree_reduce.h"

namespace athanor {
namespace {

// Sums x over the group, on all its ranks.
void add_up(Ctx& c, Communicator& group, const Tensor& x) {
  const Buffer workspace = c.sum_workspace(group, x);
  if (!c.arena.recording()) group.sum(x, workspace.t, Stream::compute);
}

}  // namespace

void ParamStore::end_leaf(Ctx& c, int64_t leaf) {
  const int pairs = std::countr_one(uint64_t(leaf));  // number of pairs in the tree that this leaf completes
  for (const auto& unit : units_) {
    if (unit->frozen) continue;
    const Tensor& grad = unit->grad;
    for (int level = 0; level < pairs; ++level) c.run(Add{.y = grad, .a = grad, .b = unit->joined[size_t(level)]});
    if (leaf + 1 == sharding_.logical.mine) continue;  // grad holds the sum of all leaves
    c.run(Cast{.y = unit->joined[size_t(pairs)], .x = grad});
    c.run(Fill{.x = grad});
  }
}

void ParamStore::reduce_in_tree(Ctx& c, const Unit& unit) {
  if (sharding_.stage == 0) return tree_all_reduce(c, c.mesh.data_parallel(), unit.grad);
  tree_reduce_scatter(c, c.mesh.shards(), unit.grad);
  tree_all_reduce(c, c.mesh.copies(), unit.own(unit.grad));
}

void ParamStore::reduce_gradients(Ctx& c) {
  for (const auto& unit : units_) {
    if (unit->layout.numel == 0 || unit->frozen) continue;
    const CollectiveSubject subject(unit->name);
    const Tensor& grad = unit->grad;
    if (sharding_.logical.count > 0)
      reduce_in_tree(c, *unit);
    else if (sharding_.stage >= 2)
      reduce_copies(c, grad);
    else if (sharding_.reduces_late)  // otherwise reduce_early() has reduced them
      reduce_whole(c, *unit);
    if (sharding_.packed.gradients) clear_padding(c, *unit);
    if (sharding_.stage == 0 || unit->is_shard(grad)) continue;
    // The sum covers only this rank's shard; clear the gradients of other ranks' shards.
    if (unit->shard.begin > 0) c.run(Fill{.x = grad.slice(0, unit->shard.begin)});
    if (unit->shard.end < unit->layout.numel) c.run(Fill{.x = grad.slice(unit->shard.end, unit->layout.numel)});
  }
  if (sharding_.tensor.ranks > 1) add_parts_of_gradients(c);
  add_tied_gradients(c);
}

// Clears the padding of packed gradients: rounding after a Hadamard transform gives padding next to a parameter, or
// next to the tokens of a vocabulary in it, a nonzero gradient, and an update would then change the padding.
void ParamStore::clear_padding(Ctx& c, const Unit& unit) {
  for (const int id : unit.params) {
    const Placement::Slice& last = placements_[size_t(id)].slices.back();
    const int64_t end = offsets_[size_t(id)] + last.offset + last.numel;
    const Range padding = unit.owned(end, round_up(end, kRotated));
    if (padding.begin < padding.end) c.run(Fill{.x = unit.part(unit.grad, padding)});
  }
}

// Sums gradients of weights that are whole on all tensor-parallel ranks, each of which uses them only for its own heads
// or rows.
void ParamStore::add_parts_of_gradients(Ctx& c) {
  for (size_t id = 0; id < specs_.size(); ++id) {
    if (!specs_[id].trainable || !placements_[id].sums_parts() || !here(size_t(specs_[id].unit))) continue;
    const Unit& unit = *units_[size_t(specs_[id].unit)];
    const Range range = unit.owned(offsets_[id], offsets_[id] + placements_[id].shape.numel());
    const CollectiveSubject subject(specs_[id].name);
    if (range.begin < range.end) add_up(c, c.mesh.tensor(), unit.part(unit.grad, range));
  }
  for (size_t id = 0; id < specs_.size(); ++id)
    if (specs_[id].trainable && placements_[id].repeats > 1 && here(size_t(specs_[id].unit)))
      add_repeated_gradients(c, id);
}

// Sums gradients of elements that are replicated on neighbouring ranks. All ranks of the group take part in one
// all-reduce, each writing at the offset of its piece.
void ParamStore::add_repeated_gradients(Ctx& c, size_t id) {
  const Placement& p = placements_[id];
  const Unit& unit = *units_[size_t(specs_[id].unit)];
  const Range range = unit.owned(offsets_[id] + p.repeated_from, offsets_[id] + p.shape.numel());
  if (range.begin == range.end) return;
  const CollectiveSubject subject(specs_[id].name);
  const int64_t pieces = sharding_.tensor.ranks / p.repeats, mine = sharding_.tensor.rank / p.repeats;
  const Shape piece{1, range.end - range.begin};
  const Buffer all = c.alloc("gradients of repeated heads", unit.grad.dtype, {pieces, piece[1]});
  const Tensor own = all.t.slice(mine, mine + 1), grad = unit.part(unit.grad, range).view(piece);
  c.run(Fill{.x = all.t});
  c.run(Combine{.y = own, .a = grad});
  add_up(c, c.mesh.tensor(), all.t);
  c.run(Combine{.y = grad, .a = own});
}

bool ParamStore::reduces_early(const ProcessMesh& mesh) const {
  return sharding_.stage < 2 && !sharding_.reduces_late && sharding_.logical.count == 0 &&
         mesh.data_parallel().size() > 1;
}

// Returns the ranks over which gradients of a unit without shards are summed.
Communicator& ParamStore::copies_of(const ProcessMesh& mesh, const Unit& unit) {
  return unit.experts ? mesh.expert_copies() : mesh.data_parallel();
}

// Returns the ranks that shard a unit, if it is sharded.
Communicator& ParamStore::shards_of(const ProcessMesh& mesh, const Unit& unit) {
  return unit.experts ? mesh.expert_shards() : mesh.shards();
}

// With several copies, the sums over them are sent in 4 bits, since they use the slower network, and the ranks that
// shard one copy send 8 bits.
DType ParamStore::packed_format(const ProcessMesh& mesh) const {
  return mesh.copies().size() > 1 ? DType::f8_e4m3 : DType::f4_e2m1;
}

// Sums a shard's gradients over the copies.
void ParamStore::reduce_copies(Ctx& c, const Tensor& grad, bool sends) {
  if (sharding_.packed.gradients) return packed_all_reduce(c, c.mesh.copies(), grad, sends);
  add_up(c, c.mesh.copies(), grad);
}

// Starts reducing gradients to which no later micro-batch of the step adds. Every micro-batch allocates the scratch
// buffers for the reduction, because all micro-batches have the same memory plan.
void ParamStore::reduce_early(Ctx& c, const Unit& unit) {
  if (!reduces_early(c.mesh)) return;
  leave_early_room(c);
  begin_sum(c, unit, last_micro_batch_);
}

void ParamStore::reduce_whole(Ctx& c, const Unit& unit) {
  begin_sum(c, unit, true);
  leave_early_room(c);
}

void ParamStore::begin_sum(Ctx& c, const Unit& unit, bool sends) {
  Communicator& all = sharding_.stage == 0 ? copies_of(c.mesh, unit) : shards_of(c.mesh, unit);
  const Tensor mine = unit.own(unit.grad);
  if (sharding_.packed.gradients && sharding_.stage == 0) return packed_all_reduce(c, all, mine, sends);
  if (sharding_.packed.gradients && unit.shards > 1) {
    early_.unit = &unit;
    return early_.packed.begin(c, all, unit.grad, packed_format(c.mesh), sends);
  }
  early_.workspace = c.sum_workspace(all, unit.grad);
  early_.of_copies = sharding_.stage == 0 ? Buffer{} : c.sum_workspace(c.mesh.copies(), mine);
  if (!sends) return;
  early_.ticket = c.overlap([&](Stream stream) {
    if (sharding_.stage == 0) return all.sum(unit.grad, early_.workspace.t, stream);
    all.sum_scatter(mine, unit.grad, early_.workspace.t, stream);
    c.mesh.copies().sum(mine, early_.of_copies.t, stream);
  });
}

// Waits for the previous unit's reduction and frees its scratch buffers.
void ParamStore::leave_early_room(Ctx& c) {
  if (early_.packed) {
    const CollectiveSubject subject(early_.unit->name);
    const Tensor mine = early_.unit->own(early_.unit->grad);
    early_.packed.end(c, mine);
    reduce_copies(c, mine, early_.packed.sends());
  }
  if (!early_.workspace && !early_.of_copies) return;
  c.wait(std::move(early_.ticket));
  early_ = {};
}

}  // namespace athanor
