//go:build berm_embed

package main

import _ "embed"

// agentImage is the agent's program, put here by `make build`.
//
//go:embed berm-agent
var agentImage []byte

func embeddedAgent() []byte { return agentImage }
