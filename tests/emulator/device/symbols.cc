// Names of functions, local ones included: dladdr() knows exported symbols only, and kernels mostly live in anonymous
// namespaces. Reads the symbol table of the file that the function came from.
#include <dlfcn.h>
#include <elf.h>

#include <fstream>

#include "emulator/device/state.h"
namespace emu {
namespace {

template <class T>
std::vector<T> read_records(std::ifstream& file, const Elf64_Shdr& section) {
  std::vector<T> records(section.sh_size / sizeof(T));
  file.seekg(static_cast<std::streamoff>(section.sh_offset));
  file.read(reinterpret_cast<char*>(records.data()), static_cast<std::streamsize>(records.size() * sizeof(T)));
  return records;
}

// Functions of one file by their address relative to its base.
std::map<uint64_t, std::string> read_functions(const char* path) {
  std::map<uint64_t, std::string> functions;
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header{};
  file.read(reinterpret_cast<char*>(&header), sizeof header);
  if (!file || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return functions;
  Elf64_Shdr table{};
  table.sh_offset = header.e_shoff;
  table.sh_size = uint64_t{header.e_shnum} * sizeof(Elf64_Shdr);
  const auto sections = read_records<Elf64_Shdr>(file, table);
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB && section.sh_type != SHT_DYNSYM) continue;
    const auto names = read_records<char>(file, sections[section.sh_link]);
    for (const Elf64_Sym& symbol : read_records<Elf64_Sym>(file, section)) {
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC) functions[symbol.st_value] = &names[symbol.st_name];
    }
  }
  return functions;
}
}  // namespace

std::string symbol_at(const void* function) {
  static std::mutex mutex;
  static std::map<std::string, std::map<uint64_t, std::string>> files;
  Dl_info info;
  if (!dladdr(function, &info)) return "kernel";
  const std::lock_guard lock(mutex);
  auto [entry, fresh] = files.try_emplace(info.dli_fname);
  if (fresh) entry->second = read_functions(info.dli_fname);
  const auto at = entry->second.find(uint64_t(static_cast<const char*>(function) - static_cast<char*>(info.dli_fbase)));
  return at != entry->second.end() ? at->second : info.dli_sname ? info.dli_sname : "kernel";
}
}  // namespace emu
