package cli

import "github.com/spf13/pflag"

func addTracingFlag(flags *pflag.FlagSet, file *string) {
	flags.StringVar(file, "tracing-config-file", "", "File with a Kubernetes TracingConfiguration: the OpenTelemetry collector to send spans to, and how many requests to trace.")
}
