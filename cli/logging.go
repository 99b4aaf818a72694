package cli

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync/atomic"

	"k8s.io/klog/v2"
)

// setLogging points klog, by which everything of Kubernetes logs, at out, and
// returns a logger for the rest. klog is one per process; this is the only place
// that touches it.
//
// Verbosity 0 is quiet: errors of the libraries, and those only while serving
// says so, warnings of Atoll. A control plane on a laptop should say how to reach
// it and then nothing that needs no answer: while it starts, the parts of
// Kubernetes log as errors what they will try again, and while it stops, that
// they were stopped.
func setLogging(out io.Writer, verbosity int, serving *atomic.Bool) (*slog.Logger, error) {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", strconv.Itoa(verbosity)); err != nil {
		return nil, fmt.Errorf("set the verbosity of the log: %w", err)
	}
	handler := func(level slog.Level) slog.Handler {
		return slog.NewTextHandler(out, &slog.HandlerOptions{Level: level})
	}
	if verbosity > 0 {
		logger := slog.New(handler(slog.Level(-verbosity))) // as logr maps its levels to slog's
		klog.SetSlogLogger(logger)
		return logger, nil
	}
	klog.SetSlogLogger(slog.New(gate{handler(slog.LevelError), serving}))
	return slog.New(handler(slog.LevelWarn)), nil
}

// gate lets records pass while open.
type gate struct {
	slog.Handler
	open *atomic.Bool
}

func (g gate) Enabled(ctx context.Context, level slog.Level) bool {
	return g.open.Load() && g.Handler.Enabled(ctx, level)
}

func (g gate) WithAttrs(attrs []slog.Attr) slog.Handler {
	return gate{g.Handler.WithAttrs(attrs), g.open}
}

func (g gate) WithGroup(name string) slog.Handler {
	return gate{g.Handler.WithGroup(name), g.open}
}
