#include "base/lora.h"

#include <cmath>
#include <filesystem>

namespace athanor {
namespace fs = std::filesystem;

double LoraOptions::scale() const {
  return variant == LoraVariant::rslora ? alpha / std::sqrt(double(rank)) : alpha / double(rank);
}

std::string base_of_peft(const std::string& folder, const std::string& named) {
  std::error_code ignored;
  const fs::path sibling = fs::path(folder) / named;
  const bool beside = !named.empty() && !fs::exists(named, ignored) && fs::exists(sibling, ignored);
  return beside ? sibling.string() : named;
}

}  // namespace athanor
