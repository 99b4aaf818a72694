package server

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/atoll-dev/atoll/apiserver"
)

// flushTimeout limits the sending of the last spans.
const flushTimeout = 2 * time.Second

// OpenTracing sends spans as configured in a TracingConfiguration (see
// apiserver.OpenTracing), under the name of a service. Closing it sends the remaining
// spans.
func OpenTracing(ctx context.Context, file, service string) (trace.TracerProvider, io.Closer, error) {
	host, err := os.Hostname()
	if err != nil {
		host = service
	}
	tracing, err := apiserver.OpenTracing(ctx, file, service, host)
	if err != nil {
		return nil, nil, err
	}
	return tracing, flushingTracing{tracing}, nil
}

type flushingTracing struct{ apiserver.Tracing }

// Close implements io.Closer. Spans that the collector does not accept are lost; that
// is no reason for an error at shutdown.
func (f flushingTracing) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	_ = f.Shutdown(ctx)
	return nil
}

// openTracing returns the configured provider; nil if tracing is disabled.
func (s *Server) openTracing(ctx context.Context) (trace.TracerProvider, error) {
	switch {
	case s.cfg.TracingConfigFile == "":
		return s.cfg.TracerProvider, nil
	case s.cfg.TracerProvider != nil:
		return nil, errors.New("both a tracing configuration and a TracerProvider are set: set only one")
	}
	tracing, closer, err := OpenTracing(ctx, s.cfg.TracingConfigFile, "atoll")
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, closer)
	return tracing, nil
}
