// Atoll is one control plane for a whole fleet of Kubernetes clusters. Run as
// kubectl-atoll, the same binary is the kubectl plug-in.
package main

import (
	"os"
	_ "time/tzdata" // the container image has no files with time zones

	"github.com/atoll-dev/atoll/cli"
)

func main() {
	os.Exit(cli.Main(os.Args, os.Stdout, os.Stderr))
}
