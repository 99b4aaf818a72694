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

// Tracing is a TracerProvider that sends spans to a collector.
type Tracing interface {
	trace.TracerProvider
	// Shutdown sends the remaining spans.
	Shutdown(context.Context) error
}

// OpenTracing reads upstream's TracingConfiguration from a file, like kube-apiserver's
// --tracing-config-file. It has the collector's endpoint (OTLP over gRPC), and how many
// requests per million are traced in addition to those whose client asks for it.
// OpenTelemetry's environment variables supply missing values. An unreachable collector
// is not an error.
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

// borrowedTracing is not shut down by the borrower: its owner does that.
type borrowedTracing struct{ trace.TracerProvider }

func (borrowedTracing) Shutdown(context.Context) error { return nil }
