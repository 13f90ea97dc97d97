#include "tokenizer/protobuf.h"

#include <cstring>

#include "base/error.h"

namespace athanor {

std::string ProtobufReader::place() const { return cat(where_, ": byte ", offset_ + begin_); }

void ProtobufReader::refuse(const std::string& what) const { throw Error(cat(place(), ": ", what), Exit::usage); }

uint64_t ProtobufReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (at_ == message_.size()) refuse("the message ends in a number");
    const auto byte = uint8_t(message_[at_++]);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  refuse("a number of more than 64 bits");
}

std::string_view ProtobufReader::take(uint64_t bytes) {
  if (bytes > message_.size() - at_)
    refuse(cat("field ", field_, ": expected ", bytes, " bytes, got the last ", message_.size() - at_,
               " of the message: the file is damaged"));
  const std::string_view taken = message_.substr(at_, size_t(bytes));
  at_ += size_t(bytes);
  return taken;
}

bool ProtobufReader::next() {
  begin_ = at_;
  if (at_ == message_.size()) return false;
  const uint64_t tag = varint();
  field_ = uint32_t(tag >> 3);
  kind_ = uint32_t(tag & 7);
  if (tag >> 3 == 0 || tag >> 32 != 0) refuse(cat("expected the start of a field, got ", tag));
  if (kind_ == kVarint)
    integer_ = varint();
  else if (kind_ == kEight || kind_ == kFour)
    bytes_ = take(kind_ == kEight ? 8 : 4);
  else if (kind_ == kBytes)
    bytes_ = take(varint());
  else
    refuse(cat("field ", field_, " is of a kind ", kind_, " that is not in use"));
  return true;
}

void ProtobufReader::require(Kind kind) const {
  if (kind_ != kind) refuse(cat("field ", field_, ": expected kind ", uint32_t(kind), ", got ", kind_));
}

int64_t ProtobufReader::integer() const {
  require(kVarint);
  return int64_t(integer_);
}

float ProtobufReader::number() const {
  require(kFour);
  float value = 0;
  std::memcpy(&value, bytes_.data(), sizeof(value));
  return value;
}

std::string_view ProtobufReader::bytes() const {
  require(kBytes);
  return bytes_;
}

ProtobufReader ProtobufReader::message() const {
  return {bytes(), where_, offset_ + size_t(bytes_.data() - message_.data())};
}

}  // namespace athanor
