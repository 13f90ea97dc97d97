// Symbolic links in a model's folder: an untrusted folder must not select other files of this machine, which would be
// read instead and copied into output that everybody may read.
#pragma once
#include <cstdint>
#include <string>

namespace athanor {

// Allowed targets of links in a model's folder: inside the folder, or anywhere if the user trusts the folder.
enum class Links : uint8_t { inside, anywhere };

// Throws Error(usage) if folder/name leads out of the folder. Exception: the blobs of the Hugging Face hub's cache,
// whose folders (snapshots/REVISION) consist of such links. `opened`: path of the file that was opened for it.
void require_in_folder(const std::string& folder, const std::string& name, const std::string& opened);

// The path with all symbolic links resolved.
std::string path_behind(const std::string& path);

// Content of folder/name, which must be a regular file that is not reached through a forbidden link.
std::string read_file_in(const std::string& folder, const std::string& name, int64_t max_bytes, Links links);

}  // namespace athanor
