package server_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/atoll-dev/atoll/server"
)

// withHeader adds a header to every request.
type withHeader struct {
	http.RoundTripper
	name, value string
}

func (w withHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(w.name, w.value)
	return w.RoundTripper.RoundTrip(r)
}

// TestOneRequestIsOneTrace: a client's trace continues through the API server and the
// keyspace down to the commit, and contains no secret.
func TestOneRequestIsOneTrace(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	a := newServer(t, server.Config{DataDir: t.TempDir(), TracerProvider: provider})
	defer func() {
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	}()
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	config := a.config(t)
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return withHeader{rt, "traceparent", "00-" + id + "-00f067aa0ba902b7-01"}
	})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "traced"}, StringData: map[string]string{"password": "geheim"}}
	if _, err := client.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The request's span ends after its response.
	var commit tracetest.SpanStub
	parents := map[trace.SpanID]tracetest.SpanStub{}
	eventually(t, "the trace is complete", func(context.Context) error {
		clear(parents)
		commit = tracetest.SpanStub{}
		for _, s := range spans.GetSpans() {
			if s.SpanContext.TraceID().String() != id {
				return fmt.Errorf("span %s is of another trace", s.Name)
			}
			parents[s.SpanContext.SpanID()] = s
			if s.Name == "kv.commit" {
				commit = s
			}
			for _, attribute := range s.Attributes {
				if strings.Contains(attribute.Value.Emit(), "geheim") {
					t.Fatalf("span %s has a secret in %s", s.Name, attribute.Key)
				}
			}
		}
		if names := lineage(parents, commit); !strings.HasSuffix(names, "POST /api/v1/namespaces/{:namespace}/secrets") {
			return fmt.Errorf("the commit's ancestors are %s", names)
		}
		return nil
	})
	names := lineage(parents, commit)
	if want := "kv.commit < kv.Txn < Create etcd3 < "; !strings.HasPrefix(names, want) {
		t.Errorf("the commit's ancestors are %s, want %s", names, want)
	}
	var all []string
	for _, s := range parents {
		all = append(all, s.Name)
	}
	if !slices.Contains(all, "kv.wait") {
		t.Errorf("the trace has only %q", all)
	}
	t.Log(names)
}

// lineage returns the names of a span and its ancestors.
func lineage(spans map[trace.SpanID]tracetest.SpanStub, s tracetest.SpanStub) string {
	names := []string{s.Name}
	for {
		parent, ok := spans[s.Parent.SpanID()]
		if !ok {
			return strings.Join(names, " < ")
		}
		names = append(names, parent.Name)
		s = parent
	}
}

func TestTracingConfiguration(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "tracing.yaml")
	for content, want := range map[string]string{
		"kind: x": "TracingConfiguration",
		"apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nsamplingRatePerMillion: -1\n": "samplingRatePerMillion",
		"apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: 127.0.0.1:1\n":      "",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, closer, err := server.OpenTracing(t.Context(), file, "test")
		if want == "" {
			if err != nil {
				t.Errorf("%q: %v", content, err)
			} else if err := closer.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", content, err, want)
		}
	}
}
