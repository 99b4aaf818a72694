package partition_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// localManifest is a kind that exists in one member only.
const localManifest = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: shells.local.test.atoll.dev}
spec:
  group: local.test.atoll.dev
  scope: Namespaced
  names: {plural: shells, singular: shell, kind: Shell}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// samples are durations of operations.
type samples []time.Duration

func (s samples) String() string {
	if len(s) == 0 {
		return "none"
	}
	return fmt.Sprintf("%d, p50 %s, p99 %s, max %s", len(s), s.at(50).Round(time.Millisecond/10), s.at(99).Round(time.Millisecond/10), slices.Max(s).Round(time.Millisecond/10))
}

// at returns a percentile.
func (s samples) at(percent int) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)]
}

// reader uses a member's local kinds all the time.
type reader struct {
	mu     sync.Mutex
	took   samples
	errors []error
}

// localReads are its requests, made in turn.
var localReads = map[string]func(context.Context, rest.Interface) error{
	"get a custom resource": func(ctx context.Context, c rest.Interface) error {
		return c.Get().AbsPath("/apis/local.test.atoll.dev/v1/namespaces/default/shells/conch").Do(ctx).Error()
	},
	"list custom resources": func(ctx context.Context, c rest.Interface) error {
		return c.Get().AbsPath("/apis/local.test.atoll.dev/v1/shells").Do(ctx).Error()
	},
	"list Pods": func(ctx context.Context, c rest.Interface) error {
		return c.Get().AbsPath("/api/v1/pods").Do(ctx).Error()
	},
	"write": func(ctx context.Context, c rest.Interface) error {
		return c.Patch("application/merge-patch+json").AbsPath("/apis/local.test.atoll.dev/v1/namespaces/default/shells/conch").
			Body([]byte(fmt.Sprintf(`{"spec":{"at":%d}}`, time.Now().UnixNano()))).Do(ctx).Error()
	},
	"discover the core": discover("/api"),
	"discover groups":   discover("/apis"),
}

// discover sends a discovery request like kubectl's.
func discover(path string) func(context.Context, rest.Interface) error {
	return func(ctx context.Context, c rest.Interface) error {
		return c.Get().AbsPath(path).SetHeader("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json").Do(ctx).Error()
	}
}

// readInterval is the time between two requests.
const readInterval = 20 * time.Millisecond

// startReader starts a reader that ends with the test.
func startReader(t *testing.T, client kubernetes.Interface) *reader {
	t.Helper()
	api := client.Discovery().RESTClient()
	shell := []byte(`{"apiVersion": "local.test.atoll.dev/v1", "kind": "Shell", "metadata": {"name": "conch"}}`)
	err := api.Post().AbsPath("/apis/local.test.atoll.dev/v1/namespaces/default/shells").Body(shell).Do(t.Context()).Error()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &reader{}
	stopped := make(chan struct{})
	t.Cleanup(func() {
		stop()
		<-stopped
		_ = api.Delete().AbsPath("/apis/local.test.atoll.dev/v1/namespaces/default/shells/conch").Do(context.WithoutCancel(ctx)).Error()
	})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(readInterval)
		defer tick.Stop()
		for ctx.Err() == nil {
			for request, do := range localReads {
				<-tick.C
				r.note(ctx, request, func() error { return do(ctx, api) })
			}
		}
	}()
	return r
}

func (r *reader) note(ctx context.Context, request string, do func() error) {
	began := time.Now()
	err := do()
	took := time.Since(began)
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.took = append(r.took, took)
	if err != nil {
		r.errors = append(r.errors, fmt.Errorf("%s: %w", request, err))
	}
}

// take returns the results since the last call.
func (r *reader) take() (samples, []error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	took, errors := r.took, r.errors
	r.took, r.errors = nil, nil
	return took, errors
}

// answer is the result of a shared read.
type answer struct {
	began time.Time
	took  time.Duration
	err   error
}

// sharedReader reads a shared note in a member all the time. The reads go to the database.
type sharedReader struct {
	mu      sync.Mutex
	answers []answer
}

// sharedReadInterval is the time between two reads. A read without an answer does not delay the next.
const sharedReadInterval = 500 * time.Millisecond

func startSharedReader(t *testing.T, s *stage, member, name string) *sharedReader {
	t.Helper()
	client := s.notes(t, member)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	a := &sharedReader{}
	var asking sync.WaitGroup
	t.Cleanup(func() { stop(); asking.Wait() })
	asking.Go(func() {
		tick := time.NewTicker(sharedReadInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			asking.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
				defer cancel()
				began := time.Now()
				_, err := client.Get(ctx, name, metav1.GetOptions{})
				if ctx.Err() == context.Canceled {
					return
				}
				a.mu.Lock()
				defer a.mu.Unlock()
				a.answers = append(a.answers, answer{began, time.Since(began), err})
			})
		}
	})
	return a
}

// between returns the results of reads that began in a time span, sorted by their beginning.
func (a *sharedReader) between(from, to time.Time) []answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []answer
	for _, one := range a.answers {
		if !one.began.Before(from) && one.began.Before(to) {
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b answer) int { return a.began.Compare(b.began) })
	return out
}
