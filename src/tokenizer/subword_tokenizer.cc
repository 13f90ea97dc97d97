#include "tokenizer/subword_tokenizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace athanor {
namespace {

using In = AddedToken::In;

// The form of an added token's text that the `tokenizers` package searches for and, since 0.23, decodes it to.
std::string form_of(const AddedToken& token, const Normalizer& normalizer) {
  return token.in == In::normal_form ? normalizer.of(token.text) : token.text;
}

TokenFinder finder_of(const SubwordParts& parts, bool allow_special, bool normalized) {
  std::vector<TokenFinder::Token> tokens;
  for (const AddedToken& token : parts.added) {
    if ((token.special && !allow_special) || (token.in != In::text) != normalized) continue;
    tokens.push_back({.text = form_of(token, parts.normalizer),
                      .id = token.id,
                      .strips_left = token.strips_left,
                      .strips_right = token.strips_right});
  }
  return TokenFinder(std::move(tokens));
}

std::variant<Bpe, Unigram> model_of(SubwordParts& parts) {
  switch (parts.model) {
    case SubwordParts::Model::merges:
      break;
    case SubwordParts::Model::ranks:
      return Bpe::by_ranks(std::move(parts.tokens));
    case SubwordParts::Model::scores:
      return Bpe::by_scores(std::move(parts.tokens), parts.scores.of, *parts.characters);
    case SubwordParts::Model::unigram:
      return Unigram(std::move(parts.tokens), std::move(parts.scores), *parts.characters);
  }
  return Bpe(std::move(parts.tokens), parts.merges, parts.whole_pieces, parts.characters);
}

// No word breaks with whole_pieces, since a whole piece may be a token that merges cannot make; and none with the
// unigram model, since its rounded sums depend on all the text before.
std::optional<WordBreaks> words_of(const SubwordParts& parts) {
  if (parts.splits_at_spaces) return WordBreaks();
  if (!parts.characters || parts.whole_pieces || parts.model == SubwordParts::Model::unigram) return {};
  WordBreaks words(parts.tokens, parts.characters->has_bytes());
  for (const AddedToken& token : parts.added) words.add(form_of(token, parts.normalizer));
  return words;
}

}  // namespace

class SubwordTokenizer::TextEncoder final : public Encoder {
 public:
  explicit TextEncoder(const SubwordTokenizer& tokenizer) : t_(tokenizer), model_(tokenizer.piece_encoder()) {}

  void append(std::string_view text, std::vector<int32_t>& out, TextPlace place) override {
    between(t_.in_text_, text, place, out, [&](std::string_view part, TextPlace part_place) {
      const std::string_view normal = t_.normalizer_.of(part, part_place, normal_);
      between(t_.in_normalized_text_, normal, part_place, out,
              [&](std::string_view p, TextPlace its_place) { split(t_.respelling_.of(p, its_place, respelt_), out); });
    });
  }

 private:
  // Appends the ids of the tokens found in a text, and calls rest(text, place) for the text between them.
  // [tokenizers/src/tokenizer/added_vocabulary.rs, find_matches]
  template <class Fn>
  void between(const TokenFinder& tokens, std::string_view text, TextPlace place, std::vector<int32_t>& out,
               Fn&& rest) const {
    size_t done = 0;
    for (auto found = tokens.next(text, 0); found; found = tokens.next(text, found.end)) {
      size_t begin = found.begin;
      while (found.token->strips_left && begin > done && is_space(text, char_before(text, begin)))
        begin = char_before(text, begin);
      if (begin > done) rest(text.substr(done, begin - done), place);
      out.push_back(found.token->id);
      done = found.end;
      while (found.token->strips_right && done < text.size() && is_space(text, done)) done += char_at(text, done).bytes;
      place = TextPlace::after_token;
    }
    if (done < text.size()) rest(text.substr(done), place);
  }
  bool is_space(std::string_view text, size_t at) const { return t_.table_.at(text, at).kind & kSpace; }
  void split(std::string_view text, std::vector<int32_t>& out) {
    std::array<std::string_view, PieceEncoder::kBatch> pieces;
    size_t count = 0;
    const auto encode = [&] { model_->append({pieces.data(), std::exchange(count, 0)}, out); };
    const auto put = [&](std::string_view piece) {
      pieces[count++] = piece;
      if (count == pieces.size()) encode();
    };
    t_.splitter_.for_each(t_.table_, text, [&](std::string_view piece) {
      if (t_.words_)
        t_.words_->for_each(piece, put);
      else
        put(piece);
    });
    encode();
  }

