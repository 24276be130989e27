// The purpose of a collective, so that an error names what the user called ("Snapshots::save", "DDP
// gradients, bucket 0 (fc.weight, …)") and not only the collective.
#pragma once

#include <string>
#include <type_traits>

namespace lockstep::comm {

// While it exists, errors of this thread's collectives start with its text. If purposes are nested, the
// outermost one is used: it is what the user called.
class Purpose {
 public:
  explicit Purpose(const char* name)
      : Purpose(name, [](const void* text) -> std::string { return static_cast<const char*>(text); }) {}
  // `describe` is called only for an error, so that no strings are built otherwise. It must outlive this
  // object.
  template <class Describe>
  requires(std::is_invocable_r_v<std::string, const Describe&>) explicit Purpose(const Describe& describe)
      : Purpose(&describe, [](const void* subject) -> std::string {
          return (*static_cast<const Describe*>(subject))();
        }) {}
  ~Purpose();
  Purpose(const Purpose&) = delete;
  Purpose& operator=(const Purpose&) = delete;

  // Returns "Snapshots::save: " followed by the message; the message alone if there is no purpose.
  static std::string before(const std::string& message);

 private:
  using Text = std::string (*)(const void* subject);
  Purpose(const void* subject, Text text);

  const void* subject_;
  Text text_;
};

}  // namespace lockstep::comm
