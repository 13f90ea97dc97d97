// Ends a text stream before the first occurrence of any stop text; holds back text that may become one.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

class StopText {
 public:
  explicit StopText(std::vector<std::string> stops);
  // Adds the next piece; returns text that is safe to show. Returns nothing more once found() is true.
  std::string add(std::string_view piece);
  bool found() const { return found_; }
  // Returns the text still held back, at the end of the stream.
  std::string rest() { return std::move(held_); }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // prefix of a stop text
  bool found_ = false;
};

}  // namespace athanor
