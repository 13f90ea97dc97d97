// Laws of every transport, one function each, called on all ranks of a group.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/rng.h"
#include "comm/communicator.h"
#include "comm/reduce.h"

namespace athanor::testing {

template <class T>
Tensor tensor_of(std::vector<T>& values) {
  return {values.data(), DTypeOf<T>::value, {int64_t(values.size())}};
}

inline constexpr DType kAllTypes[] = {DType::f32, DType::bf16, DType::f16, DType::i32,
                                      DType::u8,  DType::i64,  DType::f64};

// Element i of rank's contribution, as bytes of any dtype.
inline std::vector<std::byte> contribution(int rank, int64_t n, DType dtype) {
  std::vector<std::byte> bytes(size_t(n) * size_of(dtype));
  for (int64_t i = 0; i < n; ++i) {
    const float value = random_normal(9, uint64_t(rank), uint64_t(i)) * 8;
    std::byte* at = bytes.data() + size_t(i) * size_of(dtype);
    const auto store = [&](auto x) { std::memcpy(at, &x, sizeof x); };
    switch (dtype) {
      case DType::f32:
        store(value);
        break;
      case DType::bf16:
        store(from_float<bf16>(value));
        break;
      case DType::f16:
        store(from_float<f16>(value));
        break;
      case DType::i32:
        store(int32_t(value));
        break;
      case DType::u8:
      case DType::f8_e4m3:
      case DType::f8_e5m2:
      case DType::f8_e8m0:
      case DType::f4_e2m1:
        store(uint8_t(std::abs(value)));
        break;
      case DType::i64:
        store(int64_t(value) << 33);
        break;
      case DType::i16:
        store(int16_t(value));
        break;
      case DType::f64:
        store(double(value) / 3);
        break;
    }
  }
  return bytes;
}

// The reduction of all ranks' contributions, from the specification.
inline std::vector<std::byte> expected_reduction(int ranks, int64_t n, DType dtype, Reduce how) {
  std::vector<std::vector<std::byte>> all;
  std::vector<const void*> parts;
  for (int r = 0; r < ranks; ++r) all.push_back(contribution(r, n, dtype));
  for (auto& bytes : all) parts.push_back(bytes.data());
  std::vector<std::byte> out(size_t(n) * size_of(dtype));
  reduce_in_order(out.data(), parts, n, dtype, how);
  return out;
}

inline bool is_integer(DType t) { return t == DType::i32 || t == DType::u8 || t == DType::i64; }

// Sums are those of rank order, to the bit, in every type; sizes that divide badly and none at all included.
inline void all_reduce_is_the_reduction_in_rank_order(Communicator& c) {
  for (const DType dtype : kAllTypes)
    for (const Reduce how : {Reduce::sum, Reduce::avg, Reduce::max})
      for (const int64_t n : {0, 1, 7, 1000}) {
        if (how == Reduce::avg && is_integer(dtype)) continue;
        auto x = contribution(c.rank(), n, dtype);
        c.all_reduce({x.data(), dtype, {n}}, how, Stream::compute);
        EXPECT_EQ(x, expected_reduction(c.size(), n, dtype, how)) << dtype << " " << int(how) << " of " << n;
      }
}

inline void reduce_scatter_is_a_part_of_all_reduce(Communicator& c) {
  for (const DType dtype : kAllTypes)
    for (const int64_t n : {1, 5, 300})
      for (const bool in_place : {false, true}) {
        const int64_t all = n * c.size();
        auto full = contribution(c.rank(), all, dtype);
        const auto want = expected_reduction(c.size(), all, dtype, Reduce::sum);
        std::vector<std::byte> apart(size_t(n) * size_of(dtype));
        std::byte* shard = in_place ? full.data() + size_t(c.rank()) * apart.size() : apart.data();
        c.reduce_scatter({shard, dtype, {n}}, {full.data(), dtype, {all}}, Reduce::sum, Stream::compute);
        EXPECT_EQ(std::vector(shard, shard + apart.size()),
                  std::vector(want.begin() + std::ptrdiff_t(apart.size()) * c.rank(),
                              want.begin() + std::ptrdiff_t(apart.size()) * (c.rank() + 1)))
            << dtype << " " << n << " in place " << in_place;
      }
}

// Sums add the values of all ranks in f32, in the order of ranks, and are rounded once, in bf16 and f16 too.
inline void sums_are_rounded_once(Communicator& c) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t n : {1, 5, 300}) {
      const int64_t all = n * c.size();
      const auto want = expected_reduction(c.size(), all, dtype, Reduce::sum);
      auto x = contribution(c.rank(), all, dtype), full = x;
      std::vector<std::byte> workspace(size_t(c.sum_workspace(dtype, all)) * size_of(dtype));
      const Tensor other{workspace.data(), dtype, {c.sum_workspace(dtype, all)}};
      c.sum({x.data(), dtype, {all}}, other, Stream::compute);
      EXPECT_EQ(x, want) << dtype << " " << n;
      const auto part = std::ptrdiff_t(size_t(n) * size_of(dtype));
      std::byte* shard = full.data() + part * c.rank();
      c.sum_scatter({shard, dtype, {n}}, {full.data(), dtype, {all}}, other, Stream::compute);
      EXPECT_EQ(std::vector(shard, shard + part),
                std::vector(want.begin() + part * c.rank(), want.begin() + part * (c.rank() + 1)))
          << dtype << " " << n;
    }
}

