// lockstep's engines for code that speaks c10d.
#include <fmt/format.h>

#include <lockstep/c10d.h>
#include <lockstep/error.h>

#include "base/error_text.h"
#include "shm/backend.h"

namespace lockstep {

c10::intrusive_ptr<c10d_backend> make_c10d_backend(const std::string& name,
                                                   c10::intrusive_ptr<c10d::Store> store, int rank,
                                                   int world_size, std::chrono::milliseconds timeout) {
  if (name != "shm") {
    throw UsageError(
        base::compose({.what = fmt::format("there is no c10d backend \"{}\" in this build", name),
                       .evidence = "there is: shm",
                       .hint = "LibTorch's own backends are made by LibTorch"}));
  }
  if (!store || timeout <= std::chrono::milliseconds(0)) {
    throw UsageError(base::compose({.what = "a c10d backend cannot be made",
                                    .evidence = store ? "the timeout is not positive" : "there is no store",
                                    .hint = "give a store that all ranks share, and a positive timeout"}));
  }
  auto endpoint = std::make_shared<shm::Endpoint>(std::move(store), rank, world_size, timeout, "c10d group");
  endpoint->connect_in_background();
  return c10::make_intrusive<shm::Backend>(std::move(endpoint));
}

}  // namespace lockstep
