package reach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	metricsv1beta1client "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// member is how this server reaches one cluster.
type member struct {
	cluster string
	digest  string // of the kubeconfig
	rest    rest.Interface
	// metadata reads the metadata of objects, and metrics the resources in use.
	metadata metadata.Interface
	metrics  metricsv1beta1client.MetricsV1beta1Interface
	owners   *owners
	stream   *stream
}

// stream is for answers that are passed on to a user as they come: logs, and connections into containers. Nothing of them is
// held in memory, so their length is not bounded.
type stream struct {
	config    *rest.Config
	transport http.RoundTripper
	proxy     *fleet.MemberProxy
}

// Tunnels reach clusters in mode Pull.
type Tunnels interface {
	// Connected reports whether the syncer of a cluster has a tunnel to any server.
	Connected(ctx context.Context, cluster string) bool
	// Dial opens a connection to the syncer, which passes the requests on it on to the cluster's API.
	Dial(ctx context.Context, cluster string) (net.Conn, error)
}

// members are the clusters that this server reaches, with a client for each.
type members struct {
	control Control
	tunnels Tunnels
	origins *origins
	clock   clock.WithTicker

	mu     sync.Mutex
	known  map[string]knownMember
	listed []state
	since  time.Time // when listed was read
}

type knownMember struct {
	*member
	since time.Time
}

// memberTTL is how long a client is used before its kubeconfig is read again.
const memberTTL = 10 * time.Second

// statesTTL is how long the list of clusters is used: each request needs it.
const statesTTL = time.Second

// state is what the control plane knows of a cluster.
type state struct {
	cluster string
	// unreached is why this server never asks the cluster; "" if it does.
	unreached string
	pull      bool // in mode Pull: it is reached through the tunnel of its syncer
	// silent is set if a request does not wait for the cluster. Watches try again and again.
	silent error
}

var errUnreachable = errors.New("it is unreachable")

// states returns the clusters, as they were at most statesTTL ago.
func (m *members) states(ctx context.Context) ([]state, error) {
	now := m.clock.Now()
	m.mu.Lock()
	states, since := m.listed, m.since
	m.mu.Unlock()
	if states != nil && now.Sub(since) < statesTTL {
		return states, nil
	}
	control, err := m.control()
	if err != nil {
		return nil, err
	}
	list, err := control.Resource(v1alpha1.ClusterResource).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err // with its code
	}
	states = make([]state, len(list.Items))
	for i, item := range list.Items {
		states[i] = stateOf(&item)
		if states[i].pull && !m.tunnels.Connected(ctx, states[i].cluster) {
			states[i].unreached = "it is in mode Pull, and its syncer has no tunnel to Atoll"
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listed, m.since = states, now
	return states, nil
}

func stateOf(item *unstructured.Unstructured) state {
	cluster := &v1alpha1.Cluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, cluster); err != nil {
		return state{cluster: item.GetName(), unreached: "its Cluster object is invalid"}
	}
	out := state{cluster: cluster.Name}
	out.pull = cluster.InPullMode()
	if ready := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.ClusterReady); ready != nil && ready.Reason == v1alpha1.ReasonClusterUnreachable {
		out.silent = errUnreachable
	}
	return out
}

// get returns the client of a cluster.
func (m *members) get(ctx context.Context, cluster string) (*member, error) {
	now := m.clock.Now()
	m.mu.Lock()
	known, ok := m.known[cluster]
	m.mu.Unlock()
	if ok && now.Sub(known.since) < memberTTL {
		return known.member, nil
	}
	control, err := m.control()
	if err != nil {
		return nil, err
	}
	access, err := m.access(ctx, control, cluster)
	if err != nil {
		return nil, err
	}
	if !ok || known.digest != access.Digest {
		if known.member, err = m.build(cluster, access); err != nil {
			return nil, fmt.Errorf("make a client of cluster %s: %w", cluster, err)
		}
	}
	known.since = now
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known[cluster] = known
	return known.member, nil
}

// access returns how to connect to a cluster: with its kubeconfig, or through the tunnel of its syncer.
func (m *members) access(ctx context.Context, control dynamic.Interface, cluster string) (*fleet.Access, error) {
	states, err := m.states(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(states, func(s state) bool { return s.cluster == cluster && s.pull }) {
		return fleet.ReadAccess(ctx, control, cluster)
	}
	config := &rest.Config{Host: "http://" + cluster, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return m.tunnels.Dial(ctx, cluster)
	}}
	fleet.BoundAnswers(config)
	return &fleet.Access{REST: config, Digest: "tunnel"}, nil
}

func (m *members) build(cluster string, access *fleet.Access) (*member, error) {
	config := rest.CopyConfig(access.REST)
	config.QPS = -1
	config.AcceptContentTypes, config.ContentType = runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON, runtime.ContentTypeJSON
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	core, err := corev1client.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	meta, err := metadata.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	metrics, err := metricsv1beta1client.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	types, err := discovery.NewDiscoveryClientForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	unbounded := rest.CopyConfig(access.REST)
	unbounded.WrapTransport = nil // fleet.BoundAnswers
	transport, err := rest.TransportFor(unbounded)
	if err != nil {
		return nil, err
	}
	proxy, err := fleet.NewMemberProxy(unbounded)
	if err != nil {
		return nil, err
	}
	return &member{
		cluster: cluster, digest: access.Digest, rest: core.RESTClient(), metadata: meta, metrics: metrics,
		owners: newOwners(cluster, meta, restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(types)), m.origins),
		stream: &stream{unbounded, transport, proxy},
	}, nil
}