inline void all_gather_is_all_shards_in_rank_order(Communicator& c) {
  for (const DType dtype : kAllTypes)
    for (const int64_t n : {1, 5, 3000})
      for (const bool in_place : {false, true}) {
        auto mine = contribution(c.rank(), n, dtype);
        std::vector<std::byte> full(mine.size() * size_t(c.size())), want;
        for (int r = 0; r < c.size(); ++r) {
          const auto part = contribution(r, n, dtype);
          want.insert(want.end(), part.begin(), part.end());
        }
        std::byte* shard = mine.data();
        if (in_place) {
          shard = full.data() + mine.size() * size_t(c.rank());
          std::copy(mine.begin(), mine.end(), shard);
        }
        c.all_gather({full.data(), dtype, {n * c.size()}}, {shard, dtype, {n}}, Stream::compute);
        EXPECT_EQ(full, want) << dtype << " " << n << " in place " << in_place;
      }
}

inline void broadcast_is_the_roots_value(Communicator& c) {
  for (int root = 0; root < c.size(); ++root)
    for (const int64_t n : {1, 100000}) {
      std::vector<int32_t> x(size_t(n), c.rank());
      c.broadcast(tensor_of(x), root, Stream::compute);
      EXPECT_EQ(x, std::vector<int32_t>(size_t(n), root));
    }
}

// A ring both ways, messages larger than any buffer of the system: a send that needs its receiver must not deadlock.
inline void messages_arrive_in_order(Communicator& c) {
  if (c.size() == 1) return;
  constexpr size_t kLarge = 3 << 20;
  const int next = (c.rank() + 1) % c.size(), before = (c.rank() + c.size() - 1) % c.size();
  for (int32_t message = 0; message < 3; ++message) {
    std::vector<int32_t> out(kLarge / 4, c.rank() * 10 + message), in(out.size());
    const auto send = [&] { c.send(tensor_of(out), next, Stream::compute); };
    const auto recv = [&] { c.recv(tensor_of(in), before, Stream::compute); };
    c.rank() % 2 == 0 ? send() : recv();
    c.rank() % 2 == 0 ? recv() : send();
    EXPECT_EQ(in, std::vector<int32_t>(in.size(), before * 10 + message));
  }
}

// Every rank starts to send to both neighbours before any rank receives, with messages larger than the system's
// buffers.
inline void started_sends_need_no_receiver(Communicator& c) {
  if (c.size() == 1) return;
  constexpr size_t kLarge = 3 << 20;
  const int next = (c.rank() + 1) % c.size(), before = (c.rank() + c.size() - 1) % c.size();
  const auto value = [](int from, int to, int32_t message) { return from * 1000 + to * 10 + message; };
  std::vector<std::vector<int32_t>> out;
  for (int32_t message = 0; message < 3; ++message)
    for (const int to : {next, before}) out.emplace_back(kLarge / 4, value(c.rank(), to, message));
  for (size_t i = 0; i < out.size(); ++i) c.start_send(tensor_of(out[i]), i % 2 == 0 ? next : before, Stream::compute);
  std::vector<int32_t> in(kLarge / 4);

  for (int32_t message = 0; message < 3; ++message)
    for (const int from : {before, next}) {
      c.recv(tensor_of(in), from, Stream::compute);
      EXPECT_EQ(in, std::vector<int32_t>(in.size(), value(from, c.rank(), message)));
    }
  c.finish_sends(next, 1);
  c.finish_sends(next, 0);
  c.finish_sends(before, 0);
}

