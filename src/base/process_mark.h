// A mark of this process in the names of temporary files: "PID-HOST". A folder may be shared by several hosts, and a
// process number says nothing about a process of another one.
#pragma once
#include <string>
#include <string_view>

namespace athanor {

std::string host_name();  // name of this machine

// The process number and, as 8 hexadecimal digits, the checksum of the host's name.
std::string process_mark();

// True if the process was one of this host and has ended; false for processes of other hosts, which may run, and for
// texts that are no marks.
bool is_of_ended_process(std::string_view mark);

}  // namespace athanor
