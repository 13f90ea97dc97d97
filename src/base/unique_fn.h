// A move-only std::function, for closures that own buffers (not in C++20).
#pragma once
#include <memory>
#include <type_traits>
#include <utility>

namespace athanor {

template <class Signature>
class UniqueFn;

template <class R, class... A>
class UniqueFn<R(A...)> {
  struct Base {
    virtual ~Base() = default;
    virtual R call(A... args) = 0;
  };
  template <class F>
  struct Holder final : Base {
    F f;
    explicit Holder(F&& fn) : f(std::move(fn)) {}
    R call(A... args) override { return f(std::forward<A>(args)...); }
  };
  std::unique_ptr<Base> impl_;

 public:
  UniqueFn() = default;
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, UniqueFn>) UniqueFn(F&& fn)
      : impl_(std::make_unique<Holder<std::remove_cvref_t<F>>>(std::forward<F>(fn))) {}
  explicit operator bool() const { return impl_ != nullptr; }
  R operator()(A... args) { return impl_->call(std::forward<A>(args)...); }
};

}  // namespace athanor
