// Reads Thrift's compact protocol [apache/thrift doc/specs/thrift-compact-protocol.md] from untrusted bytes, for the
// metadata of parquet files. Every read is bounds-checked; recursion is limited. Knows nothing of parquet.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace athanor {

// Thrown if the bytes end too early; a caller that can read more bytes may try again.
struct ThriftEnd {};

class ThriftReader {
 public:
  enum class Type : uint8_t {
    stop = 0,
    true_ = 1,
    false_ = 2,
    i8 = 3,
    i16 = 4,
    i32 = 5,
    i64 = 6,
    real = 7,
    binary = 8,
    list = 9,
    set = 10,
    map = 11,
    structure = 12,
    uuid = 13,
  };

  explicit ThriftReader(std::string_view bytes) : bytes_(bytes) {}
  size_t used() const { return at_; }

  // Calls fn(field id, type) for every field of a struct. fn either consumes the field's value with one of the
  // functions below and returns true, or returns false, and then the value is skipped.
  template <class Fn>
  void read_struct(Fn&& fn) {
    enter();
    int16_t id = 0;
    for (Type type = next_field(id); type != Type::stop; type = next_field(id))
      if (!fn(int(id), type)) skip(type);
    --depth_;
  }

  // Calls fn() once per element; all elements must be of type `element`. Returns their number.
  template <class Fn>
  int64_t read_list(Type field, Type element, Fn&& fn) {
    const int64_t count = list_header(field, element);
    for (int64_t i = 0; i < count; ++i) fn();
    return count;
  }

  int64_t integer(Type);  // i8 to i64
  // Reads the field's value if it is one of these integers: {field id, where to store it}. Returns whether it was.
  bool read_integer(int id, Type, std::initializer_list<std::pair<int, int64_t*>> fields);
  static bool boolean(Type);
  std::string_view binary(Type);
  void skip(Type, bool in_list = false);

 private:
  static constexpr int kMaxDepth = 32;

  Type next_field(int16_t& id);
  int64_t list_header(Type field, Type element);
  void enter();
  uint8_t byte();
  uint64_t varint();
  void advance(uint64_t bytes);

  std::string_view bytes_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace athanor
