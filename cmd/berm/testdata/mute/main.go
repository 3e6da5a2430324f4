// Command mute stands in for an agent that never answers.
package main

import "time"

func main() { time.Sleep(time.Hour) }
