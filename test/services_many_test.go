package test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

var (
	exportedServices = flag.Int("services", 5, "how many Services are exported")
	exportedTime     = flag.Duration("endpoint-changes", 5*time.Second, "how long endpoints of exported Services change, five times a second")
)

// TestEndpointsOfManyServices: while pods of exported Services come and go in all clusters, each cluster gets the ready endpoints of the
// others. The test prints how long that takes.
//
//	go test ./test -v -run TestEndpointsOfManyServices -services 200 -endpoint-changes 2m
func TestEndpointsOfManyServices(t *testing.T) {
	f := whole(t)
	const namespace = "many-exported"
	f.kubectl(t, "atoll", "create", "namespace", namespace)
	t.Cleanup(func() {
		_, _ = f.tryKubectl(context.Background(), "atoll", "", "delete", "namespace", namespace, "--ignore-not-found", "--wait=false")
	})
	var manifest strings.Builder
	for i := range *exportedServices {
		fmt.Fprintf(&manifest, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: app-%[1]d}
spec: {replicas: 3, selector: {matchLabels: {app: app-%[1]d}}, template: {metadata: {labels: {app: app-%[1]d}}, spec: {containers: [{name: web, image: nginx}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: app-%[1]d}
spec: {selector: {app: app-%[1]d}, ports: [{port: 80}]}
---
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceExport
metadata: {name: app-%[1]d}
---
`, i)
	}
	if _, err := f.tryKubectl(t.Context(), "atoll", manifest.String(), "apply", "-n", namespace, "-f", "-"); err != nil {
		t.Fatal(err)
	}
	p := &propagation{sources: map[source]sets.Set[string]{}, copies: map[copied]sets.Set[string]{}, since: map[difference]time.Time{}}
	clients := map[string]kubernetes.Interface{}
	for _, member := range members {
		clients[member] = f.client(t, member)
		p.follow(t, clients[member], member, namespace)
	}
	complete := func(context.Context) error { return p.complete(*exportedServices) }
	eventually(t, 5*settle, "each cluster has the endpoints of the others", complete)

	p.measure()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	changes := 0
	for end := time.Now().Add(*exportedTime); time.Now().Before(end); changes++ {
		<-tick.C
		member := members[rand.IntN(len(members))]
		app := fmt.Sprintf("app-%d", rand.IntN(*exportedServices))
		err := clients[member].CoreV1().Pods(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, settle, "each cluster has the endpoints of the others again", complete)
	t.Logf("%d Services, %d changes: %s", *exportedServices, changes, p)
}

// source is a Service in the cluster that exports it.
type source struct{ service, cluster string }

// copied is a source as a cluster has imported it.
type copied struct {
	source
	in string
}

// difference is an address that is ready in a source and not in a copy, or the other way around.
type difference struct {
	copied
	address string
}

// propagation compares the ready endpoints of exported Services with those that clusters have imported, and measures how long each
// difference lasts.
type propagation struct {
	mu       sync.Mutex
	sources  map[source]sets.Set[string]
	copies   map[copied]sets.Set[string]
	measured bool
	since    map[difference]time.Time
	// How long addresses were missing, and how long they remained.
	added, removed []time.Duration
}

// follow watches the EndpointSlices of one cluster, until the test ends.
func (p *propagation) follow(t *testing.T, client kubernetes.Interface, cluster, namespace string) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	informer, lister := factory.Discovery().V1().EndpointSlices().Informer(), factory.Discovery().V1().EndpointSlices().Lister().EndpointSlices(namespace)
	update := func(obj any) {
		if last, gone := obj.(cache.DeletedFinalStateUnknown); gone {
			obj = last.Obj
		}
		own := obj.(*discoveryv1.EndpointSlice).Labels
		of := labels.Set{discoveryv1.LabelServiceName: own[discoveryv1.LabelServiceName]}
		from := own[mcsv1beta1.LabelSourceCluster]
		if from != "" {
			of[mcsv1beta1.LabelSourceCluster] = from
		}
		all, err := lister.List(of.AsSelector())
		if err != nil {
			t.Error(err)
		}
		ready := sets.Set[string]{}
		for _, slice := range all {
			for _, e := range slice.Endpoints {
				if e.Conditions.Ready == nil || *e.Conditions.Ready {
					ready.Insert(e.Addresses...)
				}
			}
		}
		if from == "" {
			p.sourceHas(source{own[discoveryv1.LabelServiceName], cluster}, ready)
		} else {
			p.copyHas(copied{source{own[mcsv1beta1.LabelServiceName], from}, cluster}, ready)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: update, UpdateFunc: func(_, obj any) { update(obj) }, DeleteFunc: update}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
	})
	factory.Start(ctx.Done())
}

func (p *propagation) sourceHas(s source, ready sets.Set[string]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := ready.SymmetricDifference(p.sources[s])
	p.sources[s] = ready
	for address := range changed {
		for _, importer := range members {
			d := difference{copied{s, importer}, address}
			if p.copies[d.copied].Has(address) == ready.Has(address) {
				delete(p.since, d) // it changed back before the cluster had noticed
			} else {
				p.since[d] = time.Now()
			}
		}
	}
}

func (p *propagation) copyHas(c copied, ready sets.Set[string]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := ready.SymmetricDifference(p.copies[c])
	p.copies[c] = ready
	for address := range changed {
		d := difference{c, address}
		began, ok := p.since[d]
		if !ok || p.sources[c.source].Has(address) != ready.Has(address) {
			continue
		}
		delete(p.since, d)
		switch lasted := time.Since(began); {
		case !p.measured:
		case ready.Has(address):
			p.added = append(p.added, lasted)
		default:
			p.removed = append(p.removed, lasted)
		}
	}
}

// measure begins to measure.
func (p *propagation) measure() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.measured = true
}

// complete returns an error unless each cluster has so many Services of all clusters, with an endpoint at least, and no other ones
// than they have.
func (p *propagation) complete(services int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	exported := 0
	for s, ready := range p.sources {
		if !strings.HasPrefix(s.service, "app-") {
			continue
		}
		exported++
		for _, importer := range members {
			if have := p.copies[copied{s, importer}]; ready.Len() == 0 || !ready.Equal(have) {
				return fmt.Errorf("%s of %s has %v, and %s has %v of it", s.service, s.cluster, sets.List(ready), importer, sets.List(have))
			}
		}
	}
	if want := services * len(members); exported != want {
		return fmt.Errorf("there are %d sources of %d", exported, want)
	}
	return nil
}

func (p *propagation) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprintf("endpoints came after %s, and went after %s", quantiles(p.added), quantiles(p.removed))
}

func quantiles(d []time.Duration) string {
	if len(d) == 0 {
		return "nothing"
	}
	slices.Sort(d)
	at := func(part float64) time.Duration { return d[int(part*float64(len(d)-1))].Round(time.Millisecond) }
	return fmt.Sprintf("%s (median of %d), %s (p99), %s (most)", at(0.5), len(d), at(0.99), at(1))
}
