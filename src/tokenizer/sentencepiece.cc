// Parser of SentencePiece's model file: parse_sentencepiece of files.h. Field numbers are those of
// sentencepiece_model.proto.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"
#include "tokenizer/files.h"
#include "tokenizer/protobuf.h"

namespace athanor {
namespace {

enum PieceType : int64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

class ModelReader {
 public:
  ModelReader(std::string_view content, const std::string& where) : content_(content), where_(where) {}

  SubwordParts read() {
    ProtobufReader file(content_, where_);
    while (file.next()) {
      if (file.field() == 1) read_piece(file.message());
      if (file.field() == 2) read_trainer(file.message());
      if (file.field() == 3) read_normalizer(file.message());
      if (file.field() == 4) read_self_test(file.message());
      if (file.field() == 5) read_denormalizer(file.message());
    }
    return take();
  }

 private:
  template <class... A>
  [[noreturn]] void refuse(const A&... what) const {
    throw Error(cat(where_, ": ", what...), Exit::usage);
  }

  void read_piece(ProtobufReader piece) {
    std::string text;
    float score = 0;
    int64_t type = kNormal;
    while (piece.next()) {
      if (piece.field() == 1) text = piece.bytes();
      if (piece.field() == 2) score = piece.number();
      if (piece.field() == 3) type = piece.integer();
    }
    const auto id = int32_t(pieces_.size());
    const auto require = [&](bool good, auto... what) {
      if (!good) refuse("piece ", id, " \"", text.substr(0, 40), "\": ", what...);
    };
    require(id < kMostTokens, "is beyond ", kMostTokens, " pieces");
    require(!text.empty() && text.size() <= kLongestToken, "expected 1 to ", kLongestToken, " bytes, got ",
            text.size());
    if (text.find('\0') != text.npos) refuse("piece ", id, " holds a zero byte");
    require(std::isfinite(score), "its score ", score, " is no finite number");
    require(type >= kNormal && type <= kByte, "type ", type, " is not supported; expected 1 to ", int(kByte));
    require(texts_.insert(text).second, "appears twice");
    if (type == kUnknown) {
      require(unknown_.token < 0, "is a second piece for unknown characters");
      unknown_.token = id;
    }
    if (type == kByte) read_byte(text, id);
    pieces_.push_back({std::move(text), score, PieceType(type)});
  }

  void read_byte(const std::string& text, int32_t id) {
    for (int byte = 0; byte < 256; ++byte)
      if (text == byte_token(uint8_t(byte))) unknown_.bytes[size_t(byte)] = id, ++bytes_;
  }

  void read_trainer(ProtobufReader trainer) {
    while (trainer.next()) {
      if (trainer.field() == 3) model_type_ = trainer.integer();
      if (trainer.field() == 24) form_.at_end = trainer.integer() != 0;
      if (trainer.field() == 35) byte_fallback_ = trainer.integer() != 0;
      if (trainer.field() == 44) unknown_surface_ = trainer.bytes();
      if (trainer.field() == 47) eos_ = trainer.bytes();
    }
  }

  void read_normalizer(ProtobufReader spec) {
    while (spec.next()) {
      if (spec.field() == 2) form_.charsmap = Charsmap(spec.bytes(), where_);
      if (spec.field() == 3) form_.add_space = spec.integer() != 0;
      if (spec.field() == 4) form_.trim_spaces = spec.integer() != 0;
      if (spec.field() == 5 && spec.integer() == 0) refuse("escape_whitespaces false is not supported");
    }
  }

  void read_denormalizer(ProtobufReader spec) const {
    while (spec.next())
      if (spec.field() == 2 && !spec.bytes().empty()) refuse("a denormalizer is not supported");
  }

  void read_self_test(ProtobufReader data) {
    while (data.next()) {
      if (data.field() != 1) continue;
      SelfTest test;
      for (ProtobufReader sample = data.message(); sample.next();) {
        if (sample.field() == 1) test.text = sample.bytes();
        if (sample.field() == 2) test.pieces = sample.bytes();
      }
      parts_.self_tests.push_back(std::move(test));
    }
  }

  SubwordParts take() {
    const bool unigram = model_type_ == 1;
    if (!unigram && model_type_ != 2)
      refuse("a model of type ", model_type_, " is not supported; expected 1, unigram, or 2, BPE");
    if (unknown_.token < 0 && bytes_ == 0)
      refuse("no piece is for unknown characters: the file is damaged, or no SentencePiece model");
    if (byte_fallback_ ? bytes_ != 256 : bytes_ != 0)
      refuse("byte_fallback ", byte_fallback_ ? "true" : "false", ", but ", bytes_, " pieces of 256 are bytes");
    parts_.model = unigram ? SubwordParts::Model::unigram : SubwordParts::Model::scores;
    place_pieces(unigram);
    parts_.decoding.add(
        PieceText{.drop_space = form_.add_space, .drop_spaces = form_.trim_spaces, .bytes = byte_fallback_});
    parts_.normalizer.add(std::move(form_));
    parts_.characters = unknown_;
    parts_.eod = eos_;
    return std::move(parts_);
  }

  // User-defined symbols are found before BPE; the unigram model has them as tokens with a score that always wins
  // [sentencepiece 0.2.3 unigram_model.cc, GetUserDefinedScore].
  void place_pieces(bool unigram) {
    float least = std::numeric_limits<float>::max();
    for (const Piece& piece : pieces_)
      if (piece.type == kNormal) least = std::min(least, piece.score);
    parts_.scores = {.of = {}, .unknown = least - 10.0f, .single = true};
    std::vector<TokenFinder::Token> symbols;
    for (int32_t id = 0; id < int32_t(pieces_.size()); ++id) {
      const auto& [text, score, type] = pieces_[size_t(id)];
      if (type == kUnused && !unigram)
        refuse("piece ", id, " \"", text.substr(0, 40), "\": unused pieces of BPE are not supported");
      const bool symbol = type == kUserDefined;
      parts_.tokens.put(size_t(id), type == kNormal || (symbol && unigram) ? text : "");
      parts_.scores.of.push_back(symbol ? 0.1 * double(text.size() - 1) : double(score));
      if (symbol) symbols.push_back({.text = text, .id = id});
      if (type == kControl || (symbol && !unigram))
        parts_.added.push_back({.text = text,
                                .id = id,
                                .special = !symbol,
                                .in = symbol ? AddedToken::In::normalized_text : AddedToken::In::text});
      if (type == kUnused || type == kByte) parts_.unreachable[id] = text;
    }
    if (unknown_.token >= 0) parts_.unreachable[unknown_.token] = unknown_surface_;
    form_.symbols = TokenFinder(std::move(symbols));
  }

  struct Piece {
    std::string text;
    float score;
    PieceType type;
  };
  std::string_view content_;
  const std::string& where_;
  SubwordParts parts_;
  std::vector<Piece> pieces_;
  std::set<std::string> texts_;
  Unknown unknown_;
  int bytes_ = 0;
  PieceForm form_;
  int64_t model_type_ = 1;
  bool byte_fallback_ = false;
  std::string unknown_surface_ = " \xe2\x81\x87 ", eos_ = "</s>";  // U+2047
};

}  // namespace

SubwordParts parse_sentencepiece(std::string_view content, const std::string& where) {
  return ModelReader(content, where).read();
}

}  // namespace athanor
