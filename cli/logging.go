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

// setLogging sends the log of klog, which all of Kubernetes' code uses, to out. It
// returns a logger for everything else. klog exists once per process, and this is the
// only code that configures it.
//
// Verbosity 0 is quiet: it logs errors of the libraries only while serving is set, and
// warnings of Atoll. A control plane on a laptop should print its address and then
// nothing that needs no action. At startup, Kubernetes' components log as errors what
// they retry, and at shutdown that they were stopped. A line that is repeated is logged
// every ten seconds.
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
		logger := slog.New(handler(slog.Level(-verbosity))) // logr maps its levels to slog's like this
		klog.SetSlogLogger(logger)
		return logger, nil
	}
	klog.SetSlogLogger(slog.New(gate{newRepeats(handler(slog.LevelError)), serving}))
	return slog.New(handler(slog.LevelWarn)), nil
}

// gate passes records while it is open.
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
