// LibTorch's Gloo as a transport, with everything that Gloo lacks: more dtypes and operations (gaps.h), a
// comparison of the ranks' calls (comm/agreement.h), waits that can be given up (interrupter.h), writes that
// raise no SIGPIPE (no_sigpipe.h).
#pragma once

#include <memory>

#include "comm/agreement.h"
#include "foreign/transport.h"
#include "gloo/link.h"

namespace lockstep::gloo {

class Transport final : public foreign::Transport {
 public:
  // `gloo` must be one of LibTorch's Gloo backends.
  Transport(ProcessGroup::Impl& group, c10::intrusive_ptr<c10d_backend> gloo);
  ~Transport() override;

  bool carries(c10::Device device) const override { return device.is_cpu(); }
  std::shared_ptr<Work::State> start(comm::Request&& request) override;

 protected:
  void begin(foreign::Started& call) override;
  void wait(foreign::Started& call) override;
  void interrupt() noexcept override;

 private:
  void begin_reduction(foreign::Started& call);
  void begin_reduce_scatter(foreign::Started& call);
  void begin_message(foreign::Started& call);
  void begin_move(foreign::Started& call);
  void wait_for_collective(foreign::Started& call);
  void wait_for_message(foreign::Started& call);

  Link link_;
  const std::unique_ptr<comm::Agreement> agreement_;  // null: calls are not compared
  Interrupter interrupter_;
};

}  // namespace lockstep::gloo
