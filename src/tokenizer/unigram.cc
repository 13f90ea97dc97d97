#include "tokenizer/unigram.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "base/error.h"
#include "tokenizer/unicode.h"

namespace athanor {

Unigram::Unigram(TokenTable tokens, Scores scores, const Unknown& unknown)
    : tokens_(std::move(tokens)), scores_(std::move(scores)), unknown_(unknown), nodes_(1), bytes_(1, '\0') {
  CHECK(scores_.of.size() == tokens_.size(), scores_.of.size(), " scores of ", tokens_.size(), " tokens");
  std::vector<int32_t> order(tokens_.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return tokens_[size_t(a)] < tokens_[size_t(b)]; });
  struct Range {
    size_t begin, end, depth;  // [begin, end): sorted tokens that share their first `depth` bytes
  };
  std::vector<Range> ranges{{0, order.size(), 0}};  // [node]
  for (size_t node = 0; node < nodes_.size(); ++node) {
    auto [begin, end, depth] = ranges[node];
    const auto token = [&](size_t i) { return tokens_[size_t(order[i])]; };
    for (; begin < end && token(begin).size() == depth; ++begin)
      if (depth > 0) nodes_[node].token = order[begin];
    nodes_[node].first = uint32_t(nodes_.size());
    while (begin < end) {
      const auto byte = uint8_t(token(begin)[depth]);
      const size_t from = begin;
      while (begin < end && uint8_t(token(begin)[depth]) == byte) ++begin;
      nodes_.emplace_back();
      bytes_ += char(byte);
      ranges.push_back({from, begin, depth + 1});
      ++nodes_[node].children;
    }
  }
}

double Unigram::score(std::span<const int32_t> ids) const {
  double sum = 0;
  for (const int32_t id : ids) sum += id == unknown_.token ? scores_.unknown : scores_.of[size_t(id)];
  return sum;
}

void UnigramEncoder::append(std::span<const std::string_view> pieces, std::vector<int32_t>& out) {
  for (const std::string_view piece : pieces) {
    CHECK(piece.size() < kNowhere, "piece of ", piece.size(), " bytes");
    model_.scores_.single ? find_best<float>(piece) : find_best<double>(piece);
    append_best(piece, out);
  }
}

// [sentencepiece 0.2.3 unigram_model.cc and tokenizers models/unigram/model.rs, EncodeOptimized]
template <class Sum>
void UnigramEncoder::find_best(std::string_view piece) {
  best_.assign(piece.size() + 1, {});
  size_t farthest = 0;
  const auto offer = [&](size_t begin, size_t end, Sum score, int32_t token) {
    farthest = std::max(farthest, end);
    Best& best = best_[end];
    if (best.begin == kNowhere || double(score) > best.score) best = {double(score), uint32_t(begin), token};
  };
  // Like SentencePiece, subtracts a large sum from all open segmentations, so that fp32 does not lose differences.
  const auto reset = [&](size_t at) {
    constexpr double kLarge = 100000;
    const auto sum = Sum(best_[at].score);
    if (!std::is_same_v<Sum, float> || std::abs(double(sum)) <= kLarge) return;
    for (size_t i = at; i <= farthest; ++i)
      if (i == at || best_[i].begin != kNowhere) best_[i].score = double(Sum(best_[i].score) - sum);
  };
  for (size_t at = 0; at < piece.size();) {
    reset(at);
    const auto before = Sum(best_[at].score);
    const size_t next = at + char_at(piece, at).bytes;
    bool known = false;
    const Unigram::Node* node = &model_.nodes_[0];
    for (size_t end = at; end < piece.size();) {
      node = model_.child(*node, piece[end]);
      if (!node) break;
      ++end;
      if (node->token < 0) continue;
      offer(at, end, Sum(model_.scores_.of[size_t(node->token)]) + before, node->token);
      known = known || end == next;
    }
    if (!known) offer(at, next, Sum(model_.scores_.unknown) + before, -1);
    at = next;
  }
}

void UnigramEncoder::append_best(std::string_view piece, std::vector<int32_t>& out) {
  ends_.clear();
  for (size_t end = piece.size(); end > 0; end = best_[end].begin) ends_.push_back(uint32_t(end));
  const Unknown& unknown = model_.unknown_;
  const auto is_unknown = [&](uint32_t end) { return best_[end].token < 0 || best_[end].token == unknown.token; };
  for (size_t i = ends_.size(); i-- > 0;) {
    if (!is_unknown(ends_[i])) {
      out.push_back(best_[ends_[i]].token);
      continue;
    }
    const size_t begin = best_[ends_[i]].begin;
    while (i > 0 && is_unknown(ends_[i - 1])) --i;
    const std::string_view run = piece.substr(begin, ends_[i] - begin);
    if (const int32_t token = model_.tokens_.find(run); token >= 0)
      out.push_back(token);
    else
      unknown.append(run, false, out);
  }
}

}  // namespace athanor
