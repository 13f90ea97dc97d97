#include "nn/ring.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/int.h"
#include "nn/context.h"

namespace athanor {
namespace {

Tensor rows_of(const Tensor& t, Ring::Halves halves) {
  const int64_t rows = t.shape[0] / 2;
  return t.slice(halves.begin * rows, halves.end * rows);
}

// to = sum, rounded to the dtype of `to`, whose rows may be strided.
void round_to(Ctx& c, const Tensor& to, const Tensor& sum) {
  if (to.dtype == sum.dtype) return c.run(Combine{.y = to, .a = sum});
  const Buffer narrow = c.alloc("sum, rounded", to.dtype, sum.shape);
  c.run(Cast{.y = narrow.t, .x = sum});
  c.run(Combine{.y = to, .a = narrow.t});
}

Buffer zeros(Ctx& c, const char* name, DType dtype, Shape shape) {
  Buffer b = c.alloc(name, dtype, shape);
  c.run(Fill{.x = b.t});
  return b;
}

// Sends one tensor to a rank and receives one from another.
ContextPass pass(Ctx& c, const Ring& ring, std::pair<int64_t, Tensor> out, std::pair<int64_t, Tensor> in,
                 int64_t most) {
  if (c.arena.recording()) return c.begin_pass({}, {}, most);  // a dry run sends nothing
  std::vector<Tensor> to(size_t(ring.ranks)), from(to.size());
  if (out.second.numel() > 0) to[size_t(out.first)] = out.second;
  if (in.second.numel() > 0) from[size_t(in.first)] = in.second;
  return c.begin_pass(to, from, most);
}

// Returns this rank's keys and values first, then in each hop those of another rank.
class PassedKeys {
 public:
  PassedKeys(Ctx& c, const Ring& ring, const Tensor& own) : ring_(ring), hops_(ring.hops()), own_(own) {
    if (hops_.empty()) return;
    packed_ = c.alloc("keys and values of a rank", own.dtype, own.shape);
    c.run(Combine{.y = packed_.t, .a = own});
    for (size_t i = 0; i < std::min<size_t>(2, hops_.size()); ++i)
      passed_[i] = c.alloc("keys and values of another rank", own.dtype, own.shape);
    begin(c);
  }
  // Returns the next keys and values, and invalidates those returned two calls ago.
  Tensor next(Ctx& c) {
    const size_t now = at_++;
    if (now == 0) return own_;
    c.end_pass(std::move(pass_));
    if (at_ <= hops_.size()) begin(c);
    return passed_[(now - 1) % 2].t;
  }

 private:
  // Starts the next hop. When next() is called for the second time, the first hop is already running, so the hop to
  // start is number at_, counted from 1.
  void begin(Ctx& c) {
    const size_t number = at_ == 0 ? 0 : at_ - 1;
    const int64_t hop = hops_[number], to = ring_.after(hop), from = ring_.before(hop);
    const Tensor& into = passed_[number % 2].t;
    pass_ = pass(c, ring_, {to, rows_of(packed_.t, ring_.seen(to, ring_.rank))},
                 {from, rows_of(into, ring_.seen(ring_.rank, from))},
                 ring_.most_halves(hop) * int64_t(packed_.t.bytes()) / 2);
  }
  const Ring& ring_;
  std::vector<int64_t> hops_;
  Tensor own_;
  Buffer packed_;
  std::array<Buffer, 2> passed_;
  ContextPass pass_;
  size_t at_ = 0;
};

// Sends gradients of other ranks' keys and values to their owners, and receives the gradients of this rank's keys and
// values.
class GradientsHome {
 public:
  GradientsHome(Ctx& c, const Ring& ring, const Tensor& like) : ring_(ring) {
    out_ = c.alloc("gradients for another rank", like.dtype, like.shape);
    in_ = c.alloc("gradients from another rank", like.dtype, like.shape);
  }
  void begin(Ctx& c, int64_t hop, const Tensor& sums) {
    c.run(Cast{.y = out_.t, .x = sums});
    c.run(Fill{.x = in_.t});
    const int64_t to = ring_.before(hop), from = ring_.after(hop);
    pass_ = pass(c, ring_, {to, rows_of(out_.t, ring_.seen(ring_.rank, to))},
                 {from, rows_of(in_.t, ring_.seen(from, ring_.rank))},
                 ring_.most_halves(hop) * int64_t(out_.t.bytes()) / 2);
    under_way_ = true;
  }
  void end(Ctx& c, const Tensor& sums) {
    if (!std::exchange(under_way_, false)) return;
    c.end_pass(std::move(pass_));
    c.run(Add{.y = sums, .a = sums, .b = in_.t});
  }

 private:
  const Ring& ring_;
  Buffer out_, in_;
  ContextPass pass_;
  bool under_way_ = false;
};

// Span tables, in the order in which they are used.
class Tables {
 public:
  Tables(const Tensor& spans, const Ring& ring) : spans_(spans), rows_(spans.shape[0] / ring.tables()) {}
  Tensor next() {
    const int64_t begin = rows_ * at_++;
    return spans_.slice(begin, begin + rows_);
  }

