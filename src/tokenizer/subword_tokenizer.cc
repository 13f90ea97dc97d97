#include "tokenizer/subword_tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace athanor {
namespace {

TokenFinder finder_of(const SubwordParts& parts, bool allow_special, bool normalized, const Nfc* nfc) {
  std::vector<std::pair<std::string, int32_t>> tokens;
  for (const AddedToken& token : parts.added) {
    if ((token.special && !allow_special) || (token.normalized && nfc != nullptr) != normalized) continue;
    tokens.emplace_back(normalized ? nfc->of(token.text) : token.text, token.id);
  }
  return TokenFinder(std::move(tokens));
}

}  // namespace

class SubwordTokenizer::TextEncoder final : public Encoder {
 public:
  explicit TextEncoder(const SubwordTokenizer& tokenizer) : t_(tokenizer), bpe_(tokenizer.bpe_) {}

  void append(std::string_view text, std::vector<int32_t>& out) override {
    between(t_.in_text_, text, out, [&](std::string_view part) {
      if (!t_.nfc_) return split(part, out);
      normal_.clear();
      t_.nfc_->append(part, normal_);
      between(t_.in_normalized_text_, normal_, out, [&](std::string_view p) { split(p, out); });
    });
  }

 private:
  // The ids of the tokens in a text, and rest(...) for what is between them.
  template <class Fn>
  static void between(const TokenFinder& tokens, std::string_view text, std::vector<int32_t>& out, Fn&& rest) {
    size_t done = 0;
    for (auto found = tokens.next(text, 0); found; found = tokens.next(text, found.end)) {
      rest(text.substr(done, found.begin - done));
      out.push_back(found.id);
      done = found.end;
    }
    rest(text.substr(done));
  }
  void split(std::string_view text, std::vector<int32_t>& out) {
    std::array<std::string_view, BpeEncoder::kBatch> pieces;
    size_t count = 0;
    const auto encode = [&] { bpe_.append({pieces.data(), std::exchange(count, 0)}, out); };
    t_.splitter_.for_each(t_.table_, text, [&](std::string_view piece) {
      pieces[count++] = piece;
      if (count == pieces.size()) encode();
    });
    encode();
  }

  const SubwordTokenizer& t_;
  BpeEncoder bpe_;
  std::string normal_;
};

SubwordTokenizer::SubwordTokenizer(SubwordParts parts, Descriptor descriptor, std::vector<TokenizerFile> sources)
    : bpe_(parts.by_ranks ? Bpe::by_ranks(std::move(parts.tokens))
                          : Bpe(std::move(parts.tokens), parts.merges, parts.whole_pieces)),
      splitter_(std::move(parts.splitter)),
      nfc_(parts.nfc ? std::make_unique<Nfc>() : nullptr),
      in_text_(finder_of(parts, descriptor.allow_special, false, nfc_.get())),
      in_normalized_text_(finder_of(parts, descriptor.allow_special, true, nfc_.get())),
      texts_(std::move(parts.unreachable)),
      descriptor_(std::move(descriptor)),
      files_(std::move(sources)) {
  int64_t size = bpe_.size();
  for (AddedToken& token : parts.added) {
    size = std::max(size, int64_t{token.id} + 1);
    texts_[token.id] = std::move(token.text);
  }
  if (descriptor_.vocab_size == 0) descriptor_.vocab_size = size;
  if (descriptor_.vocab_size < size)
    throw Error(cat("vocabulary of ", descriptor_.vocab_size, ", but there are ids up to ", size - 1), Exit::usage);
  if (descriptor_.eod_id < 0 || descriptor_.eod_id >= descriptor_.vocab_size)
    throw Error(
        cat("end of document: id ", descriptor_.eod_id, " is outside the vocabulary of ", descriptor_.vocab_size),
        Exit::usage);
  files_.insert(files_.begin(), {kTokenizerFile, descriptor_text(descriptor_)});
}

std::unique_ptr<Encoder> SubwordTokenizer::encoder() const { return std::make_unique<TextEncoder>(*this); }

std::string_view SubwordTokenizer::text_of(int32_t id) const {
  if (const auto other = texts_.find(id); other != texts_.end()) return other->second;
  return id >= 0 && id < bpe_.size() ? bpe_.bytes_of(id) : std::string_view();
}

std::string SubwordTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    const std::string_view part = text_of(id);
    if (part.empty()) throw Error(cat(name(), " tokenizer: id ", id, " is not in its vocabulary of ", vocab_size()));
    text += part;
  }
  return text;
}

// Tokens in the normalized text have no fixed place in the text as it is, so with them no cut is known to be safe.
bool SubwordTokenizer::cuts() const { return splitter_.cuts() && in_normalized_text_.empty(); }

bool SubwordTokenizer::token_covers(std::string_view text, size_t cut) const {
  const size_t reach = in_text_.longest() - 1;
  for (size_t place = cut - std::min(cut, reach); place < cut; ++place)
    if (in_text_.at(text, place).end > cut) return true;
  return false;
}

size_t SubwordTokenizer::last_cut(std::string_view text, size_t from, size_t to) const {
  if (!cuts()) return from;
  to = std::min(to, text.size() - std::min(text.size(), std::max<size_t>(in_text_.longest(), 1)));
  while (to > from) {
    const size_t cut = last_safe_cut(table_, text, from, to);
    if (cut == from || in_text_.empty() || !token_covers(text, cut)) return cut;
    to = cut - 1;
  }
  return from;
}

}  // namespace athanor
