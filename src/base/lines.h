// Iterates over the nonblank lines of a text, for files with one record per line.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace athanor {

// fn(line, number) for every line that is not blank; numbers count all lines from 1.
template <class Fn>
void for_each_nonblank_line(std::string_view text, Fn&& fn) {
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line(text.substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string::npos) fn(line, number);
  }
}

}  // namespace athanor
