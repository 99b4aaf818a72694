package cli

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"

	"k8s.io/klog/v2"
)

// setLogging points klog, by which everything below logs, at out. klog is one
// per process; this is the only place that touches it.
//
// Verbosity 0 shows errors only: a control plane on a laptop should say how to
// reach it and then be quiet.
func setLogging(out io.Writer, verbosity int) error {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", strconv.Itoa(verbosity)); err != nil {
		return fmt.Errorf("set the verbosity of the log: %w", err)
	}
	level := slog.LevelError
	if verbosity > 0 {
		level = slog.Level(-verbosity) // as logr maps its levels to slog's
	}
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level})))
	return nil
}