 private:
  Tensor spans_;
  int64_t rows_, at_ = 0;
};

}  // namespace

bool Ring::sees(int64_t query_piece, int64_t key_piece) const {
  if (key_piece >= query_piece) return key_piece == query_piece;
  const int64_t nearest = (query_piece - key_piece - 1) * piece_length + 1;
  return window == 0 || nearest < window;
}

Ring::Halves Ring::seen(int64_t queries_of, int64_t keys_of) const {
  Halves all{2, 0};
  for (const int64_t q : {0, 1})
    for (const int64_t k : {0, 1})
      if (sees(piece(queries_of, q), piece(keys_of, k))) all = {std::min(all.begin, k), std::max(all.end, k + 1)};
  return all.size() > 0 ? all : Halves{};
}

// Closed form of the max of seen(after(hop), rank).size() over all ranks. A receiver `hop` ranks up has queries `hop`
// pieces after the sender's first piece, and sees nothing of its second. A receiver `ranks - hop` ranks down has
// queries that many pieces after the sender's second piece, and one more after its first if the sender is rank ranks -
// 1.
int64_t Ring::most_halves(int64_t hop) const {
  const auto reaches = [&](int64_t pieces) { return window == 0 || (pieces - 1) * piece_length + 1 < window; };
  if (reaches(ranks - hop + 1)) return 2;
  return reaches(ranks - hop) || reaches(hop) ? 1 : 0;
}

std::vector<int64_t> Ring::hops() const {
  std::vector<int64_t> all;
  for (int64_t hop = 1; hop < ranks; ++hop)
    if (most_halves(hop) > 0) all.push_back(hop);
  return all;
}

std::vector<Ring::Pair> Ring::own_pairs() const { return {{0, 0, 0.5}, {1, 0, 1}, {1, 1, 0.5}}; }

// Both pieces of this rank see only a lower rank's first pieces. Both pieces of a higher rank are seen only by this
// rank's second pieces.
std::vector<Ring::Pair> Ring::pairs(int64_t hop) const {
  if (before(hop) < rank) return {{0, 0, 1}, {1, 0, 1}};
  return {{1, 0, 1}, {1, 1, 1}};
}

Span Ring::cut(const Span& whole, int64_t query_piece, int64_t key_piece) const {
  const int64_t length = 2 * ranks * piece_length, sequence = whole.q_begin / length;
  const int64_t queries = sequence * length + query_piece * piece_length;
  const int64_t keys = sequence * length + key_piece * piece_length;
  const int64_t q_begin = std::max<int64_t>(whole.q_begin, queries);
  const int64_t q_end = std::min<int64_t>(whole.q_begin + whole.q_len, queries + piece_length);
  const int64_t q_pos = whole.q_pos + q_begin - whole.q_begin;
  const int64_t k_begin = std::max<int64_t>(whole.k_begin, keys);
  const int64_t k_pos = whole.k_pos + k_begin - whole.k_begin;
  int64_t k_end = std::min<int64_t>(whole.k_begin + whole.k_len, keys + piece_length);
  k_end = std::min(k_end, k_begin + q_pos + (q_end - q_begin) - k_pos);  // causal: no keys after the last query
  if (q_begin >= q_end || k_begin >= k_end) return {};
  if (window > 0 && q_pos - (k_pos + k_end - k_begin - 1) >= window) return {};
  return {.q_begin = narrow<int32_t>(sequence * piece_length + q_begin - queries),
          .q_len = narrow<int32_t>(q_end - q_begin),
          .k_begin = narrow<int32_t>(sequence * piece_length + k_begin - keys),
          .k_len = narrow<int32_t>(k_end - k_begin),
          .q_pos = narrow<int32_t>(q_pos),
          .k_pos = narrow<int32_t>(k_pos)};
}

std::vector<Span> Ring::cut(const std::vector<Span>& whole) const {
  std::vector<Span> all;
  const auto add = [&](const std::vector<Pair>& tables, int64_t keys_of) {
    for (const Pair& pair : tables)
      for (const Span& span : whole) all.push_back(cut(span, piece(rank, pair.q), piece(keys_of, pair.k)));
  };
  add(own_pairs(), rank);
  for (const int64_t hop : hops()) add(pairs(hop), before(hop));
  return all;
}

namespace {

// Backward of ring attention: gradients of this rank's rows [rows, (H + 2K) D].
struct RingBackward {
  Tensor qkv, y, lse, spans;
  int64_t sequences;  // as in Batch
  AttentionShape shape;
  Ring ring;

  Buffer run(Ctx& c, const Tensor& dy) const {
    const Tensor own = keys_and_values(qkv, shape);
    const Buffer dq = zeros(c, "sums of gradients of queries", DType::f32, y.shape);
    const Buffer dkv = zeros(c, "sums of gradients of own keys and values", DType::f32, own.shape);
    {
      PassedKeys passed(c, ring, own);
      GradientsHome home(c, ring, own);
      Tables tables(spans, ring);
      add(c, dy, passed.next(c), ring.own_pairs(), tables, dq.t, dkv.t);
      const Buffer others = c.alloc("sums of gradients of keys and values", DType::f32, own.shape);
      for (const int64_t hop : ring.hops()) {
        const Tensor kv = passed.next(c);
        c.run(Fill{.x = others.t});
        add(c, dy, kv, ring.pairs(hop), tables, dq.t, others.t);
        home.end(c, dkv.t);
        home.begin(c, hop, others.t);
      }
      home.end(c, dkv.t);
    }
    Buffer d = c.alloc("attention.dqkv", qkv.shape);
    round_to(c, queries(d.t, shape), dq.t);
    round_to(c, keys_and_values(d.t, shape), dkv.t);
    return d;
  }

