// Ends a stream of text before the first of some texts: what could still become one of them is held back.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

class StopText {
 public:
  explicit StopText(std::vector<std::string> stops);
  // The next piece of the stream; returns what may be shown by now. Nothing follows once found() is true.
  std::string add(std::string_view piece);
  bool found() const { return found_; }
  // At the end of the stream: what was held back.
  std::string rest() { return std::move(held_); }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // begins one of the stops
  bool found_ = false;
};

}  // namespace athanor
