// Reads one option of the config.resolved.json of a run, without the rest of it.
#pragma once
#include <string_view>

#include "config/json.h"

namespace athanor {

// The value of the option `key`, such as pruning.method, also under the keys of earlier versions; nullptr without one.
const Json* stored_option(const Json& resolved, std::string_view key);

}  // namespace athanor
