// Converts files, text and overrides to a Config, and a Config back to JSON.
#include "config/config.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "base/error.h"
#include "base/lora.h"
#include "config/fields.h"
#include "config/fields_walk.h"
#include "config/json.h"

namespace athanor {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

constexpr int kMaxPathDots = 4;

std::string read_stream(std::istream& in, const std::string& name) {
  // Reads one byte more than the parser accepts, so that the parser reports the size itself.
  std::string text(kMaxConfigBytes + 1, '\0');
  in.read(text.data(), std::streamsize(text.size()));
  if (in.bad()) throw Error(cat(name, ": cannot be read"), Exit::usage);
  text.resize(size_t(in.gcount()));
  return text;
}

std::string read_file(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) throw Error(cat(path, ": expected a file, found a folder"), Exit::usage);
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored))
    throw Error(cat(path, ": expected a regular file, found a pipe, socket or device; - reads standard input"),
                Exit::usage);
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error(cat(path, ": cannot be opened: ", std::strerror(errno)), Exit::usage);
  return read_stream(in, path);
}

// The folder that has the config.json: of a run's folder its newest checkpoint, and of PEFT's adapters the model that
// they are for.
fs::path folder_of_shape(fs::path folder) {
  constexpr int kMost = 16;  // adapters of adapters; a longer chain must be a cycle
  std::error_code error;
  std::string newest;
  if (std::ifstream(folder / "latest") >> newest && fs::exists(folder / newest / "config.json", error))
    return folder / newest;
  for (int deep = 0; deep < kMost && !fs::exists(folder / "config.json", error); ++deep) {
    const fs::path about = folder / "adapter_config.json";
    if (!fs::is_regular_file(about, error)) break;
    const Json json = parse_json(read_file(about.string()), about.string());
    const Json* base = json.is(Json::Kind::object) ? json.find("base_model_name_or_path") : nullptr;
    if (!base || !base->is(Json::Kind::string) || base->text.empty()) break;
    folder = base_of_peft(folder.string(), base->text);
  }
  return folder;
}

// Replaces "model": "path" by the content of that file.
void load_model(Json& root, const std::string& base_dir, Notices notices) {
  Json* model = root.find("model");
  if (!model || !model->is(Json::Kind::string)) return;
  const std::string given = read_path(*model, "model");
  const bool from_command_line = model->where.starts_with("--set");
  fs::path path = from_command_line ? fs::path(given) : fs::path(base_dir) / given;
  std::error_code error;
  if (fs::is_directory(path, error)) path = folder_of_shape(path) / "config.json";
  if (!fs::is_regular_file(path, error)) {
    throw Error(cat(model->where, ": model: there is no file ", path.string()), Exit::usage);
  }
  *model = parse_json(read_file(path.string()), path.string());
  adopt_published(*model, "model", notices);
}

// A run that initializes from the weights of a folder also uses that folder's model shape, unless the config has one.
void take_model_of_weights(Json& root) {
  const Json* from = root.find("init_from");
  if (!from || !from->is(Json::Kind::string) || from->text.empty() || root.find("model")) return;
  std::error_code error;
  if (const std::string path = read_path(*from, "init_from"); fs::is_regular_file(path, error))
    throw Error(cat(from->where, ": init_from: ", path,
                    " is a file; expected a folder with config.json and weights: import the file (athanor import ",
                    path, " FOLDER) and name that folder, or set `model`"),
                Exit::usage);
  Json folder = *from;
  folder.where = "--set init_from";  // the path is relative to the working folder, like --set init_from
  root.set("model", std::move(folder));
}

void set_origin(Json& value, const std::string& where) {
  value.where = where;
  for (auto& item : value.items) set_origin(item, where);
}

// Parses JSON if possible, else takes the text as a string; text that starts like a JSON list, object or string must
// parse.
Json override_value(const std::string& text, const std::string& where) {
  const size_t start = text.find_first_not_of(" \t");
  const bool structured = start != std::string::npos && std::strchr("{[\"", text[start]) != nullptr;
  Json value;
  try {
    value = parse_json(text, where);
  } catch (const Error&) {
    if (structured) throw;
    value = Json::of(text);
  }
  set_origin(value, where);
  return value;
}

// All keys of an option.
template <class T>
Strings names_of(const Field<T>& field) {
  Strings names{std::string(field.key)};
  for (const std::string_view key : other_keys(field)) names.emplace_back(key);
  return names;
}

// All keys under which a model may hold the option `key`; an override replaces all of them.
Strings names_in_model(const std::string& key) {
  // Keys of config.json that repeat or disable the option being set.
  if (key == "rope_parameters") return {"rope_scaling", "rope_theta"};
  if (key == "sliding_window") return {"use_sliding_window", "max_window_layers", "layer_types"};
  const auto fields = model_fields();
  const Field<ModelConfig>* field = find_field(fields, key);
  if (!field) return {key};
  Strings names = names_of(*field);
  if (field->key == "max_position_embeddings") names.emplace_back("n_ctx");
  return names;
}

