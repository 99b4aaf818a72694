package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), version())
		},
	}
}

// version is recorded in the binary by the Go toolchain: no linker flags are needed,
// and `go install` returns the same version as make.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "atoll (unknown version)"
	}
	commit, modified := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = " " + s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			if s.Value == "true" {
				modified = "+changes"
			}
		}
	}
	kubernetes := ""
	for _, dep := range info.Deps {
		if dep.Path == "k8s.io/kubernetes" {
			kubernetes = ", Kubernetes " + dep.Version
		}
	}
	return fmt.Sprintf("atoll %s%s%s%s, %s", info.Main.Version, commit, modified, kubernetes, runtime.Version())
}
