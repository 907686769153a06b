// Package guest is the host's side of the conversation with a guest agent, and
// the protocol's version. The agent's side is guest/agent.
//
// The two share one byte channel (a virtio-serial port). guest/internal/channel
// turns it into sessions: a handshake with a nonce, repeated until it is
// answered, so that neither bytes of an older session nor a restored snapshot
// or a killed server can confuse it; inside a session, many streams with flow
// control of their own. The streams carry HTTP: requests and their limits are
// in guest/internal/wire.
//
// A guest is hostile. Whatever it sends is bounded in size and time here, a
// failure of the channel is always CodeUnreachable, and a slow reader or writer
// holds up its own stream only.
//
// A machine has no identity until Renew gives it one; see Identity, and
// guest/agent for what that means to the clones of one template.
package guest
