#include "infer/stop_text.h"

#include <algorithm>

namespace athanor {

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) { std::erase(stops_, ""); }

std::string StopText::add(std::string_view piece) {
  std::string text = std::move(held_);
  held_.clear();
  text += piece;
  size_t first = text.npos, kept = text.size();
  for (const std::string& stop : stops_) {
    first = std::min(first, text.find(stop));
    const std::string_view view = text;
    for (size_t length = std::min(stop.size() - 1, text.size()); length > 0; --length)
      if (view.substr(text.size() - length) == std::string_view(stop).substr(0, length)) {
        kept = std::min(kept, text.size() - length);
        break;
      }
  }
  found_ = first != text.npos;
  if (found_) return text.substr(0, first);
  held_ = text.substr(kept);
  return text.substr(0, kept);
}

}  // namespace athanor
