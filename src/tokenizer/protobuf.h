// Reads the fields of a protobuf message one by one, in wire order. A malformed message throws Error(usage) with the
// file and the offset.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace athanor {

class ProtobufReader {
 public:
  // where: the file name. offset: the message's offset in the file.
  ProtobufReader(std::string_view message, std::string where, size_t offset = 0)
      : message_(message), where_(std::move(where)), offset_(offset) {}

  bool next();  // advances to the next field; false: end of the message
  uint32_t field() const { return field_; }
  // The value of the current field; throws if the field has another wire type.
  int64_t integer() const;  // varint
  float number() const;     // four-byte float
  std::string_view bytes() const;
  ProtobufReader message() const;

  // The file and the field's offset in it, for errors.
  std::string place() const;

 private:
  enum Kind : uint32_t { kVarint = 0, kEight = 1, kBytes = 2, kFour = 5 };
  uint64_t varint();
  std::string_view take(uint64_t bytes);
  void require(Kind kind) const;
  [[noreturn]] void refuse(const std::string& what) const;

  std::string_view message_;
  std::string where_;
  size_t offset_, at_ = 0, begin_ = 0;  // begin_: start of the field
  uint32_t field_ = 0, kind_ = 0;
  uint64_t integer_ = 0;
  std::string_view bytes_;
};

}  // namespace athanor
