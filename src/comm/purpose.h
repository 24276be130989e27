// What a collective is made for, so that an error speaks of what the user called ("Snapshots::save", "DDP
// gradients, bucket 0 (fc.weight, …)") rather than of the collective alone.
#pragma once

#include <string>
#include <type_traits>

namespace lockstep::comm {

// While one lives, errors of this thread's collectives begin with it. The outermost counts: it is what the
// user called.
class Purpose {
 public:
  explicit Purpose(const char* name)
      : Purpose(name, [](const void* text) -> std::string { return static_cast<const char*>(text); }) {}
  // `describe` is called for an error only, so that the usual way builds no strings. It must outlive this.
  template <class Describe>
  requires(std::is_invocable_r_v<std::string, const Describe&>) explicit Purpose(const Describe& describe)
      : Purpose(&describe, [](const void* subject) -> std::string {
          return (*static_cast<const Describe*>(subject))();
        }) {}
  ~Purpose();
  Purpose(const Purpose&) = delete;
  Purpose& operator=(const Purpose&) = delete;

  // "Snapshots::save: " and the message; the message alone when there is no purpose.
  static std::string before(const std::string& message);

 private:
  using Text = std::string (*)(const void* subject);
  Purpose(const void* subject, Text text);

  const void* subject_;
  Text text_;
};

}  // namespace lockstep::comm
