// Files of a model's folder that are links elsewhere: a folder from strangers must not choose which files of this
// machine are read in its place and copied into what everybody may read.
#pragma once
#include <cstdint>
#include <string>

namespace athanor {

// Where links of a model's folder may lead: into the folder, or anywhere, where the user trusts it.
enum class Links : uint8_t { inside, anywhere };

// An Error(usage) if folder/name leads out of the folder, besides into the blobs of the Hugging Face hub's cache, whose
// folders (snapshots/REVISION) are made of such links. `opened` is the path of the file that was opened for it.
void require_in_folder(const std::string& folder, const std::string& name, const std::string& opened);

// The path of the file behind folder/name, with no link left in it.
std::string path_behind(const std::string& path);

// The content of folder/name, which must be a regular file to which no forbidden link leads.
std::string read_file_in(const std::string& folder, const std::string& name, int64_t max_bytes, Links links);

}  // namespace athanor
