#include "param/packed_sum.h"

#include <utility>
#include <vector>

#include "ops/packed_groups.h"

namespace athanor {

void PackedScatter::begin(Ctx& c, Communicator& group, const Tensor& whole, DType format, bool sends) {
  ranks_ = group.size(), format_ = format, sends_ = sends;
  const int64_t shard = whole.numel() / ranks_, bytes = packed_bytes(format, shard);
  CHECK(shard * ranks_ == whole.numel() && shard % kPackedGroup == 0, ranks_, " shards of ", whole.numel(),
        " elements are not whole groups");
  sent_ = c.alloc("packed gradients", DType::u8, {ranks_ * bytes});
  received_ = c.alloc("packed gradients of other ranks", DType::u8, {ranks_ * bytes});
  if (!sends) return;
  c.run(PackGroups{.groups = sent_.t, .x = whole, .format = format, .rotated = true});
  ticket_ = c.overlap([&](Stream stream) {
    std::vector<Tensor> out, in;
    for (int64_t r = 0; r < ranks_; ++r) {
      out.push_back(sent_.t.slice(r * bytes, (r + 1) * bytes));
      in.push_back(received_.t.slice(r * bytes, (r + 1) * bytes));
    }
    group.all_to_all(out, in, stream);
  });
}

void PackedScatter::end(Ctx& c, const Tensor& shard) {
  c.wait(std::move(ticket_));
  if (sends_) c.run(SumGroups{.y = shard, .groups = received_.t, .count = ranks_, .format = format_, .rotated = true});
  sent_ = received_ = {};
}

void packed_all_reduce(Ctx& c, Communicator& group, const Tensor& x, bool sends) {
  if (group.size() == 1) return;
  const int64_t bytes = packed_bytes(DType::f4_e2m1, x.numel());
  const Buffer all = c.alloc("packed gradients of copies", DType::u8, {group.size() * bytes});
  if (!sends) return;
  const Tensor own = all.t.slice(group.rank() * bytes, (group.rank() + 1) * bytes);
  c.run(PackGroups{.groups = own, .x = x, .rotated = true});
  c.all_gather(group, all.t, own);
  c.run(SumGroups{.y = x, .groups = all.t, .count = group.size(), .rotated = true});
}

}  // namespace athanor