  const SubwordTokenizer& t_;
  std::unique_ptr<PieceEncoder> model_;
  Normalizer::Workspace normal_, respelt_;
};

SubwordTokenizer::SubwordTokenizer(SubwordParts parts, Descriptor descriptor, std::vector<TokenizerFile> sources)
    : words_(words_of(parts)),
      model_(model_of(parts)),
      splitter_(std::move(parts.splitter)),
      in_text_(finder_of(parts, descriptor.allow_special, false)),
      in_normalized_text_(finder_of(parts, descriptor.allow_special, true)),
      normalizer_(std::move(parts.normalizer)),
      respelling_(std::move(parts.respelling)),
      texts_(std::move(parts.unreachable)),
      decoding_(std::move(parts.decoding)),
      descriptor_(std::move(descriptor)),
      files_(std::move(sources)) {
  auto size = int64_t(tokens().size());
  for (const AddedToken& token : parts.added) {
    size = std::max(size, int64_t{token.id} + 1);
    texts_[token.id] = form_of(token, normalizer_);
  }
  if (descriptor_.vocab_size == 0) descriptor_.vocab_size = size;
  if (descriptor_.vocab_size < size)
    throw Error(cat("vocabulary of ", descriptor_.vocab_size, ", but there are ids up to ", size - 1), Exit::usage);
  if (descriptor_.eod_id < 0 || descriptor_.eod_id >= descriptor_.vocab_size)
    throw Error(
        cat("end of document: id ", descriptor_.eod_id, " is outside the vocabulary of ", descriptor_.vocab_size),
        Exit::usage);
  files_.insert(files_.begin(), {kTokenizerFile, descriptor_text(descriptor_)});
  if (!descriptor_.allow_special)
    for (const SelfTest& test : parts.self_tests) check(test, parts.characters->token);
}

void SubwordTokenizer::check(const SelfTest& test, int32_t unknown) const {
  std::vector<int32_t> expected;
  for (size_t begin = 0, end = 0; begin < test.pieces.size(); begin = end + 1) {
    end = std::min(test.pieces.find(' ', begin), test.pieces.size());
    const std::string_view piece = std::string_view(test.pieces).substr(begin, end - begin);
    const auto other = std::ranges::find_if(texts_, [&](const auto& text) { return text.second == piece; });
    const int32_t id = other != texts_.end() ? other->first : tokens().find(piece);
    expected.push_back(id >= 0 ? id : unknown);
  }
  const std::vector<int32_t> ids = encode(test.text);
  const auto* unigram = std::get_if<Unigram>(&model_);  // nearly equal segmentations may differ between versions
  constexpr double kNear = 1e-7;                        // [sentencepiece 0.2.3 unigram_model.cc, kEpsilon]
  if (unigram ? std::abs(unigram->score(ids) - unigram->score(expected)) > kNear : ids != expected)
    throw Error(cat("self_test_data: \"", test.text.substr(0, 80), "\" has other pieces than \"",
                    test.pieces.substr(0, 80), "\": the file is damaged, or of another program's kind"),
                Exit::usage);
}

std::unique_ptr<Encoder> SubwordTokenizer::encoder() const { return std::make_unique<TextEncoder>(*this); }

