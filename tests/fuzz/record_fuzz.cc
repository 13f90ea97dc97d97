// Any bytes are lines of metrics.jsonl that are read or left out, and the report made of them has one script: its own.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "metrics/run_records.h"
#include "report/html_report.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace athanor;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  RunRecords run;
  run.name = text.substr(0, 40);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    parse_record(text.substr(begin, end - begin), run);
    begin = end + 1;
  }
  const std::string page = html_report(std::vector{run});
  const size_t first = page.find("<script");
  if (first == page.npos || page.find("<script", first + 1) != page.npos) {
    std::fprintf(stderr, "broken law: text of a record became part of the page\n");
    std::abort();
  }
  return 0;
}
