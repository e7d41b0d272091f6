#include "control/coordinator/control_transport.h"

#include <utility>

#include "common/base/check.h"
#include "common/proto/coordination.pb.h"

namespace trainyard::control {

ServerEvent::ServerEvent() = default;
ServerEvent::ServerEvent(ConnectionId id, Kind what) : connection(id), kind(what) {}
ServerEvent::ServerEvent(ConnectionId id, std::unique_ptr<coordination::FromAgent> fact)
    : connection(id), kind(Kind::kMessage), message(std::move(fact)) {}
ServerEvent::ServerEvent(ServerEvent&&) noexcept = default;
ServerEvent& ServerEvent::operator=(ServerEvent&&) noexcept = default;
ServerEvent::~ServerEvent() = default;

Status ControlTransport::send_with_tail(ConnectionId connection,
                                        const coordination::ToAgent& message,
                                        std::shared_ptr<const std::string> tail) {
  coordination::ToAgent whole(message);
  TRAINYARD_CHECK(whole.MergeFromString(*tail));
  return send(connection, whole);
}

ChannelEvent::ChannelEvent() = default;
ChannelEvent::ChannelEvent(Kind what, std::string why) : kind(what), reason(std::move(why)) {}
ChannelEvent::ChannelEvent(std::unique_ptr<coordination::ToAgent> decision)
    : kind(Kind::kMessage), message(std::move(decision)) {}
ChannelEvent::ChannelEvent(ChannelEvent&&) noexcept = default;
ChannelEvent& ChannelEvent::operator=(ChannelEvent&&) noexcept = default;
ChannelEvent::~ChannelEvent() = default;

}  // namespace trainyard::control
