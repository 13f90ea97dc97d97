#include "param/flat_layout.h"

#include "base/int.h"

namespace athanor {

FlatLayout FlatLayout::make(std::span<const ParamSpec> specs, int shards, int64_t align) {
  FlatLayout layout;
  layout.offset.resize(specs.size());
  int64_t at = 0;
  const auto place = [&](auto&& belongs) {
    for (size_t i = 0; i < specs.size(); ++i)
      if (belongs(specs[i])) {
        layout.offset[i] = at;
        at = round_up(at + specs[i].shape.numel(), align);
      }
  };
  place([](const ParamSpec& s) { return s.trainable && s.role != Role::vector; });
  place([](const ParamSpec& s) { return s.trainable && s.role == Role::vector; });
  layout.trained = at;
  place([](const ParamSpec& s) { return !s.trainable; });
  layout.numel = round_up(at, align * shards);
  return layout;
}

}  // namespace athanor
