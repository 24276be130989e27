#include "gloo/link.h"

#include <chrono>
#include <exception>
#include <vector>

#include <ATen/ATen.h>

#include "comm/wire_tags.h"
#include "compat/message_of.h"
#include "gloo/make_gloo.h"
#include "gloo/no_sigpipe.h"

namespace lockstep::gloo {

using namespace std::chrono_literals;

class Link::Message final : public comm::Transfer {
 public:
  Message(Interrupter& waits, int peer, c10::intrusive_ptr<c10d::Work> work)
      : waits_(waits), peer_(peer), work_(std::move(work)) {}
  void wait(const std::function<bool()>& hopeless) override {
    if (!work_) return;
    try {
      waits_.wait(work_, hopeless);
    } catch (const std::exception& error) {
      throw comm::LinkError(peer_, compat::message_of(error));
    }
    work_.reset();
  }

 private:
  Interrupter& waits_;
  const int peer_;
  c10::intrusive_ptr<c10d::Work> work_;
};

namespace {

std::vector<at::Tensor> as_tensors(std::byte* data, size_t bytes, comm::Link::Owner owner) {
  return {at::from_blob(
      data, {static_cast<int64_t>(bytes)}, [owner = std::move(owner)](void*) {},
      at::TensorOptions(at::kByte))};
}

}  // namespace

// Also starting a transfer may find the connection closed.
template <class Start>
comm::TransferPtr Link::begin(int peer, Start&& start) {
  const NoSigpipe quiet;  // Gloo writes in this thread, maybe to a connection that its peer has closed
  try {
    return std::make_unique<Message>(interrupter_, peer, start());
  } catch (const std::exception& error) {
    throw comm::LinkError(peer, compat::message_of(error));
  }
}

comm::TransferPtr Link::send(int to, int tag, const std::byte* data, size_t bytes, Owner owner) {
  auto tensors = as_tensors(const_cast<std::byte*>(data), bytes, std::move(owner));
  return begin(to, [&] { return gloo_.send(tensors, to, tag); });
}

comm::TransferPtr Link::receive(int from, int tag, std::byte* data, size_t bytes, Owner owner) {
  auto tensors = as_tensors(data, bytes, std::move(owner));
  return begin(from, [&] { return gloo_.recv(tensors, from, tag); });
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
