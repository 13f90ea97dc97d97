// Documentation generated from the option tables: JSON schema, defaults, and the reference in configs/README.md.
#include <algorithm>

#include "base/error.h"
#include "config/config.h"
#include "config/fields.h"
#include "config/fields_walk.h"
#include "config/json.h"

namespace athanor {
namespace {

template <class T>
Json defaults_of(const std::vector<Field<T>>& fields) {
  Json out = Json::object();
  for (const auto& field : fields) {
    if (field.is_developer) continue;
    const bool none = field.is_required || !field.word_for_default.empty();
    set_option(out, field.key, none ? Json() : write_field(field, T{}));
  }
  return out;
}

std::string code(const std::string& text) { return text.empty() ? "" : cat("`", text, "`"); }

std::string row(const FieldDoc& doc, bool with_rule) {
  std::string aliases, type = doc.type;
  for (const auto& name : doc.aliases) aliases += cat(aliases.empty() ? "" : ", ", code(name));
  if (!doc.range.empty()) type += ", " + doc.range;
  const bool words = doc.default_value.find(' ') != std::string::npos;
  const std::string initial = doc.required ? "**required**" : words ? doc.default_value : code(doc.default_value);
  std::string line = cat("| ", code(doc.key), " | ", initial, " | ", type, " | ", doc.unit, " | ");
  if (with_rule) line += doc.rule + " | ";
  return line + cat(doc.help, aliases.empty() ? "" : cat(" (also ", aliases, ")"), " |\n");
}

std::string head(bool with_rule) {
  return with_rule ? "| key | default | values | unit | on resume | meaning |\n|---|---|---|---|---|---|\n"
                   : "| key | default | values | unit | meaning |\n|---|---|---|---|---|\n";
}

std::string heading(const char* level, std::string_view key) {
  const auto section = std::ranges::find(config_sections(), key, &Section::key);
  CHECK(section != config_sections().end(), "config_sections() lacks ", key);
  return cat("\n", level, code(std::string(key)), ": ", section->title, "\n\n", section->help, "\n");
}

template <class T>
std::string table(const std::vector<Field<T>>& fields) {
  std::string text = head(false);
  for (const auto& field : fields) text += row(describe(field), false);
  return text;
}

}  // namespace

std::string json_schema() {
  Json schema = Json::object();
  schema.set("$schema", Json::of("https://json-schema.org/draft/2020-12/schema"));
  schema.set("title", Json::of("athanor configuration"));
  schema.set("type", Json::of("object"));
  // One subschema per group, so that an editor can show its title; each allows the keys of the other groups.
  Json groups = Json::array();
  const auto fields = config_fields();
  for (size_t from = 0, to = 0; from < fields.size(); from = to) {
    while (to < fields.size() && fields[to].group == fields[from].group) ++to;
    const std::vector<Field<Config>> rows(fields.begin() + int64_t(from), fields.begin() + int64_t(to));
    Json group = schema_of(rows, config_sections());
    group.erase("additionalProperties"), group.erase("type");
    group.set("title", Json::of(fields[from].group));
    groups.items.push_back(std::move(group));
  }
  schema.set("allOf", std::move(groups));
  schema.set("unevaluatedProperties", Json::of(false));
  return to_pretty(schema);
}

std::string defaults() {
  Json out = defaults_of(config_fields());
  out.set("model", defaults_of(model_fields()));
  return to_pretty(out);
}

std::string developer_reference() {
  std::string text = head(true);
  for (const auto& field : config_fields())
    if (field.is_developer) text += row(describe(field), true);
  return text;
}

std::string config_reference() {
  std::string text =
      "A key that is listed neither here nor in docs/contributing.md (options for developers) is an error.\n"
      "*On resume* says what happens when a run goes on from a checkpoint\n"
      "that was written with another value: *free* = nothing, *notice* = it is logged, *refused* = the run stops, "
      "because\n"
      "it would not be the same run. In paths, `~/` is the home folder. A key with a dot is in the object before the "
      "dot:\n`lora.rank` is `\"lora\": {\"rank\": 8}` in a file, and `--set lora.rank=8` on the command line.\n";
  std::string_view group, section;
  for (const auto& field : config_fields()) {
    if (field.is_developer) continue;
    const bool new_group = field.group != group, new_section = section_of(field.key) != section;
    group = field.group, section = section_of(field.key);
    if (new_group && section.empty()) text += cat("\n### ", group, "\n");
    if (new_section && !section.empty()) text += heading(new_group ? "### " : "#### ", section);
    if (new_group || new_section) text += "\n" + head(true);
    text += row(describe(field), true);
  }
  text += cat("\n### Entries of train_data and valid_data\n\nA plain path stands for an entry with only `path`.\n\n",
              table(data_source_fields()));
  text += cat("\n### Entries of train_data_stages\n\n", table(data_stage_fields()));
  text += cat("\n### Entries of multi_token_prediction\n\n", table(ahead_token_fields()));
  text += cat("\n### Entries of param_groups\n\n`athanor config validate` prints which weights fall where.\n\n",
              table(param_group_fields()));
  text += cat(
      "\n### Keys of model\n\nThe names of Hugging Face's config.json. All are *refused* on resume. Its keys without\n"
      "meaning for the weights are skipped; keys with one supported value (dropout, `hidden_act`, `mlp_bias`, ...) "
      "must\n"
      "have it. Where a *file* of its own leaves a key out, the default is that of transformers' configuration class, "
      "with\n"
      "a note: `rms_norm_eps` 1e-6, Mistral's `sliding_window` 4096, Qwen3's `head_dim` 128, Mixtral's `rope_theta` "
      "1e6, "
      "and the windows of Qwen2,\nQwen3, Qwen2-MoE and Qwen3-MoE are off unless `use_sliding_window` is true. A "
      "`model` object "
      "has the defaults of "
      "this table.\n\n",
      table(model_fields()));
  text += cat("\n### Keys of model.rope_scaling\n\n`\"type\"` is read as `rope_type`, `\"default\"` as `none`.\n\n",
              table(rope_scaling_fields()));
  return text;
}

}  // namespace athanor
