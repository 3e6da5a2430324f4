package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker for releases (-X main.version=...).
var version = "dev"

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and where the agent comes from",
		Args:  cobra.NoArgs,
		Run: func(*cobra.Command, []string) {
			fmt.Fprintf(a.stdout, "berm %s\ncommit %s\n%s %s/%s\nagent %s\n",
				programVersion(), commit(), runtime.Version(), runtime.GOOS, runtime.GOARCH, a.agentOrigin())
		},
	}
}

// programVersion prefers what the linker was told over the module's version,
// which `go install module@version` leaves in the program.
func programVersion() string {
	info, ok := debug.ReadBuildInfo()
	if version == "dev" && ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return version
}

func commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, dirty := "unknown", ""
	for _, setting := range info.Settings {
		switch {
		case setting.Key == "vcs.revision":
			revision = setting.Value
		case setting.Key == "vcs.modified" && setting.Value == "true":
			dirty = " (modified)"
		}
	}
	return revision + dirty
}

// agentOrigin says where the agent's program comes from when the configuration
// does not name one.
func (a *app) agentOrigin() string {
	if image := embeddedAgent(); len(image) > 0 {
		return fmt.Sprintf("built in, %d bytes", len(image))
	}
	if path, set := a.lookupEnv("BERM_AGENT"); set && path != "" {
		return path + " (from BERM_AGENT)"
	}
	return "not built in; looked for beside this program, then in PATH"
}
