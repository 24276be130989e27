// The ranks of this machine, connected over shared memory.
//
// There are two connections, one for each half of a call (operation.h), because the halves advance at
// different times: each has an order of calls of its own, which is the same on all local ranks.
//
// Thread-safe.
#pragma once

#include <array>
#include <functional>
#include <memory>

#include <lockstep/error.h>

#include "shm/endpoint.h"

namespace lockstep::hybrid {

enum class Half { Front, Back };

class Machine {
 public:
  using Endpoints = std::array<std::shared_ptr<shm::Endpoint>, 2>;  // by Half

  // Of a rank that is alone on its machine.
  Machine() = default;
  // Connected endpoints.
  explicit Machine(Endpoints endpoints) : endpoints_(std::move(endpoints)) {}
  ~Machine() {
    for (const auto& endpoint : endpoints_) {
      if (endpoint) endpoint->retire();
    }
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  bool alone() const { return !endpoints_[0]; }
  // The request's ranks are local indices. A rank that is alone takes what it gives. `hopeless` is called
  // from time to time; once it returns true, throws std::runtime_error. Then other ranks access the request's
  // memory until fail() is called.
  void run(Half half, comm::Request&& request, const std::function<bool()>& hopeless);
  void fail(const Error& why) noexcept {
    for (const auto& endpoint : endpoints_) {
      if (endpoint) endpoint->fail(std::string(why.kind()), why.what());
    }
  }
  // For messages, and for memory. Not alone() only.
  shm::Endpoint& messages() const { return of(Half::Front); }

 private:
  shm::Endpoint& of(Half half) const { return *endpoints_[static_cast<size_t>(half)]; }

  Endpoints endpoints_;
};

}  // namespace lockstep::hybrid