 private:
  void add(Ctx& c, const Tensor& dy, const Tensor& kv, const std::vector<Ring::Pair>& pairs, Tables& tables,
           const Tensor& dq, const Tensor& dkv) const {
    const Buffer of_queries = c.alloc("gradients of queries", half(y, 0).shape);
    const Buffer of_keys = c.alloc("gradients of keys and values", half(kv, 0).shape);
    for (const Ring::Pair& pair : pairs) {
      const Tensor some = half(kv, pair.k);
      c.run(AttentionBwd{.dq = of_queries.t,
                         .dk = keys(of_keys.t, shape),
                         .dv = values(of_keys.t, shape),
                         .dy = half(dy, pair.q),
                         .y = half(y, pair.q),
                         .lse = half(lse, pair.q),
                         .q = half(queries(qkv, shape), pair.q),
                         .k = keys(some, shape),
                         .v = values(some, shape),
                         .spans = tables.next(),
                         .shape = shape,
                         .seen = pair.seen,
                         .sequences = sequences});
      c.run(Add{.y = half(dq, pair.q), .a = half(dq, pair.q), .b = of_queries.t});
      c.run(Add{.y = half(dkv, pair.k), .a = half(dkv, pair.k), .b = of_keys.t});
    }
  }
};

}  // namespace

// Partial outputs are merged, and gradients added, in f32 in the order of hops, and rounded once.
Var attention_in_ring(Net n, Var qkv, const Batch& batch, AttentionShape shape, int layer, Param sinks) {
  Ctx& c = n.c;
  const std::string block = block_subject(n, layer);
  const CollectiveSubject subject(block);
  const Communicator& group = c.mesh.context();
  CHECK(batch.ring_window == 0 || (shape.window > 0 && shape.window <= batch.ring_window), "a window of ", shape.window,
        " tokens, with spans cut for one of ", batch.ring_window);
  const Ring ring{group.size(), group.rank(), batch.piece_length, batch.ring_window};
  const int64_t rows = qkv.t().rows(), columns = shape.heads * shape.head_dim;
  Buffer lse = c.alloc("attention.lse", DType::f32, {rows, shape.heads});
  c.run(Fill{.x = lse.t, .value = -std::numeric_limits<float>::infinity()});
  Buffer y = zeros(c, "attention.y in f32", DType::f32, {rows, columns});
  {
    PassedKeys passed(c, ring, keys_and_values(qkv.t(), shape));
    Tables tables(batch.spans, ring);
    const Buffer part = c.alloc("attention.y of a part", {rows / 2, columns});
    const Buffer part_lse = c.alloc("attention.lse of a part", DType::f32, {rows / 2, shape.heads});
    const auto meet = [&](const std::vector<Ring::Pair>& pairs) {
      const Tensor kv = passed.next(c);
      for (const Ring::Pair& pair : pairs) {
        c.run(AttentionFwd{.y = part.t,
                           .lse = part_lse.t,
                           .q = half(queries(qkv.t(), shape), pair.q),
                           .k = keys(half(kv, pair.k), shape),
                           .v = values(half(kv, pair.k), shape),
                           .spans = tables.next(),
                           .shape = shape,
                           .top = max_attention_logits(c, shape, layer),
                           .seen = pair.seen,
                           .sequences = batch.sequences});
        c.run(
            MergeAttention{.y = half(y.t, pair.q), .lse = half(lse.t, pair.q), .part = part.t, .part_lse = part_lse.t});
      }
    };
    meet(ring.own_pairs());
    for (const int64_t hop : ring.hops()) meet(ring.pairs(hop));
  }
  add_sinks(n, y.t, lse.t, sinks);
  if (c.recipe.compute != DType::f32) {
    const Buffer rounded = c.alloc("attention.y", y.t.shape);
    c.run(Cast{.y = rounded.t, .x = y.t});
    y = rounded;
  }
  Var out = c.var(y);
  out.producer_keeps_it();
  c.record("attention", [&params = n.params, sinks, kept = qkv.keep(), y, lse, spans = batch.spans,
                         sequences = batch.sequences, shape, ring, block, sx = qkv.slot(), s = out.slot()](Ctx& cc) {
    const CollectiveSubject of_backward(block);
    const Buffer dy = cc.take(s);
    add_sinks_gradient({cc, params}, dy.t, y.t, lse.t, sinks);
    const RingBackward backward{kept.t, y.t, lse.t, spans, sequences, shape, ring};
    cc.put(sx, backward.run(cc, dy.t));
  });
  return out;
}

}  // namespace athanor
