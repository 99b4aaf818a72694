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

// flushTimeout bounds the sending of the last spans.
const flushTimeout = 2 * time.Second

// OpenTracing makes spans go where a TracingConfiguration says (see
// apiserver.OpenTracing), under the name of a service. Closing it sends what is left.
func OpenTracing(ctx context.Context, file, service string) (trace.TracerProvider, io.Closer, error) {
	host, err := os.Hostname()
	if err != nil {
		host = service
	}
	tracing, err := apiserver.OpenTracing(ctx, file, service, host)
	if err != nil {
		return nil, nil, err
	}
	return tracing, flushing{tracing}, nil
}

type flushing struct{ apiserver.Tracing }

// Close implements io.Closer. Spans that a collector does not take are lost,
// which is not worth an error at the end of a server.
func (f flushing) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	_ = f.Shutdown(ctx)
	return nil
}

// openTracing opens what the configuration asks for; nil for nothing.
func (s *Server) openTracing(ctx context.Context) (trace.TracerProvider, error) {
	switch {
	case s.cfg.TracingConfigFile == "":
		return s.cfg.TracerProvider, nil
	case s.cfg.TracerProvider != nil:
		return nil, errors.New("both a tracing configuration and a provider of spans given: choose one")
	}
	tracing, closer, err := OpenTracing(ctx, s.cfg.TracingConfigFile, "atoll")
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, closer)
	return tracing, nil
}
