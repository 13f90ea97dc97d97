#include "base/lora.h"

#include <cmath>

namespace athanor {

double LoraOptions::scale() const {
  return variant == LoraVariant::rslora ? alpha / std::sqrt(double(rank)) : alpha / double(rank);
}

}  // namespace athanor
