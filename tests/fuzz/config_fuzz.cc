// Any text either is a configuration, whose dump reads back the same, or ends in an Error. Lines after a zero byte are
// overrides.
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace athanor;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), size);
  std::vector<std::string> overrides;
  for (size_t from = end + 1; from < size && overrides.size() < 16;) {
    const size_t line_end = std::min(input.find('\n', from), size);
    overrides.push_back(input.substr(from, line_end - from));
    from = line_end + 1;
  }
  try {
    std::vector<std::string> notices;
    const Config config = parse_config(input.substr(0, end), "fuzz", "no-such-folder", overrides, &notices);
    const std::string text = dump_resolved(config);
    const Config again = parse_config(text, "dump", "no-such-folder");
    CHECK(dump_resolved(again) == text, "dump does not read back: ", text);
    CHECK(resume_changes(text, again).empty(), "a configuration differs from its own dump");
    const ModelConfig model = parse_model_config(hf_config_json(config.model, "float32"), "exported");
    CHECK(parameter_count(model) == parameter_count(config.model), "export changes the model");
  } catch (const Error& e) {
    if (std::string(e.what()).starts_with("internal check") || std::string(e.what()).starts_with("dump")) throw;
  }
  return 0;
}
