// Megatron-LM's indexed data sets: PREFIX.bin holds only tokens; PREFIX.idx holds their type, the lengths and offsets
// of sequences, and which sequences form a document [megatron/core/datasets/indexed_dataset.py].
#include <array>

#include "base/error.h"
#include "data/token_format.h"

namespace athanor {
namespace {

constexpr int64_t kIndexHeader = 34;  // bytes: magic 9, version 8, type 1, sequences 8, document boundaries 8
constexpr std::string_view kMagic("MMIDIDX\0\0", 9);

struct Header {
  TokenType type;
  int64_t sequences, boundaries;
  int64_t lengths() const { return kIndexHeader; }                   // offset of int32 [sequences]: lengths in tokens
  int64_t pointers() const { return kIndexHeader + 4 * sequences; }  // offset of int64 [sequences]: byte offsets
  int64_t documents() const {
    return kIndexHeader + 12 * sequences;
  }  // offset of int64 [boundaries]: sequence numbers; the first is 0
};

TokenType type_of_code(uint8_t code, const std::string& path) {
  constexpr std::array kTypes = {TokenType::u8,  TokenType::i8,  TokenType::i16, TokenType::i32,
                                 TokenType::i64, TokenType::f64, TokenType::f32, TokenType::u16};
  if (code < 1 || code > kTypes.size())
    throw Error(cat(path, ": byte 17: expected a type code of 1 to ", kTypes.size(), ", found ", int(code)));
  return kTypes[code - 1];
}

Header read_header(const StableFile& index) {
  const std::string& path = index.path();
  if (index.bytes() < kIndexHeader)
    throw Error(
        cat(path, ": truncated: a Megatron index has at least ", kIndexHeader, " bytes, the file ", index.bytes()));
  std::array<char, 9> magic{};
  index.read(0, std::as_writable_bytes(std::span(magic)));
  if (std::string_view(magic.data(), magic.size()) != kMagic)
    throw Error(cat(path, ": expected the index of a Megatron data set, which begins with MMIDIDX"));
  if (const auto version = index.value<uint64_t>(9); version != 1)
    throw Error(cat(path, ": expected a Megatron index of version 1, it says ", version));
  const auto sequences = index.value<uint64_t>(18), boundaries = index.value<uint64_t>(26);
  const auto available = uint64_t(index.bytes() - kIndexHeader);
  const bool small = sequences <= available / 12 && boundaries <= available / 8;
  const uint64_t needed = small ? 12 * sequences + 8 * boundaries : 0;
  // Multimodal data sets have one more byte per sequence: the mode.
  if (!small || (needed != available && needed + sequences != available))
    throw Error(cat(path, ": the header promises ", sequences, " sequences and ", boundaries,
                    " document boundaries, but ", available, " bytes follow it: it is truncated or damaged"));
  return {type_of_code(index.value<uint8_t>(17), path), int64_t(sequences), int64_t(boundaries)};
}

// Refuses sequences that are not contiguous from the first byte of the .bin to the last: they would be misread.
void require_back_to_back(const StableFile& index, const Header& h, const StableFile& tokens) {
  ValueRun<int32_t> lengths(index, h.lengths(), h.sequences);
  ValueRun<int64_t> pointers(index, h.pointers(), h.sequences);
  const int64_t item = item_size(h.type);
  int64_t at = 0;
  for (int64_t i = 0; i < h.sequences; ++i) {
    if (lengths[i] < 0 || pointers[i] != at)
      throw Error(cat(index.path(), ": sequence ", i, " has ", lengths[i], " tokens at byte ", pointers[i],
                      " of the .bin, expected it at byte ", at,
                      ": athanor reads sequences that lie one after another; write the data set again"));
    at += lengths[i] * item;
  }
  if (at != tokens.bytes())
    throw Error(cat(tokens.path(), ": has ", tokens.bytes(), " bytes, but the sequences of ", index.path(), " have ",
                    at, ": one of the two is truncated or belongs to another data set"));
}

void require_ascending(const StableFile& index, const Header& h) {
  ValueRun<int64_t> documents(index, h.documents(), h.boundaries);
  if (h.boundaries < 1) throw Error(cat(index.path(), ": has no document boundaries, expected at least the first, 0"));
  for (int64_t i = 0, before = 0; i < h.boundaries; before = documents[i++])
    if (documents[i] < before || documents[i] > h.sequences || (i == 0 && documents[i] != 0))
      throw Error(cat(index.path(), ": document boundary ", i, " is sequence ", documents[i], ", expected ",
                      i == 0 ? cat("0") : cat(before, " to ", h.sequences)));
  if (documents[h.boundaries - 1] != h.sequences)
    throw Error(
        cat(index.path(), ": the documents end at sequence ", documents[h.boundaries - 1], " of ", h.sequences));
}

}  // namespace

TokenLayout read_megatron(const Probe& probe) {
  StableFile index = StableFile::open(with_extension(probe.path(), ".idx"));
  const Header h = read_header(index);
  probe.require_dtype(h.type);
  require_back_to_back(index, h, probe.file);
  require_ascending(index, h);
  const int64_t item = item_size(h.type), count = probe.file.bytes() / item;
  TokenLayout layout{.format = cat("megatron-", name_of(h.type)), .type = h.type, .count = count};
  layout.documents.emplace(std::move(index), DocumentIndex::Sequences{.ends = h.documents() + 8,
                                                                      .count = h.boundaries - 1,
                                                                      .pointers = h.pointers(),
                                                                      .sequences = h.sequences,
                                                                      .item_size = item,
                                                                      .tokens = count});
  return layout;
}

}  // namespace athanor
