// Memory for what arrives from other machines, used again and again: new pages cost more than the bytes' way
// through the network.
//
// Thread-safe. A buffer may outlive its pool.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace lockstep::hybrid {

using Buffer = std::shared_ptr<std::byte>;

class Buffers {
 public:
  // At least this large; uninitialised. Returns to the pool when the last owner releases it.
  Buffer take(size_t bytes);

 private:
  struct Pool {
    struct Free {
      std::unique_ptr<std::byte[]> data;
      size_t bytes;
    };
    std::mutex mutex;
    std::vector<Free> free;
  };
  const std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
};

}  // namespace lockstep::hybrid
