// Optional libraries are small shared objects next to the program, opened on demand. Each has one entry point that
// returns a struct of C functions.
#pragma once
#include <string>

namespace athanor {

// Opens lib<name>.so in $ATHANOR_PLUGIN_DIR, next to the program, or in ../lib/athanor, and calls its entry point. On
// failure returns nullptr with the reason in *why. Never closed: the library may have threads and state.
const void* load_plugin(const std::string& name, const char* entry, std::string* why);

}  // namespace athanor
