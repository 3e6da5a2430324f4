package defence

// linkRows: the link, from both ends.
var linkRows = [...]Entry{
	{
		Name: LinkHello, Where: "link/fdpass/packet.go",
		Keeps:  "an agent that says something else than hello",
		Proofs: []Proof{{"link/fdpass", "TestHostileControlSocket", Any}},
	},
	{
		Name: LinkHelloDescriptors, Where: "link/fdpass/packet.go",
		Keeps:  "descriptors that nobody asked for",
		Proofs: []Proof{{"link/fdpass", "TestHostileControlSocket", Any}},
	},
	{
		Name: LinkNothingAfterHello, Where: "link/fdpass/host.go",
		Keeps:  "packets from an agent that has nothing to say there",
		Proofs: []Proof{{"link/fdpass", "TestHostileControlSocket/two_hellos", Any}},
	},
	{
		Name: LinkDescriptorsClosed, Where: "link/fdpass/packet.go",
		Keeps:  "descriptors that pile up in the host program",
		Proofs: []Proof{{"link/fdpass", "TestHostileControlSocket", Any}},
	},
	{
		Name: LinkBootPacket, Where: "link/fdpass/packet.go",
		Keeps:  "a first packet that is not the host's",
		Proofs: []Proof{{"link/fdpass", "FuzzControlMessages", Any}},
	},
	{
		Name: LinkBootSize, Where: "link/fdpass/host.go",
		Keeps:  "a boot packet that the guest cuts",
		Proofs: []Proof{{"link/fdpass", "TestNewRefuses", Any}},
	},
	{
		Name: LinkStreamPacket, Where: "link/fdpass/packet.go",
		Keeps:  "planes that do not exist",
		With:   []Defence{LinkStreamSocket},
		Proofs: []Proof{{"link/fdpass", "TestGuestRefusesPackets", Any}},
	},
	{
		Name: LinkStreamDescriptors, Where: "link/fdpass/packet.go",
		Keeps:  "streams with descriptors beside them",
		With:   []Defence{LinkStreamSocket},
		Proofs: []Proof{{"link/fdpass", "TestGuestRefusesPackets", Any}},
	},
	{
		Name: LinkStreamSocket, Where: "link/fdpass/socket.go",
		Keeps:  "descriptors that are no streams",
		Proofs: []Proof{{"link/fdpass", "TestGuestRefusesPackets", Any}},
	},
	{
		Name: LinkControlSocket, Where: "link/fdpass/socket.go",
		Keeps:  "a control socket that does not keep packets apart",
		Proofs: []Proof{{"link/fdpass", "TestAStreamIsNoControlSocket", Any}},
	},
	{
		Name: LinkListener, Where: "link/fdpass/socket.go",
		Keeps:  "a listener on a network of the host's, or none at all",
		Proofs: []Proof{{"link/fdpass", "TestHandedOverSockets", Any}},
	},
	{
		Name: LinkListenerWoken, Where: "link/fdpass/egress.go",
		Keeps:  "an agent that makes the host wait in accept for ever",
		Proofs: []Proof{{"link/fdpass", "TestAcceptOnBlockingSocket", Any}}, Hangs: true,
	},
	{
		Name: LinkGuestQueue, Where: "link/fdpass/guest.go",
		Keeps:  "streams that nobody takes",
		Proofs: []Proof{{"link/fdpass", "TestGuestQueue", Any}},
	},
	{
		Name: LinkHeaderSize, Where: "link/fdpass/roundtrip.go",
		Keeps:  "an answer with an endless header",
		Proofs: []Proof{{"link/fdpass", "TestHostileStreams/endless_headers", Any}},
	},
	{
		Name: LinkInformational, Where: "link/fdpass/roundtrip.go",
		Keeps:  "answers without end before the answer",
		With:   []Defence{LinkHeaderSize},
		Proofs: []Proof{{"link/fdpass", "TestHostileStreams/endless_100", Any}},
	},
	{
		Name: LinkBodyLength, Where: "link/fdpass/roundtrip.go",
		Keeps:  "a lost answer that passes for a whole one",
		Proofs: []Proof{{"link/fdpass", "TestHostileStreams/no_length", Any}},
	},
	{
		Name: LinkUnaskedUpgrade, Where: "link/fdpass/body.go",
		Keeps:  "a stream that the agent takes over",
		Proofs: []Proof{{"link/fdpass", "TestHostileStreams/unasked_upgrade", Any}},
	},
	{
		Name: LinkUnaskedAnswer, Where: "link/fdpass/plane.go",
		Keeps:  "an answer that is there before its question",
		Proofs: []Proof{{"link/fdpass", "TestUnaskedAnswerIsNotUsed", Any}},
	},
	{
		Name: LinkDeadline, Where: "link/fdpass/roundtrip.go",
		Keeps:  "an agent that does not answer",
		Proofs: []Proof{{"link/fdpass", "TestStoppedGuest/waiting_for_an_answer", Any}},
	},
	{
		Name: LinkStreamCount, Where: "link/fdpass/plane.go",
		Keeps:  "streams without number",
		Proofs: []Proof{{"link/fdpass", "TestStreamLimit", Any}},
	},
	{
		Name: LinkSendTimeout, Where: "link/fdpass/stream.go",
		Keeps:  "an agent that takes no stream",
		Proofs: []Proof{{"link/fdpass", "TestAGuestThatTakesNoStream", Any}},
	},
	{
		Name: LinkIdleStreams, Where: "link/fdpass/plane.go",
		Keeps:  "idle streams without number",
		Proofs: []Proof{{"link/fdpass", "TestIdleStreamsAreFew", Any}},
	},
}
