package apiserver

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

// Tracing is where spans go: a TracerProvider that sends them to a collector.
type Tracing interface {
	trace.TracerProvider
	// Shutdown sends what is left.
	Shutdown(context.Context) error
}

// OpenTracing reads upstream's TracingConfiguration from a file, as
// kube-apiserver's --tracing-config-file names it: the collector's endpoint
// (OTLP over gRPC), and how many requests of a million are traced beside those
// whose client asks for it. What the file leaves out comes from OpenTelemetry's
// environment variables. A collector that is not there is no error.
func OpenTracing(ctx context.Context, file, service, instance string) (Tracing, error) {
	config, err := options.ReadTracingConfiguration(file)
	if err != nil {
		return nil, fmt.Errorf("open tracing: %w: write a TracingConfiguration of apiserver.config.k8s.io/v1", err)
	}
	if errs := tracingapi.ValidateTracingConfiguration(config, utilfeature.DefaultFeatureGate, nil); len(errs) > 0 {
		return nil, fmt.Errorf("open tracing: %s: %w", file, errs.ToAggregate())
	}
	provider, err := tracing.NewProvider(ctx, config, nil, []resource.Option{resource.WithAttributes(
		attribute.String("service.name", service), attribute.String("service.instance.id", instance))})
	if err != nil {
		return nil, fmt.Errorf("open tracing: %w", err)
	}
	return provider, nil
}

// lentTracing belongs to somebody else, who shuts it down.
type lentTracing struct{ trace.TracerProvider }

func (lentTracing) Shutdown(context.Context) error { return nil }
