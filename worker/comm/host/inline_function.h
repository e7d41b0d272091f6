#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace trainyard::comm {

/// A callable held in place: as std::function, but it never takes memory, is not copied, and what
/// does not fit into `kBytes` does not compile. Empty until a callable is put in.
template <class Signature, size_t kBytes>
class InlineFunction;

template <class R, class... Args, size_t kBytes>
class InlineFunction<R(Args...), kBytes> {
 public:
  InlineFunction() = default;
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, InlineFunction>)
      InlineFunction(F&& callable) {  // NOLINT(google-explicit-constructor): as std::function
    using Held = std::decay_t<F>;
    static_assert(sizeof(Held) <= kBytes && alignof(Held) <= alignof(std::max_align_t));
    static_assert(std::is_nothrow_move_constructible_v<Held>);
    ::new (static_cast<void*>(memory_)) Held(std::forward<F>(callable));
    kind_ = &kKind<Held>;
  }
  InlineFunction(InlineFunction&& other) noexcept { take(other); }
  InlineFunction& operator=(InlineFunction&& other) noexcept {
    if (this == &other) return *this;
    clear();
    take(other);
    return *this;
  }
  ~InlineFunction() { clear(); }

  /// Only when it holds a callable.
  R operator()(Args... args) const {
    return kind_->call(const_cast<std::byte*>(memory_), std::forward<Args>(args)...);
  }

  /// Destroys what it holds.
  void clear() {
    if (kind_ != nullptr) std::exchange(kind_, nullptr)->destroy(memory_);
  }

 private:
  struct Kind {
    R (*call)(void* held, Args&&... args);
    void (*move)(void* from, void* to);
    void (*destroy)(void* held);
  };
  template <class Held>
  static constexpr Kind kKind = {
      [](void* held, Args&&... args) -> R {
        return (*static_cast<Held*>(held))(std::forward<Args>(args)...);
      },
      [](void* from, void* to) { ::new (to) Held(std::move(*static_cast<Held*>(from))); },
      [](void* held) { static_cast<Held*>(held)->~Held(); }};

  void take(InlineFunction& other) {
    if (other.kind_ == nullptr) return;
    other.kind_->move(other.memory_, memory_);
    kind_ = other.kind_;
    other.clear();
  }

  alignas(std::max_align_t) std::byte memory_[kBytes];
  const Kind* kind_ = nullptr;
};

}  // namespace trainyard::comm
