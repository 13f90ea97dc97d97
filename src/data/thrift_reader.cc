#include "data/thrift_reader.h"

#include "base/error.h"

namespace athanor {
namespace {

using Type = ThriftReader::Type;

void require_sound(bool condition, const char* what) {
  if (!condition) throw Error(cat("damaged metadata: ", what));
}

Type type_of(uint8_t nibble) {
  require_sound(nibble <= uint8_t(Type::uuid), "a value of an unknown Thrift type");
  return Type(nibble);
}

bool is_boolean(Type type) { return type == Type::true_ || type == Type::false_; }

int64_t unzigzag(uint64_t value) { return int64_t(value >> 1) ^ -int64_t(value & 1); }

}  // namespace

uint8_t ThriftReader::byte() {
  if (at_ == bytes_.size()) throw ThriftEnd();
  return uint8_t(bytes_[at_++]);
}

uint64_t ThriftReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint8_t next = byte();
    value |= uint64_t(next & 0x7f) << shift;
    if (next < 0x80) return value;
  }
  throw Error("damaged metadata: a Thrift integer of more than 64 bits");
}

void ThriftReader::advance(uint64_t bytes) {
  if (bytes > bytes_.size() - at_) throw ThriftEnd();
  at_ += size_t(bytes);
}

void ThriftReader::enter() { require_sound(++depth_ <= kMaxDepth, "Thrift structs nested too deeply"); }

Type ThriftReader::next_field(int16_t& id) {
  const uint8_t head = byte();
  const Type type = type_of(head & 0x0f);
  if (type == Type::stop) return type;
  const int64_t next = head >> 4 != 0 ? id + (head >> 4) : unzigzag(varint());
  require_sound(next > INT16_MIN && next <= INT16_MAX, "a Thrift field number out of range");
  id = int16_t(next);
  return type;
}

int64_t ThriftReader::list_header(Type field, Type element) {
  require_sound(field == Type::list || field == Type::set, "a field is no list");
  const uint8_t head = byte();
  const uint64_t count = head >> 4 == 15 ? varint() : head >> 4;
  if (count > bytes_.size() - at_) throw ThriftEnd();  // each element takes at least one byte
  require_sound(count == 0 || type_of(head & 0x0f) == element, "a list has elements of an unexpected type");
  return int64_t(count);
}

int64_t ThriftReader::integer(Type type) {
  if (type == Type::i8) return int8_t(byte());
  require_sound(type == Type::i16 || type == Type::i32 || type == Type::i64, "a field is no integer");
  return unzigzag(varint());
}

bool ThriftReader::read_integer(int id, Type type, std::initializer_list<std::pair<int, int64_t*>> fields) {
  for (const auto& [field, to] : fields)
    if (field == id) {
      *to = integer(type);
      return true;
    }
  return false;
}

bool ThriftReader::boolean(Type type) {
  require_sound(is_boolean(type), "a field is no boolean");
  return type == Type::true_;
}

std::string_view ThriftReader::binary(Type type) {
  require_sound(type == Type::binary, "a field is no text");
  const uint64_t size = varint();
  const size_t begin = at_;
  advance(size);
  return bytes_.substr(begin, at_ - begin);
}

void ThriftReader::skip(Type type, bool in_list) {
  switch (type) {
    case Type::stop:
      require_sound(false, "a list of nothing");
      break;
    case Type::true_:
    case Type::false_:
      if (in_list) advance(1);
      break;
    case Type::i8:
      advance(1);
      break;
    case Type::i16:
    case Type::i32:
    case Type::i64:
      varint();
      break;
    case Type::real:
      advance(8);
      break;
    case Type::uuid:
      advance(16);
      break;
    case Type::binary:
      advance(varint());
      break;
    case Type::structure:
      read_struct([](int, Type) { return false; });
      break;
    case Type::list:
    case Type::set: {
      enter();
      const uint8_t head = byte();
      const uint64_t count = head >> 4 == 15 ? varint() : head >> 4;
      for (uint64_t i = 0; i < count; ++i) skip(type_of(head & 0x0f), true);
      --depth_;
      break;
    }
    case Type::map: {
      enter();
      const uint64_t count = varint();
      const uint8_t types = count > 0 ? byte() : 0;
      for (uint64_t i = 0; i < count; ++i) {
        skip(type_of(types >> 4), true);
        skip(type_of(types & 0x0f), true);
      }
      --depth_;
      break;
    }
  }
}

}  // namespace athanor
