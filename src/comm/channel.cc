#include "comm/channel.h"

#include "base/error.h"

namespace athanor {
namespace {

constexpr size_t kMaxFrame = 64 << 20;  // bytes; enough for the texts of thousands of ranks at startup
constexpr size_t kLength = 4;

Tag tag_of(Seal& seal, std::string_view frame) {
  seal.add(frame.data(), frame.size());
  return seal.end();
}

}  // namespace

void Channel::write(const Frame& f) {
  std::string bytes;
  const size_t length = f.payload.size() + 1;
  CHECK(length <= kMaxFrame, "a frame of ", length, " bytes");
  for (int shift = 0; shift < 32; shift += 8) bytes += char(length >> shift);
  bytes += f.kind;
  bytes += f.payload;
  const Tag tag = tag_of(session_.out, bytes);
  pipe_.write(bytes.append(as_text(tag)));
}

std::optional<Frame> Channel::take() {
  std::string& buffer = pipe_.received();
  if (buffer.size() < kLength) return std::nullopt;
  size_t length = 0;
  for (size_t i = 0; i < kLength; ++i) length |= size_t(uint8_t(buffer[i])) << (8 * i);
  if (length < 1 || length > kMaxFrame) throw Error(cat("a frame of ", length, " bytes is damaged"));
  const size_t end = kLength + length;
  if (buffer.size() < end + sizeof(Tag)) return std::nullopt;
  const Tag tag = tag_of(session_.in, std::string_view(buffer).substr(0, end));
  if (!same_bytes(as_text(tag), std::string_view(buffer).substr(end, sizeof(Tag))))
    throw Error("a message has a wrong authentication tag: it was changed on the way, or another program sent it");
  Frame f{buffer[kLength], buffer.substr(kLength + 1, length - 1)};
  buffer.erase(0, end + sizeof(Tag));
  return f;
}

}  // namespace athanor
