// Optional libraries live in small shared objects beside the program, opened on demand. What they offer is a struct of
// C functions that their one entry point returns.
#pragma once
#include <string>

namespace athanor {

// Opens lib<name>.so in $ATHANOR_PLUGIN_DIR, beside the program, or in ../lib/athanor, and calls its entry point.
// nullptr and the reason in *why when there is none that works. Never closed: it may keep threads and state.
const void* load_plugin(const std::string& name, const char* entry, std::string* why);

}  // namespace athanor