// Every rank exchanges with every other in the same rounds, in both directions at once.
inline void exchanges_cross(Communicator& c) {
  for (int distance = 1; distance < c.size(); distance *= 2) {
    const int peer = c.rank() ^ distance;
    if (peer >= c.size()) continue;
    std::vector<int32_t> out(700000, c.rank()), in(out.size());
    c.exchange(tensor_of(out), tensor_of(in), peer, Stream::compute);
    EXPECT_EQ(in, std::vector<int32_t>(in.size(), peer));
  }
}

// Sizes of all pairs differ, and some send nothing; what goes to several ranks is one tensor.
inline void all_to_all_gives_each_rank_its_part(Communicator& c) {
  for (const int64_t factor : {1, 3000}) {
    const auto size_of_part = [&](int from, int to) { return factor * ((from * 3 + to) % 4); };
    std::vector<int32_t> sent(size_t(3 * factor), c.rank());
    std::vector<std::vector<int32_t>> parts(static_cast<size_t>(c.size()));
    std::vector<Tensor> out, in;
    for (int r = 0; r < c.size(); ++r) {
      const int64_t to = size_of_part(c.rank(), r), from = size_of_part(r, c.rank());
      parts[size_t(r)].assign(size_t(from), -1);
      out.push_back(to > 0 ? tensor_of(sent).slice(0, to) : Tensor{});
      in.push_back(from > 0 ? tensor_of(parts[size_t(r)]) : Tensor{});
    }
    c.all_to_all(out, in, Stream::compute);
    for (int r = 0; r < c.size(); ++r)
      EXPECT_EQ(parts[size_t(r)], std::vector<int32_t>(size_t(size_of_part(r, c.rank())), r));
  }
}

inline void groups_are_ordered_by_key_and_work_alone(Communicator& c) {
  const auto group = c.split(c.rank() % 2, -c.rank());  // odd and even ranks, last first
  std::vector<int> members;
  for (int r = c.size() - 1; r >= 0; --r)
    if (r % 2 == c.rank() % 2) members.push_back(r);
  ASSERT_EQ(group->size(), int(members.size()));
  EXPECT_EQ(members[size_t(group->rank())], c.rank());
  std::vector<int32_t> all(members.size()), mine{c.rank()};
  group->all_gather(tensor_of(all), tensor_of(mine), Stream::compute);
  EXPECT_EQ(all, std::vector<int32_t>(members.begin(), members.end()));
  const auto alone = group->split(group->rank(), 0);
  EXPECT_EQ(alone->size(), 1);
  alone->all_reduce(tensor_of(mine), Reduce::sum, Stream::compute);
  EXPECT_EQ(mine[0], c.rank());
  group->barrier();
}

// Odd sizes, many calls and several groups in alternation: no call affects the next.
inline void calls_do_not_mix(Communicator& c) {
  const auto second = c.split(0, c.rank());
  for (int64_t call = 0; call < 40; ++call) {
    Communicator& group = call % 3 ? c : *second;
    std::vector<double> x(size_t(1 + call % 17), double(c.rank() + 1) + double(call));
    group.all_reduce(tensor_of(x), Reduce::sum, Stream::compute);
    const double n = c.size();
    for (const double v : x) ASSERT_EQ(v, n * (n + 1) / 2 + n * double(call));
    if (call % 7 == 0) group.barrier();
  }
}

inline void every_law(Communicator& c) {
  all_reduce_is_the_reduction_in_rank_order(c);
  reduce_scatter_is_a_part_of_all_reduce(c);
  sums_are_rounded_once(c);
  all_gather_is_all_shards_in_rank_order(c);
  broadcast_is_the_roots_value(c);
  messages_arrive_in_order(c);
  started_sends_need_no_receiver(c);
  exchanges_cross(c);
  all_to_all_gives_each_rank_its_part(c);
  groups_are_ordered_by_key_and_work_alone(c);
  calls_do_not_mix(c);
}

}  // namespace athanor::testing
