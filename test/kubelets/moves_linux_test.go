package kubelets_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"

	"github.com/atoll-dev/atoll/playground/node"
	"github.com/atoll-dev/atoll/test/programs"
)

// requestPause is the time between two requests of the client.
const requestPause = 5 * time.Millisecond

// TestMoves: an app whose Service is exported moves from cluster to cluster, while a client sends 200 requests a second to the
// endpoints that a cluster has imported. Its servers stop at once when they are told to: no request fails because its endpoint
// leaves before its pod does.
func TestMoves(t *testing.T) {
	s := whole(t)
	const namespace = "moves"
	s.namespace(t, namespace)
	// A cluster imports the Services of namespaces in which it has workloads.
	s.must(t, fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: importers}
spec:
  replicas: 3
  selector: {matchLabels: {app: importers}}
  template:
    metadata: {labels: {app: importers}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: pause, image: "%[1]s"}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {fleet.atoll.dev/cluster: east}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: %[2]s
        args: [serve, -drain, 0s]
        readinessProbe: {periodSeconds: 1, timeoutSeconds: 30, httpGet: {path: /, port: 80}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceExport
metadata: {name: web}
`, node.PauseImage, node.Image), "apply", "-n", namespace, "-f", "-")
	s.must(t, "", "wait", "serviceexport/web", "-n", namespace, "--for=condition=Ready", "--timeout=60s")
	s.must(t, "", "rollout", "status", "deployment/importers", "-n", namespace, "--timeout=120s")
	s.must(t, "", "rollout", "status", "deployment/web", "-n", namespace, "--timeout=120s")
	derived := s.must(t, "", "get", "serviceimport/web", "-n", namespace, "-o", `jsonpath={.metadata.annotations.multicluster\.kubernetes\.io/derived-service}`)

	client := s.requests(t, "west", namespace, derived)
	began := time.Now()
	for i := range *moves {
		to := members[(i+1)%len(members)]
		if _, err := s.atoll(t.Context(), "move", "deployment/web", "-n", namespace, "--to", to, "--timeout=3m"); err != nil {
			t.Fatal(err)
		}
		t.Logf("move %d, to %s: %s", i+1, to, client)
	}
	client.stop()
	t.Logf("%d moves in %s: %s", *moves, time.Since(began).Round(time.Second), client)
	if client.failed.Load() > 0 {
		t.Errorf("%d requests failed; the first ones:\n%s", client.failed.Load(), strings.Join(client.failures, "\n"))
	}
	if client.sent.Load() == 0 {
		t.Error("no request was sent")
	}
}

// requests is a client that sends requests to the imported endpoints of a Service.
type requests struct {
	slices       discoverylisters.EndpointSliceNamespaceLister
	service      string
	http         *http.Client
	stop         func()
	sent, failed atomic.Int64
	mu           sync.Mutex
	failures     []string // the first ones
}

// requests starts a client with the endpoints that a cluster has, when there are some. It runs until stop.
func (s *stage) requests(t *testing.T, cluster, namespace, service string) *requests {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactoryWithOptions(s.client(t, cluster), 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = discoveryv1.LabelServiceName + "=" + service
		}))
	r := &requests{
		slices: factory.Discovery().V1().EndpointSlices().Lister().EndpointSlices(namespace), service: service,
		// Each request has a connection of its own, as if each came from another client. A pod that is gone refuses it, or has no
		// route; the time limit is for a machine that stands still.
		http: &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	programs.Eventually(t, settle, cluster+" has endpoints", func(context.Context) error {
		_, err := r.endpoint()
		return err
	})
	var all sync.WaitGroup
	all.Go(func() {
		tick := time.NewTicker(requestPause)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				all.Go(r.send)
			}
		}
	})
	r.stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
		factory.Shutdown()
	})
	t.Cleanup(r.stop)
	return r
}

// endpoint returns the address of any endpoint that is ready.
func (r *requests) endpoint() (string, error) {
	all, err := r.slices.List(labels.Everything())
	if err != nil {
		return "", err
	}
	var ready []string
	for _, slice := range all {
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				ready = append(ready, e.Addresses[0])
			}
		}
	}
	if len(ready) == 0 {
		return "", fmt.Errorf("no ready endpoint in %d slices of %s", len(all), r.service)
	}
	return net.JoinHostPort(ready[rand.IntN(len(ready))], "80"), nil
}

func (r *requests) send() {
	r.sent.Add(1)
	err := func() error {
		address, err := r.endpoint()
		if err != nil {
			return err
		}
		response, err := r.http.Get("http://" + address)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", address, response.Status)
		}
		_, err = io.Copy(io.Discard, response.Body)
		return err
	}()
	if err == nil {
		return
	}
	r.failed.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.failures) < 10 {
		r.failures = append(r.failures, time.Now().Format(time.StampMilli)+" "+err.Error())
	}
}

func (r *requests) String() string {
	return fmt.Sprintf("%d of %d requests failed", r.failed.Load(), r.sent.Load())
}
