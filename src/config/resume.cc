// Compares the configuration of a checkpoint with the current one.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "config/config.h"
#include "config/fields.h"
#include "config/fields_walk.h"
#include "config/json.h"
#include "config/stored_option.h"

namespace athanor {
namespace {

bool same(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a.real == b.real;
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  if (a.items.empty()) return to_line(a) == to_line(b);
  for (size_t i = 0; i < a.items.size(); ++i) {
    const bool object = a.is(Json::Kind::object);
    const Json* other = object ? b.find(a.keys[i]) : &b.items[i];
    if (!other || !same(a.items[i], *other)) return false;
  }
  return true;
}

// The stored value of an option under any of its keys.
template <class T>
const Json* stored_value(const Json& old, const Field<T>& field) {
  const Json* stored = stored_option(old, field.key);
  for (const std::string_view key : field.aliases)
    if (!stored) stored = old.find(key);
  return stored;
}

// A key missing from the stored configuration under all its names did not exist then, so its default applied. A default
// derived from other keys is not compared, because its value then is unknown.
template <class T>
void compare(const std::vector<Field<T>>& fields, const std::string& prefix, const Json& old, const T& now,
             const T& blank, std::vector<ConfigChange>& changes) {
  for (const auto& field : fields) {
    const Json* stored = stored_value(old, field);
    if (!stored && !field.word_for_default.empty()) continue;
    const Json before = stored ? *stored : write_field(field, blank);
    const Json after = write_field(field, now);
    if (same(before, after)) continue;
    const auto among = [&](const Json& word) {
      return std::ranges::count(field.same, std::string_view(word.text)) > 0;
    };
    const OnResume rule = among(before) && among(after) ? OnResume::free : field.rule;
    changes.push_back({dotted(prefix, field.key), to_line(before), to_line(after), rule});
  }
}

}  // namespace

std::vector<ConfigChange> resume_changes(const std::string& old_resolved_json, const Config& now) {
  const std::string name = "stored configuration";
  const Json old = parse_json(old_resolved_json, name);
  require_object(old, name);
  std::vector<ConfigChange> changes;
  const Json* old_model = old.find("model");
  if (!old_model) throw Error(cat(name, ": has no model"), Exit::usage);
  compare(model_fields(), "model", *old_model, now.model, model_defaults(now.model.model_type), changes);
  auto fields = config_fields();
  std::erase_if(fields, [](const auto& field) { return field.key == "model"; });
  compare(fields, "", old, now, Config{}, changes);
  // With a mask from another model, pruning starts anew from the checkpoint, whatever was pruned before.
  if (!now.prune_mask_from.empty() && std::ranges::count(changes, "pruning.mask_from", &ConfigChange::key) > 0)
    for (ConfigChange& c : changes)
      if (c.key.starts_with("pruning.")) c.rule = OnResume::notice;
  // Without momentum a checkpoint has no state that momentum could continue with. The state of schedule_free_adamw
  // stands for other weights under another beta1 (ops/update.h).
  for (ConfigChange& c : changes)
    if ((c.key == "sgd.momentum" && std::stod(c.old_value) == 0 && updates_by(now, RuleName::sgd)) ||
        (c.key == "adam.beta1" && updates_by(now, RuleName::schedule_free_adamw)))
      c.rule = OnResume::refused;
  return changes;
}

}  // namespace athanor