// All keys under which a configuration may hold the value that an override of `key` in `section` sets: one option, or
// all options of a section.
Strings names_in_config(const std::string& section, const std::string& key) {
  const auto fields = config_fields();
  const Field<Config>* set = find_field(fields, key, section);
  // Two options are mutually exclusive; the command line wins.
  const auto is_length = [](const Field<Config>& f) { return f.key == "train_iters" || f.key == "train_tokens"; };
  Strings names;
  for (const Field<Config>& field : fields) {
    const bool in_set_section = section.empty() && section_of(field.key) == key;
    if (&field != set && !in_set_section && !(set && is_length(*set) && is_length(field))) continue;
    const Strings all = names_of(field);
    names.insert(names.end(), all.begin(), all.end());
  }
  return names;
}

void erase_option(Json& root, const std::string& key) {
  if (Json* holder = holder_of(root, key)) holder->erase(name_in_section(key));
}

void apply_override(Json& root, const std::string& text, const std::string& base_dir, Notices notices) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw Error(cat("--set ", text, ": expected key=value, such as --set learning_rate=3e-4"), Exit::usage);
  }
  const std::string path = text.substr(0, equals), where = cat("--set ", path);
  Json* node = &root;
  std::string prefix;
  size_t from = 0;
  for (size_t dot; (dot = path.find('.', from)) != std::string::npos; from = dot + 1) {
    const std::string key = path.substr(from, dot - from);
    prefix = dotted(prefix, key);
    if (std::count(prefix.begin(), prefix.end(), '.') > kMaxPathDots) {
      throw Error(cat("--set ", prefix, "...: no key is that deep"), Exit::usage);
    }
    if (prefix == "model") load_model(root, base_dir, notices);
    Json* child = node->find(key);
    if (child && prefix == "model") merge_rope_keys(*child, prefix);
    if (!child || child->is(Json::Kind::null)) {
      child = &node->set(key, Json::object());
      child->where = where;
    }
    if (!child->is(Json::Kind::object)) throw Error(cat(where, ": ", prefix, " is not an object"), Exit::usage);
    node = child;
  }
  const std::string key = path.substr(from);
  if (prefix == "model") {
    for (const auto& name : names_in_model(key))
      if (name != key) node->erase(name);
  } else if (prefix.empty() || is_section(config_fields(), prefix)) {
    for (const auto& name : names_in_config(prefix, key))
      if (name != path) erase_option(root, name);
    node = prefix.empty() ? &root : root.find(prefix);  // erasing moves the items of `root`
  }
  node->set(key, override_value(text.substr(equals + 1), where));
}

}  // namespace

Config parse_config(std::string_view text, const std::string& name, const std::string& base_dir,
                    std::span<const std::string> overrides, std::vector<std::string>* notices) {
  Json root = parse_json(text, name);
  require_object(root, "");
  const auto is_weights = [](const std::string& each) { return each.starts_with("init_from="); };
  for (const auto& each : overrides)
    if (is_weights(each)) apply_override(root, each, base_dir, notices);
  take_model_of_weights(root);
  for (const auto& each : overrides)
    if (!is_weights(each)) apply_override(root, each, base_dir, notices);
  load_model(root, base_dir, notices);
  Config config;
  read_fields(config_fields(), root, "", config, notices);
  with_context(name, [&] { validate(config); });
  if (notices)
    for (std::string& remark : keys_without_effect(config)) notices->push_back(std::move(remark));
  return config;
}

Config load_config(const std::string& path, std::span<const std::string> overrides, std::vector<std::string>* notices) {
  if (path == "-") {
    const std::string name = "standard input";
    return parse_config(read_stream(std::cin, name), name, ".", overrides, notices);
  }
  return parse_config(read_file(path), path, fs::path(path).parent_path().string(), overrides, notices);
}

ModelConfig parse_model_config(std::string_view text, const std::string& name) {
  return read_model(parse_json(text, name), "model", nullptr);
}

ModelConfig load_model_config(const std::string& path, std::vector<std::string>* notices) {
  Json model = parse_json(read_file(path), path);
  adopt_published(model, "model", notices);
  return read_model(model, "model", notices);
}

std::string dump_resolved(const Config& config) { return to_pretty(write_fields(config_fields(), config)); }

std::string dump_lines(const Config& config, std::span<const std::string_view> without) {
  std::string text;
  const auto add = [&](const auto& self, const Json& object, const std::string& prefix) -> void {
    for (size_t i = 0; i < object.keys.size(); ++i) {
      const std::string key = dotted(prefix, object.keys[i]);
      if (std::ranges::count(without, key) > 0) continue;
      if (object.items[i].is(Json::Kind::object)) {
        self(self, object.items[i], key);
      } else {
        text += cat(key, ": ", to_line(object.items[i]), "\n");
      }
    }
  };
  add(add, write_fields(config_fields(), config), "");
  return text;
}

}  // namespace athanor
