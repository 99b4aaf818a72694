package cli

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"

	"k8s.io/klog/v2"
)

// setLogging points klog, by which everything of Kubernetes logs, at out, and
// returns a logger for the rest. klog is one per process; this is the only place
// that touches it.
//
// Verbosity 0 is quiet: errors of the libraries, warnings of Atoll. A control
// plane on a laptop should say how to reach it and then nothing that needs no
// answer.
func setLogging(out io.Writer, verbosity int) (*slog.Logger, error) {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", strconv.Itoa(verbosity)); err != nil {
		return nil, fmt.Errorf("set the verbosity of the log: %w", err)
	}
	libraries, own := slog.LevelError, slog.LevelWarn
	if verbosity > 0 {
		libraries = slog.Level(-verbosity) // as logr maps its levels to slog's
		own = libraries
	}
	logger := func(level slog.Level) *slog.Logger {
		return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level}))
	}
	klog.SetSlogLogger(logger(libraries))
	return logger(own), nil
}