const TokenTable& SubwordTokenizer::tokens() const {
  return std::visit([](const auto& model) -> const TokenTable& { return model.tokens(); }, model_);
}

std::unique_ptr<PieceEncoder> SubwordTokenizer::piece_encoder() const {
  if (const auto* unigram = std::get_if<Unigram>(&model_)) return std::make_unique<UnigramEncoder>(*unigram);
  return std::make_unique<BpeEncoder>(std::get<Bpe>(model_));
}

std::string_view SubwordTokenizer::text_of(int32_t id) const {
  if (const auto other = texts_.find(id); other != texts_.end()) return other->second;
  const bool known = id >= 0 && id < int64_t(tokens().size());
  const std::string_view bytes = known ? tokens()[size_t(id)] : std::string_view();
  return bytes.empty() ? std::string_view() : bytes;
}

std::string SubwordTokenizer::decode(std::span<const int32_t> ids, TextPlace place) const {
  std::string text;
  std::vector<std::string> tokens;
  for (const int32_t id : ids) {
    const std::string_view part = text_of(id);
    if (!part.data()) throw Error(cat(name(), " tokenizer: id ", id, " is not in its vocabulary of ", vocab_size()));
    if (decoding_.empty())
      text += part;
    else
      tokens.emplace_back(part);
  }
  return decoding_.empty() ? text : decoding_.text_of(std::move(tokens), place);
}

// With a split pattern, tokens in a text that a normalizer changed have no fixed position in the original text, so no
// cut is known to be safe if there are any. Word breaks are never inside a token.
bool SubwordTokenizer::cuts() const {
  if (!words_)
    return splitter_.cuts() && normalizer_.only_normal_forms() && (in_normalized_text_.empty() || normalizer_.empty());
  return splitter_.empty() && normalizer_.only_marks_spaces() && respelling_.only_marks_spaces() &&
         (normalizer_.marks_spaces() || respelling_.marks_spaces());
}

// True if a token reaches across the cut or ends there: a text behind a token may begin otherwise than one `inside`.
bool SubwordTokenizer::token_covers(std::string_view text, size_t cut) const {
  const auto covers = [](const TokenFinder& tokens, std::string_view in, size_t end) {
    for (size_t place = end - std::min(end, tokens.longest()); place < end; ++place)
      if (tokens.at(in, place).end >= end) return true;
    return false;
  };
  if (covers(in_text_, text, cut)) return true;
  if (in_normalized_text_.empty()) return false;
  if (normalizer_.empty()) return covers(in_normalized_text_, text, cut);
  const size_t begin = cut - std::min(cut, in_normalized_text_.longest());
  Normalizer::Workspace workspace;
  const std::string_view before = normalizer_.of(text.substr(begin, cut - begin), TextPlace::inside, workspace);
  return covers(in_normalized_text_, before, before.size());
}

// Normal forms other than NFC may change the letter or number at the end of a word: only those of ASCII stay.
bool SubwordTokenizer::word_ends(std::string_view text, size_t cut) const {
  if (!words_) return normalizer_.only_nfc() || uint8_t(text[cut - 1]) < 0x80;
  const uint32_t before = char_at(text, char_before(text, cut)).code;
  return text[cut] == ' ' ? words_->before_space(before) : words_->before_newline(before);
}

size_t SubwordTokenizer::last_cut(std::string_view text, size_t from, size_t to) const {
  if (!cuts()) return from;
  const size_t longest =
      std::max({in_text_.longest(), normalizer_.empty() ? in_normalized_text_.longest() : 0, size_t{1}});
  to = std::min(to, text.size() - std::min(text.size(), longest));
  while (to > from) {
    const size_t cut = last_safe_cut(table_, text, from, to);
    if (cut == from || (word_ends(text, cut) && !token_covers(text, cut))) return cut;
    to = cut - 1;
  }
  return from;
}

}  // namespace athanor
