package cli

import "github.com/spf13/pflag"

func addTracingFlag(flags *pflag.FlagSet, file *string) {
	flags.StringVar(file, "tracing-config-file", "", "File with a Kubernetes TracingConfiguration: the OpenTelemetry collector that spans are sent to, and how many requests leave some.")
}
