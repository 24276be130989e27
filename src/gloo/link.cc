#include "gloo/link.h"

#include <chrono>
#include <exception>
#include <vector>

#include <ATen/ATen.h>

#include "comm/wire_tags.h"
#include "gloo/make_gloo.h"
#include "gloo/no_sigpipe.h"

namespace lockstep::gloo {

using namespace std::chrono_literals;

class Link::Message final : public comm::Transfer {
 public:
  Message(Interrupter& waits, c10::intrusive_ptr<c10d::Work> work) : waits_(waits), work_(std::move(work)) {}
  void wait(const std::function<bool()>& hopeless) override {
    if (work_) waits_.wait(work_, hopeless);
    work_.reset();
  }

 private:
  Interrupter& waits_;
  c10::intrusive_ptr<c10d::Work> work_;
};

namespace {

std::vector<at::Tensor> as_tensors(std::byte* data, size_t bytes, comm::Link::Owner owner) {
  return {at::from_blob(
      data, {static_cast<int64_t>(bytes)}, [owner = std::move(owner)](void*) {},
      at::TensorOptions(at::kByte))};
}

}  // namespace

comm::TransferPtr Link::send(int to, int tag, const std::byte* data, size_t bytes, Owner owner) {
  auto tensors = as_tensors(const_cast<std::byte*>(data), bytes, std::move(owner));
  return std::make_unique<Message>(interrupter_, gloo_.send(tensors, to, tag));
}

comm::TransferPtr Link::receive(int from, int tag, std::byte* data, size_t bytes, Owner owner) {
  auto tensors = as_tensors(data, bytes, std::move(owner));
  return std::make_unique<Message>(interrupter_, gloo_.recv(tensors, from, tag));
}

void Link::hang_up() noexcept {
  // Gloo has no call for this, but when a receive times out, it closes the connections over which it waited.
  const NoSigpipe quiet;
  const int any_other = (gloo_.getRank() + 1) % gloo_.getSize();
  for (int connection = 0; connection < connections_of(gloo_); ++connection) {
    try {
      std::vector<at::Tensor> room{at::empty({1}, at::kByte)};
      gloo_.recv(room, any_other, comm::kUnusedTag - connection)->wait(1ms);
    } catch (const std::exception&) {
    }
  }
}

}  // namespace lockstep::gloo
